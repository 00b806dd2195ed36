"""The processes of the conformance suite: their pool, their verbs, and the messages they send."""
