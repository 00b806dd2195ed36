"""Reports on traces: totals and percentiles, findings, and an audit of the log's own claims."""
