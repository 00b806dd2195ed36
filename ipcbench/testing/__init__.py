"""The conformance suite, for this package's backends and for any other: it says which law of the contract is broken.

    check_backend      check a backend class; returns a list of LawResult
    ConformanceSuite   a class of tests to inherit, one test per law
    faulty             a backend that breaks exactly one law, to see the suite turn red

Each name is loaded at its first use, since every agent imports this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipcbench.testing.conformance import LAWS, Law, LawResult, check_backend
    from ipcbench.testing.faults import faulty
    from ipcbench.testing.suite import ConformanceSuite

__all__ = ["LAWS", "ConformanceSuite", "Law", "LawResult", "check_backend", "faulty"]

_HOMES = {"faulty": "faults", "ConformanceSuite": "suite"}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'conformance')}"), name)
    globals()[name] = value
    return value
