"""The built-in transports, one folder or file per family; ipcbench.registry knows them by name."""
