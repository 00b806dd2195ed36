"""Recording calls in the traced process: recorder, calls, contexts, and the files they write. Standard library only."""
