"""Transports over stream sockets, Unix or TCP, with the standard library only."""
