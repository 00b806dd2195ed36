"""Two runs side by side: how their cells differ, by how much, and whether a gate fails."""
