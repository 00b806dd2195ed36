"""Recorded traffic over any backend: what the same calls take between real processes if only the transport changes.

What does not live here: anything but this paragraph. traffic.py is what a trace says, clients.py reads it, parts.py and
work.py are what the processes do, pair.py and run.py start them round after round, table.py predicts without a replay,
outcome.py says what follows, render.py writes it.
"""
