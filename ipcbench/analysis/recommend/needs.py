"""What can be needed of a transport, and which backends do not offer it: capabilities decide, never names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec, resolve_name
from pathlib import Path

from ipcbench.backend import Backend, Capabilities
from ipcbench.errors import IpcbenchError
from ipcbench.registry import get_backend, names
from ipcbench.results.parse import to_record
from ipcbench.results.store import Run
from ipcbench.spec import Delivery
from ipcbench.util.units import format_bytes
from ipcbench.workload.message import OVERHEAD_BYTES

_OWN = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a backend offers, and what it needs."""

    capabilities: Capabilities
    find_packages: Callable[[], tuple[str, ...]] = tuple
    """To read its source takes as long as all else that an answer needs, and few ask."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that its code imports and that are part of neither Python nor ipcbench."""
        return self.find_packages()


@dataclass(frozen=True, slots=True)
class Need:
    """A value of `--needs`."""

    meaning: str
    """For help texts."""
    refusal: Callable[[Offer], str]
    """Return why a backend does not meet the need; empty if it does."""


def _unless(offered: bool, reason: str) -> str:
    return "" if offered else reason


def _delivery(offer: Offer, delivery: Delivery) -> str:
    return _unless(delivery in offer.capabilities.deliveries, f"it does not offer {delivery}")


def _lossless(offer: Offer) -> str:
    full = offer.capabilities.when_full
    return _delivery(offer, "every_message") or _unless(full == "block", f"a full channel does not block but {full}s")


def _no_deps(offer: Offer) -> str:
    if offer.capabilities.launcher == "mpiexec":
        return "it needs an MPI installation and its launcher"
    return _unless(not offer.packages, f"it needs the package {' and '.join(offer.packages)}")


_STARTED = {
    "mpiexec": "its processes must be started by mpiexec",
    "fork": "its processes must be children of the one that makes the channel",
}

NEEDS: Mapping[str, Need] = {
    "lossless": Need("every message reaches every reader, and a full channel holds the writer", _lossless),
    "latest-value": Need(
        "only the latest value counts; older ones are overwritten", lambda offer: _delivery(offer, "latest_value")
    ),
    "no-deps": Need("nothing but Python's standard library", _no_deps),
    "persistent": Need(
        "messages outlive the processes",
        lambda offer: _unless(offer.capabilities.persistent, "its messages do not outlive the processes"),
    ),
    "cross-host": Need(
        "writer and readers may be on different hosts",
        lambda offer: _unless(offer.capabilities.remote, "its channels do not leave the host"),
    ),
    "zero-copy": Need(
        "a read returns the transport's own memory",
        lambda offer: _unless(offer.capabilities.zero_copy_read, "a read returns a copy"),
    ),
    "peer-exit": Need(
        "a blocked call ends with an error when the other side was killed",
        lambda offer: _unless(offer.capabilities.detects_peer_exit, "a dead peer shows as a time-out only"),
    ),
    "any-launcher": Need(
        "any program can start the processes",
        lambda offer: _STARTED.get(offer.capabilities.launcher, ""),
    ),
}
"""Name of the need → its check."""


def refusals(offer: Offer, payload_bytes: int, readers: int, delivery: Delivery, needs: Iterable[str]) -> list[str]:
    """Return every reason for which a backend cannot do what is asked; empty if it can."""
    can = offer.capabilities
    message_bytes = payload_bytes + OVERHEAD_BYTES
    reasons = [
        _unless(can.launcher != "inline", "all its endpoints live in one process"),
        _unless(can.private, "other users of this host can read its messages"),
        _unless(readers <= can.max_readers, f"it takes at most {can.max_readers:,} readers"),
        _unless(message_bytes <= can.max_message_bytes, f"it carries at most {format_bytes(can.max_message_bytes)}"),
        _delivery(offer, delivery),
        *(f"needs {need}: {reason}" for need in needs if (reason := NEEDS[need].refusal(offer))),
    ]
    named = {reason.partition(": ")[2] for reason in reasons}
    return [reason for reason in reasons if reason and reason not in named]  # a needed delivery is reported once


def registered_offers() -> dict[str, Offer]:
    """Return what every registered backend offers; a backend whose module is broken is left out.

    Only names in the registry are looked up, never names in a results folder: reading a result runs no code that it
    names.
    """
    offers: dict[str, Offer] = {}
    for name in names():
        try:
            offers[name] = offer_of(get_backend(name))
        except (ImportError, IpcbenchError):  # `ipcbench list` reports it; here it counts as not registered
            continue
    return offers


def stored_offers(run: Run) -> dict[str, Offer]:
    """Return what a run says of its backends that were named as `module:Class`; what they import is not known, but for
    their own module. What does not fit is left out.
    """
    offers: dict[str, Offer] = {}
    for name, values in run.info.capabilities.items():
        with suppress(ValueError):
            offers[name] = Offer(to_record(values, Capabilities), partial(tuple, [name.partition(":")[0]]))
    return offers


def offer_of(backend: type[Backend]) -> Offer:
    """Return what a backend class offers and needs."""
    return Offer(backend.capabilities, partial(required_packages, backend.__module__))


@cache
def required_packages(module: str) -> tuple[str, ...]:
    """Return the packages that a module imports, directly or through its own package or ipcbench, by name.

    They are read from the source without importing anything, so that absent packages are found too. The standard
    library and the module's own package do not count.
    """
    home = module.partition(".")[0]
    packages: set[str] = set()
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for imported in _imports(name):
            top = imported.partition(".")[0]
            if top in {home, _OWN}:
                waiting.append(imported)
            elif top not in sys.stdlib_module_names:
                packages.add(top)
    return tuple(sorted(packages))


@cache
def _imports(module: str) -> frozenset[str]:
    """Return what a module imports; backends share most of their modules."""
    source, found = _source(module), set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if source is not None else ():
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
            found |= {package, *(f"{package}.{alias.name}" for alias in node.names if _is_package(package))}
    return frozenset(found)


def _is_package(name: str) -> bool:
    """Return whether what is imported from it may be a module."""
    source = _source(name) if name.partition(".")[0] == _OWN else None
    return source is not None and source.name == "__init__.py"


def _source(module: str) -> Path | None:
    """Return the source file of a module; None without one, and for `ipcbench` itself, which imports lazily."""
    if module == _OWN:
        return None
    spec = find_spec(module)
    path = Path(spec.origin) if spec is not None and spec.origin else None
    return path if path is not None and path.suffix == ".py" else None
