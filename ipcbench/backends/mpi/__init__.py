"""Transports over MPI: bcast of a pickled message, pkl5, Bcast of a buffer, and point to point."""
