"""The built-in transports, one folder per family; ipcbench.registry knows them by name."""
