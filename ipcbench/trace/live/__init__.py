"""Looking at a trace while it is being recorded: what is new, how fast it goes, and the same as lines of text."""
