"""The agents of the conformance suite: their pools, their verbs and scenarios, and the messages they send."""
