"""Instruments: what makes a library record its messages without a change to the program.

An instrument is a function without arguments that lets a module record from now on, and returns a function that undoes
it. It belongs to the name of the module, after whose import it is called. Third parties register theirs, by that name,
at the entry point `ipcbench.instruments`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import Error as CopyError
from copy import copy
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, TypeAlias

from ipcbench.errors import ConfigError, closest, did_you_mean

Instrument: TypeAlias = Callable[[], Callable[[], None]]

ENTRY_POINT_GROUP: Final = "ipcbench.instruments"

_BUILT_IN: Final = {
    "zmq": "ipcbench.trace.adapters.zmq_:instrument",
    "multiprocessing.connection": "ipcbench.trace.adapters.multiprocessing_all:instrument",
    "multiprocessing.queues": "ipcbench.trace.adapters.multiprocessing_all:instrument_queues",
    "redis": "ipcbench.trace.adapters.redis_:instrument",
    "grpc": "ipcbench.trace.adapters.grpc_:instrument",
    "requests": "ipcbench.trace.adapters.http:instrument_requests",
    "httpx": "ipcbench.trace.adapters.http:instrument_httpx",
}

_ABSENT: Final = object()

_log = logging.getLogger("ipcbench.trace")


def targets(names: Sequence[str] = ()) -> dict[str, str]:
    """Return module → `module:function` of the instruments of these modules or packages, or of all; an entry point may
    replace none of the built-in ones.

    Raises:
        ConfigError: there is no instrument of a name.
    """
    from importlib.metadata import entry_points

    known = {**{point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}, **_BUILT_IN}
    packages = dict.fromkeys(module.partition(".")[0] for module in known)
    for name in names:
        if name not in known and name not in packages:
            meant = did_you_mean(closest(name, packages))
            raise ConfigError("--instrument", name, f"one of {', '.join(sorted(packages))}{meant}")
    return {
        module: target
        for module, target in known.items()
        if not names or module in names or module.partition(".")[0] in names
    }


def begin_with_imports(instruments: Mapping[str, str]) -> None:
    """Let each module record as soon as it is imported, or now if it is; what fails is logged and left alone.

    Args:
        instruments: module → `module:function`.
    """
    waiting = {name: target for name, target in instruments.items() if name not in sys.modules}
    for name, target in instruments.items():
        if name in sys.modules:
            _begin(name, target)
    if waiting:
        sys.meta_path.insert(0, _Finder(waiting))


def _begin(name: str, target: str) -> None:
    module, _, function = target.partition(":")
    try:
        getattr(import_module(module), function)()
    except Exception as error:  # nothing raises into the application
        _log.warning("%s is not recorded: %s: %s", name, type(error).__name__, error)


def replaced(*changes: tuple[type | ModuleType, dict[str, Any]]) -> Callable[[], None]:
    """Set attributes of classes or modules; return a function that undoes it, once."""
    left = [(kind, name, kind.__dict__.get(name, _ABSENT)) for kind, members in changes for name in members]
    for kind, members in changes:
        for name, member in members.items():
            setattr(kind, name, member)

    def undo() -> None:
        while left:
            kind, name, before = left.pop()
            if before is _ABSENT:
                delattr(kind, name)
            else:
                setattr(kind, name, before)

    return undo


class _Finder(MetaPathFinder):
    """Finds modules as the others do, and calls the instrument of one that was executed."""

    def __init__(self, waiting: dict[str, str]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the next finder has, with a loader that calls the instrument: a program may only ask
        whether a module is there, may fail to import it at first, and may have one loader for several modules.
        """
        if fullname not in self._waiting:
            return None
        finders = sys.meta_path
        later = finders[finders.index(self) + 1 :] if self in finders else finders  # the others were asked before
        others = (finder for finder in later if hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        if spec is None or spec.loader is None or isinstance(spec.loader, type):
            return spec

        def execute_and_begin(module: ModuleType) -> None:
            execute(module)
            instrument = self._waiting.pop(fullname, None)
            if instrument is not None:
                _begin(fullname, instrument)

        try:
            loader, execute = copy(spec.loader), spec.loader.exec_module
            loader.exec_module = execute_and_begin  # type: ignore[method-assign]
        except (AttributeError, TypeError, CopyError) as error:  # the import system takes loaders that can do neither
            _log.warning("%s is not recorded: %s: %s", fullname, type(error).__name__, error)
            return spec
        spec.loader = loader
        return spec
