"""Runs over many settings: latency by length (`seq`), what parallelism brings (`parallel`), bandwidth (`bandwidth`).

- `cases`: which cases fit a budget, and what is said of those that do not
- `models`: the cases of `seq` and `parallel`, each a run of its own
- `bandwidth`: memory, transports and collective operations from 1 MiB on
- `device`: what a GPU moves: to and from the host, within itself, to another process and another GPU
- `copies`: what the processes of `device` do
- `moving`: what the processes of `bandwidth` do
"""
