"""What surrounds the measuring: statistics of samples (stats.py, bootstrap.py) and the state of the machine.

What does not live here: the hot loops (ipcbench/harness) and what is made of trials and cells (ipcbench/analysis).
"""
