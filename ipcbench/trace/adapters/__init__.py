"""Adapters that record messages of ZeroMQ, multiprocessing and ipcbench channels; `trace.wrap` chooses one."""
