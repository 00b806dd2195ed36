"""A diagnosis, or a ladder, as an HTML page with plots."""
