"""The tables, exports and page of a run."""
