"""Which transport to use for given traffic: the question, the evidence, the answer."""
