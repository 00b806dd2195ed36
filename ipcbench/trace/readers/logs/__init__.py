"""Parsers of the text logs of older systems: zmq_performance.log and [TQ-...] lines."""
