"""Reading traces: this package's own files, zmq_performance.log and [TQ-…] lines, as batches of calls.

What does not live here: sums, percentiles and findings (ipcbench/trace/report).
"""
