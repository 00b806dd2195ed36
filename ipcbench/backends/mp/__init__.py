"""Transports of the standard library's `multiprocessing`: Queue, Queue of a Manager, and Pipe."""
