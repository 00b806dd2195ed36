"""Transports over gRPC: Unix sockets, and TCP on the loopback interface."""
