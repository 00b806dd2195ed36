"""The checks of the contract's laws, C1 to C20: one function a law, grouped by what they look at."""
