"""What a stored run means: summaries, tables, and what is made of them. Reads results and nothing else."""
