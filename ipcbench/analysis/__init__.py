"""What a stored run means: summaries, tables, and what is made of them. Reads results and nothing else.

What does not live here: measuring (ipcbench/harness), files of a run (ipcbench/store.py) and printing (ipcbench/cli).
"""
