"""The built-in sweeps (TOML files), and the loader of sweeps from files and command-line options."""
