"""Carrying out a sweep: processes, control channel, hot loops, rounds."""
