"""Transports over MPI: lowercase bcast, pkl5, uppercase Bcast, and point to point."""
