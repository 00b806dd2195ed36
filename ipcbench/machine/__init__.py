"""What this machine is, how busy it is, and how well it measures."""
