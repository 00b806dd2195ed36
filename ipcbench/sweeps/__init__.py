"""Sweeps as people write them: the built-in TOML files, and the loader for files and command-line options."""
