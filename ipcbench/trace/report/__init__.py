"""Reports on traces: sums and percentiles, findings, and an audit of what logs say of themselves."""
