"""Quantiles, bootstrap intervals and decisions. Pure functions of numbers."""
