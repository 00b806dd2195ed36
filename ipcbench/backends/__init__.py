"""The built-in transports, one underscore file (or a few) each; ipcbench/registry.py knows them by name.

What does not live here: anything that two of them share, which is a module beside ipcbench/backend.py.
"""
