"""Where IPCBENCH_BUILD_PURE is set, the package is built without its parts in C: a wheel for any machine.

All else is in pyproject.toml.
"""

import os

from setuptools import Distribution, setup


class Package(Distribution):
    """The package, with or without its parts in C."""

    def has_ext_modules(self) -> bool:
        """Return whether parts in C are built; if not, setuptools calls the wheel py3-none-any."""
        return not os.environ.get("IPCBENCH_BUILD_PURE") and bool(super().has_ext_modules())


setup(distclass=Package)
