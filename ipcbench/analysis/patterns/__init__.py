"""Queues, fan-in and rpc: the figures of their trials, and their tables."""
