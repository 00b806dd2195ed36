"""More than one host: emulated ones, to test and to plan with."""
