"""Emulated hosts: namespaces of this machine, joined by links whose delay, rate and loss are known.

A host has its own network, name, IPC, processes, mounts (/tmp, /dev/shm, /proc) and monotonic clock; the files, cores
and the wall clock are this machine's. `cluster` starts them; `station` is the process that holds them together.
"""
