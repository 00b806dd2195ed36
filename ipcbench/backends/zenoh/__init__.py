"""Transports over zenoh: a Unix socket on one host, TCP between hosts."""
