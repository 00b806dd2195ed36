"""Compares traces by method: with each other, and with limits."""
