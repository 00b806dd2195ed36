"""Queues and fan-in: the figures of their trials, and their tables."""
