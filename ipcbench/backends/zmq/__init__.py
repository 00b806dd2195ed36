"""Transports over ZeroMQ XPUB/SUB: Unix sockets, and TCP."""
