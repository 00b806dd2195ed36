"""What is really in use between processes, what it costs, and what would help."""
