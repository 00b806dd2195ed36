"""Backends by name: the built-in ones, and third-party ones from the entry point `ipcbench.backends`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from ipcbench.backend import Backend
from ipcbench.errors import BackendUnavailable, ConfigError, UnknownBackend
from ipcbench.util.reference import load_reference

ENTRY_POINT_GROUP = "ipcbench.backends"

_BUILT_IN = {
    "zmq": "ipcbench.backends.zmq.backend:ZmqIpc",
    "zmq-tcp": "ipcbench.backends.zmq.backend:ZmqTcp",
    "zmq-tcp-insecure": "ipcbench.backends.zmq.backend:ZmqTcpInsecure",
    "shm": "ipcbench.backends.shm.backend:Shm",
    "lmdb": "ipcbench.backends.lmdb.backend:Lmdb",
    "mpi": "ipcbench.backends.mpi.backend:MpiNative",
    "mpi-pkl5": "ipcbench.backends.mpi.backend:MpiPkl5",
    "mpi-buffer": "ipcbench.backends.mpi.backend:MpiBuffer",
    "mpi-p2p": "ipcbench.backends.mpi.backend:MpiP2p",
    "mpi-rma": "ipcbench.backends.mpi.backend:MpiRma",
    "pipe": "ipcbench.backends.stream.backend:Pipe",
    "tcp": "ipcbench.backends.stream.backend:Tcp",
    "hybrid": "ipcbench.backends.zmq.hybrid:Hybrid",
    "grpc": "ipcbench.backends.grpc.backend:Grpc",
    "grpc-tcp": "ipcbench.backends.grpc.backend:GrpcTcp",
    "mp-queue": "ipcbench.backends.mp.backend:MpQueue",
    "mp-manager": "ipcbench.backends.mp.backend:MpManager",
    "mp-pipe": "ipcbench.backends.mp.backend:MpPipe",
    "redis": "ipcbench.backends.redis.backend:Redis",
    "nng": "ipcbench.backends.nng:Nng",
    "flight": "ipcbench.backends.flight:Flight",
    "nats": "ipcbench.backends.nats:Nats",
    "iox2": "ipcbench.backends.iox2:Iox2",
    "zenoh": "ipcbench.backends.zenoh.backend:Zenoh",
    "gloo": "ipcbench.backends.gloo:Gloo",
    "ray": "ipcbench.backends.ray.backend:Ray",
    "null": "ipcbench.backends.null:Null",
}


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """Whether a backend can be used here, and how to get it if not."""

    name: str
    available: bool
    reason: str
    """Why not; empty if available."""
    hint: str
    """How to get it; empty if available."""


def _targets() -> dict[str, str]:
    """Return name → `module:Class`; an entry point may not take a built-in name."""
    from importlib.metadata import entry_points  # slow to load, and no built-in backend needs it

    return {**{point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}, **_BUILT_IN}


def names() -> tuple[str, ...]:
    """Return every registered name: the built-in ones in table order, then third-party ones sorted."""
    targets = _targets()
    return (*_BUILT_IN, *sorted(set(targets) - set(_BUILT_IN)))


def _load(name: str, target: str) -> type[Backend]:
    if target.startswith("ipcbench.backends."):  # whole, before threads import parts of it in different orders
        import_module("ipcbench.sync")
    backend = load_reference(target, "backend")
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        raise ConfigError("backend", name, "a subclass of ipcbench.Backend")
    return backend


def get_backend(name: str) -> type[Backend]:
    """Return the backend's class, by registered name or as `module:Class`; import its module.

    Raises:
        UnknownBackend: the name is not registered; the text lists those that are.
        BackendUnavailable: its module, or a library that this imports, is broken.
        ConfigError: `module:Class` is not a Backend.
    """
    if not isinstance(name, str):
        raise ConfigError("backend", name, "a name from `ipcbench list`, or `module:Class`")
    if ":" in name:
        return _load(name, name)
    target = _BUILT_IN.get(name) or _targets().get(name)
    if target is None:
        raise UnknownBackend(name, names())
    try:
        return _load(name, target)
    except ConfigError as error:
        text = f"its module cannot be loaded: {error}"
        raise BackendUnavailable(name, text, "reinstall the package it comes from") from error


def status(name: str) -> BackendStatus:
    """Return whether the backend can be used here.

    Raises:
        UnknownBackend: not registered.
    """
    try:
        get_backend(name).probe()
    except BackendUnavailable as error:
        return BackendStatus(name, available=False, reason=error.reason, hint=error.hint)
    return BackendStatus(name, available=True, reason="", hint="")
