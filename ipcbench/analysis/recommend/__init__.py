"""Which transport to use for a given traffic: the question, its evidence, the answer."""
