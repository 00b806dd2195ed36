"""Reading traces: this package's own files, zmq_performance.log and [TQ-…] lines, as batches of calls."""
