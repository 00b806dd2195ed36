"""Deliberate faults around any backend: `mutants` that break one law each, and `slowed` ones with a known slow-down.

They show that the conformance suite and the self-test notice what they should. `faulty` puts a mutant around a backend.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ipcbench.backend import Backend
from ipcbench.errors import ConfigError
from ipcbench.registry import get_backend
from ipcbench.testing.faults.mutants import FAULTS
from ipcbench.testing.wrapper import BackendWrapper, ReaderWrapper

_DOT = "/"
"""Stands for a dot in the name of a made class; a dot would be read as a class within a class."""


@cache
def faulty(law: str, inner: type[Backend]) -> type[Backend]:
    """Return `inner` with the fault that breaks just that law.

    Any process can find the class again by its module and name if it can find `inner`.

    Raises:
        ConfigError: there is no such law.
    """
    if law not in FAULTS:
        raise ConfigError("law", law, FAULTS)
    fault = FAULTS[law]
    members: dict[str, Any] = {
        "__module__": __name__,
        "__qualname__": f"{law}:{inner.__module__}:{inner.__qualname__}".replace(".", _DOT),
        "inner": inner,
        "name": inner.name,
        "summary": f"{inner.summary}, breaking law {law}",
        "capabilities": inner.capabilities,
    }
    base: type[Backend] = BackendWrapper
    if issubclass(fault, BackendWrapper):
        base = fault
    else:
        members["reader_class" if issubclass(fault, ReaderWrapper) else "writer_class"] = fault
    made: type[Backend] = type(f"{fault.__name__}Around{inner.__name__}", (base,), members)
    return made


def __getattr__(name: str) -> type[Backend]:
    """Return the class that `faulty` has given this name, here or in another process."""
    law, _, target = name.replace(_DOT, ".").partition(":")
    if law not in FAULTS or not target:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return faulty(law, get_backend(target))
