"""Two runs side by side: which cells differ, by how much, and whether a gate fails."""
