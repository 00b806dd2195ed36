"""The conformance suite, for this package's backends and for anybody else's: bind it, and it says which law is broken.

    check_backend      check a class, get a list of LawResult
    ConformanceSuite   a class of tests to inherit, one test a law
    faulty             a backend that breaks just one law, to see the suite turn red

Importing this loads none of them: each is loaded when it is first looked at, since every agent imports this, too.
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
