"""What is settled before the first process starts: which backends can take part, and how large each payload is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ipcbench.backend import Backend
from ipcbench.errors import BackendUnavailable, Unsupported
from ipcbench.processes.launch import find_mpiexec
from ipcbench.registry import get_backend
from ipcbench.spec import NAME_PREFIX, ChannelSpec, SweepSpec
from ipcbench.util.clock import now_ns
from ipcbench.util.units import format_bytes
from ipcbench.workload.codec import get_codec
from ipcbench.workload.message import message_bytes
from ipcbench.workload.payload import build

_REPEATS = 5
_COORDINATOR_BYTES, _WORKER_BYTES = 128 * 2**20, 40 * 2**20
"""What this process and each endpoint of one backend take, without messages."""


@dataclass(frozen=True, slots=True)
class PreparedPayload:
    """One payload size of the sweep, encoded to learn its size in bytes and its cost."""

    size: int
    """Entries of a dict; bytes of `bytes` and `ndarray`."""
    payload_bytes: int
    """Encoded size."""
    encode_ns: float
    decode_ns: float
    """An estimate for planning, measured in this process; never a result."""

    def as_dict(self) -> Mapping[str, Any]:
        """Return what run.json stores."""
        return {"size": self.size, "payload_bytes": self.payload_bytes, "encode_ns": self.encode_ns}


def prepare_payload(sweep: SweepSpec, size: int) -> PreparedPayload:
    """Encode and decode the payload a few times, and return the medians."""
    codec, obj = get_codec(sweep.codec), build(sweep.payload, size)
    encode, decode, encoded = [], [], b""
    for _ in range(_REPEATS):
        start = now_ns()
        encoded = codec.encode(obj)
        middle = now_ns()
        codec.decode(memoryview(encoded))
        encode.append(middle - start)
        decode.append(now_ns() - middle)
    return PreparedPayload(size, len(encoded), median(encode), median(decode))


def require_memory(readers: int, limit_bytes: int | None) -> None:
    """Refuse a run that cannot measure even one backend in the memory that its processes may use: the kernel would kill
    them, the run itself at last.

    Raises:
        Unsupported: it cannot.
    """
    needed_bytes = _COORDINATOR_BYTES + (readers + 1) * _WORKER_BYTES
    if limit_bytes is not None and limit_bytes < needed_bytes:
        raise Unsupported(
            f"a run with {readers} reader{'s' * (readers != 1)} takes {format_bytes(needed_bytes)} of memory or more, "
            f"and the limit of its cgroup is {format_bytes(limit_bytes)}; raise the limit (`docker run --memory`), or "
            "take fewer readers"
        )


def select_backends(
    sweep: SweepSpec, payloads: Sequence[PreparedPayload]
) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return the sweep's usable and skipped backends; see `usable_backends`."""
    largest = max(payload.payload_bytes for payload in payloads)
    channel = ChannelSpec(
        name=f"{NAME_PREFIX}check",
        readers=sweep.readers,
        max_message_bytes=message_bytes(largest),
        delivery=sweep.delivery,
        depth=sweep.depth,
        wait=sweep.wait,
    )
    return usable_backends(sweep.backends, channel)


def usable_backends(names: Iterable[str], channel: ChannelSpec) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return the backends that can make such a channel here; and for every other one, the reason and the remedy.

    Raises:
        UnknownBackend: a name is not registered; nothing is left out silently.
        BackendUnavailable: no backend is usable.
    """
    usable: dict[str, type[Backend]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        backend = get_backend(name)
        try:
            backend.probe()
            if backend.capabilities.launcher == "mpiexec":
                find_mpiexec()
            backend().require(channel)
        except BackendUnavailable as error:
            skipped[name] = f"{error.reason}; {error.hint}"
        except Unsupported as error:
            skipped[name] = str(error)
        else:
            usable[name] = backend
    if not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise BackendUnavailable(",".join(skipped), reasons, "choose other backends; `ipcbench list` shows them all")
    return usable, skipped
