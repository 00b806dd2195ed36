"""The checks of the contract's laws: one function a law, grouped by what they look at."""
