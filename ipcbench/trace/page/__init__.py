"""A trace as one page with plots: the report of a trace on the page that reports of runs have."""
