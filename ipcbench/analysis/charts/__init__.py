"""The charts of a run: what is drawn, on which axes, in which groups. Drawing is in `ipcbench.render`."""
