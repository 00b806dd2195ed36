"""Transport over a ring in POSIX shared memory."""
