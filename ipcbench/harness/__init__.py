"""Measuring a sweep on real processes: rounds, trials, process groups, the hot loops, and the record of each trial."""
