"""Supervision of processes: control channel, launchers, worker shell, run directory, janitor, clean-up."""
