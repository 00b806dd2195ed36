"""One table model with its text, Markdown, CSV and HTML forms; plots; the report page and its assets."""
