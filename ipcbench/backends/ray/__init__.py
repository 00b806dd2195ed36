"""Ray: objects of its store, handed over by an actor, in a cluster that is there or in one started for the channels."""
