"""The report of a trace as an HTML page with plots."""
