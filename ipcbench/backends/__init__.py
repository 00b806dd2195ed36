"""The built-in transports, one underscore file (or a few) each; ipcbench/registry.py knows them by name."""
