"""Small helpers without a room of their own: clock, units, files, bins."""
