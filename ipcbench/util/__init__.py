"""Clock, units, files and bins: what has no better home."""
