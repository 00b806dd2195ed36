"""A run as tables, in every format, and as an HTML page."""
