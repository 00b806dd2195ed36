"""Statistics as pure functions of numbers: estimates and their intervals, the bootstrap, decisions, histograms."""
