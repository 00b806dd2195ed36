"""Carrying out a sweep: processes, control channel, hot loops, rounds.

What does not live here: any transport (ipcbench/backends) and anything computed over trials (ipcbench/analysis).
"""
