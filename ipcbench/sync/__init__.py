"""The kit of transport authors: cursors, hazard slots, latest value, liveness, endpoint locks, waiting, fences."""
