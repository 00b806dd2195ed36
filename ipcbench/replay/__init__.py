"""Recorded traffic over any backend: what the same calls take between real processes if only the transport changes."""
