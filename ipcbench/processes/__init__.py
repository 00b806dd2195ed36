"""Supervision of processes: control channel, launchers, worker shell, run directory, janitor and clean-up."""
