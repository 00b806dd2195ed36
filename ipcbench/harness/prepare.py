"""Before the first process starts: which backends can take part, and what each payload weighs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from ipcbench.backend import Backend
from ipcbench.errors import BackendUnavailable, Unsupported
from ipcbench.processes.launch import find_mpiexec
from ipcbench.registry import get_backend
from ipcbench.spec import NAME_PREFIX, ChannelSpec, SweepSpec
from ipcbench.util.clock import now_ns
from ipcbench.workload.codec import get_codec
from ipcbench.workload.message import message_bytes
from ipcbench.workload.payload import build

_REPEATS = 5


@dataclass(frozen=True, slots=True)
class PreparedPayload:
    """One size of the sweep, encoded once to know it."""

    size: int
    """Entries of a dict, otherwise bytes."""
    payload_bytes: int
    """Encoded size."""
    encode_ns: float
    decode_ns: float
    """One decoding in this process; an estimate for planning, never a result."""

    def as_dict(self) -> Mapping[str, Any]:
        """Return what run.json says of it."""
        return {"size": self.size, "payload_bytes": self.payload_bytes, "encode_ns": self.encode_ns}


def prepare_payload(sweep: SweepSpec, size: int) -> PreparedPayload:
    """Encode and decode the payload a few times; medians."""
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


def select_backends(
    sweep: SweepSpec, payloads: list[PreparedPayload]
) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return what `usable_backends` does, for a sweep."""
    largest = max(one.payload_bytes for one in payloads)
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
    """Return the backends that can make such a channel here, and for each other one the reason and how to get it.

    Raises:
        UnknownBackend: a name that is not registered; nothing is left out silently.
        BackendUnavailable: none can.
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
        raise BackendUnavailable(",".join(skipped), reasons, "choose others, `ipcbench list` shows what is there")
    return usable, skipped
