"""Backends that break one law each: a wrapper a law, to be put around any backend, to show that the suite notices.

Each fault is small, the same at every run, and lies where only the check of its own law looks: a message is lost,
doubled or swapped only after some hundred others, a byte is flipped at one odd size, and so on. What a wrapper must
know of other endpoints it keeps in files that carry the channel's name, so that it works across processes too.
"""

from __future__ import annotations

from functools import cache

from ipcbench.backend import Backend
from ipcbench.errors import ConfigError
from ipcbench.registry import get_backend
from ipcbench.testing.faults import life as faults_life
from ipcbench.testing.faults import messages as faults_messages
from ipcbench.testing.faults.wrapping import BackendAround

FAULTS: dict[str, type[BackendAround]] = {
    "C1": faults_messages.FlipsAByte,
    "C2": faults_messages.SwapsTwo,
    "C3": faults_messages.RepeatsOne,
    "C4": faults_messages.ForgetsReaderOne,
    "C5": faults_messages.LosesTheFirst,
    "C6": faults_messages.TearsAValue,
    "C7": faults_messages.GivesUpEarly,
    "C8": faults_messages.DropsWhenFull,
    "C9": faults_life.SharesItsBuffer,
    "C10": faults_life.KeepsTheBuffer,
    "C11": faults_life.ClosesOnce,
    "C12": faults_life.NeverEnds,
    "C13": faults_life.InventsMessages,
    "C14": faults_life.LeavesAFile,
    "C15": faults_life.AdmitsASecondWriter,
    "C16": faults_messages.Truncates,
    "C17": faults_life.NeedsTheWriterFirst,
    "C18": faults_life.CannotBePickled,
    "C19": faults_life.RaisesRawErrors,
}
"""Law → the wrapper that breaks it."""

_DOT = "/"
"""Stands for a dot in the name of a made class, since a dot would be taken for a class within a class."""


@cache
def faulty(law: str, inner: type[Backend]) -> type[Backend]:
    """Return `inner` with the fault that breaks just that law.

    The class is found again by its module and name, and so in any process, if `inner` is.

    Raises:
        ConfigError: there is no such law.
    """
    if law not in FAULTS:
        raise ConfigError("law", law, ", ".join(FAULTS))
    members = {
        "__module__": __name__,
        "__qualname__": f"{law}:{inner.__module__}:{inner.__qualname__}".replace(".", _DOT),
        "inner": inner,
        "name": inner.name,
        "summary": f"{inner.summary}, breaking law {law}",
        "capabilities": inner.capabilities,
    }
    made: type[Backend] = type(f"{FAULTS[law].__name__}Around{inner.__name__}", (FAULTS[law],), members)
    return made


def __getattr__(name: str) -> type[Backend]:
    """Return the class that `faulty` has given this name, here or in another process."""
    law, _, target = name.replace(_DOT, ".").partition(":")
    if law not in FAULTS or not target:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return faulty(law, get_backend(target))
