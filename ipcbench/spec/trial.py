"""A trial: one measurement of one backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from ipcbench.spec.channel import PATTERNS, Delivery, Pattern, WaitStrategy
from ipcbench.util.reference import is_reference

PayloadKind = Literal["dict", "records", "bytes", "ndarray"]
Mode = Literal["paced", "pingpong", "saturate"]
"""`paced`: one way, open loop at a rate. `pingpong`: round trips, in a closed loop, or an open one if there is a rate.
`saturate`: one way, flat out.
"""
Trips = Literal["auto", "closed", "paced"]
Touch = Literal["none", "header", "pages", "all"]
CodecName = Literal["pickle", "pickle5", "msgpack", "numpy", "raw"]

Work = Pattern | Literal["rpc"]
"""What is measured: a pattern of channels, or `rpc`: many clients call one server."""

WORKS: tuple[Work, ...] = (*PATTERNS, "rpc")
PAYLOAD_KINDS: tuple[PayloadKind, ...] = get_args(PayloadKind)
MODES: tuple[Mode, ...] = get_args(Mode)
TRIPS: tuple[Trips, ...] = get_args(Trips)
TOUCHES: tuple[Touch, ...] = get_args(Touch)
CODEC_NAMES: tuple[CodecName, ...] = get_args(CodecName)
MAX_PAYLOAD_BYTES = 2**30
"""The largest payload that a run can measure."""
COUNTED_PAYLOADS = ("dict", "records")
"""Kinds whose size is a number of entries."""
SAMPLE = "sample"
"""Payload from a file of the user's."""


def work_name(work: str) -> str:
    """Return what users call it: `fan-in`."""
    return work.replace("_", "-")


def is_sized_in_bytes(payload: str) -> bool:
    """Return whether a payload's size is a number of bytes; else it counts entries, or is what a function gets."""
    return payload not in COUNTED_PAYLOADS and not is_reference(payload)


VARIANT_MARK = "@"
"""Between the name of a backend and that of the variant that it was measured as: `shm@base`."""


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One measurement: a backend, a payload and a way of offering it, in one round."""

    backend: str
    payload: str
    """A kind, `module:function`, or `sample NAME`."""
    size: int
    """Entries of a dict or of records; what the user's function was called with; otherwise bytes."""
    payload_bytes: int
    """Encoded size of the payload."""
    codec: str
    """A name, or `module:Class`."""
    delivery: Delivery
    mode: Mode
    rate_per_s: float
    """Offered rate of a paced trial, and of paced round trips; 0 for the others."""
    readers: int
    depth: int
    wait: WaitStrategy
    warmup_s: float
    """Least warm-up; it goes on until steady, up to four times this."""
    window_s: float
    """Length of the measured window."""
    round_index: int
    """Number of the round, from 0."""
    pin: str = "none"
    """Cores of the processes, see `SweepSpec.pin`."""
    touch: Touch = "header"
    """How much of a message a reader looks at, see `SweepSpec.touch`."""
    twin: bool = False
    """Whether this is the second measurement of a cell in its round, see `SweepSpec.control`."""
    turns: int = 1
    """Number of parts in which the window is measured, alternating with the other backends' parts of the round."""
    tail: bool = False
    """Whether this is a second paced trial of the cell in its round: a window in one piece, for the tail. Turns would
    cut a stall off at their ends."""
    neighbours: int = 0
    """Number of busy processes that run beside it, see `SweepSpec.neighbours`."""
    look: bool = False
    """Whether it is of a first look, see `SweepSpec.look`."""
    pattern: Work = "broadcast"
    writers: int = 1
    """Above 1 for a fan-in and for rpc, of which they are the clients."""
    batch: int = 1
    """Messages that a writer hands over together, see `SweepSpec.batches`."""
    loads: tuple[float, ...] = ()
    """Of a queue, fan-in or rpc: after a window flat out, one at each of these shares of the rate of that window."""
    kill: bool = False
    """Whether a worker of the queue is killed in the window."""
    in_flight: int = 1
    """Of rpc: calls that a client may have in flight."""
    reply_bytes: int = 0
    """Of rpc: size of the array in a reply; that of a request is `payload_bytes`."""
    service_ns: int = 0
    """Of rpc: for how long the method works."""

    @property
    def endpoints_count(self) -> int:
        """Writers and readers together."""
        return self.writers + self.readers

    @property
    def is_paced(self) -> bool:
        """Whether messages are sent on a schedule, whatever becomes of those before: an open loop."""
        return self.rate_per_s > 0

    @property
    def peers(self) -> int:
        """Workers of a queue, writers of a fan-in, clients of rpc."""
        return self.writers if self.pattern in {"fan_in", "rpc"} else self.readers

    @property
    def registered_name(self) -> str:
        """The backend's name without its variant: what `get_backend` knows it by."""
        return self.backend.partition(VARIANT_MARK)[0]

    @property
    def is_shared(self) -> bool:
        """Whether it is measured together with the trials of other backends: in turns, or each window in one piece."""
        return self.turns > 1 or self.tail or self.pattern != "broadcast"

    @property
    def cell(self) -> tuple[object, ...]:
        """Return what rounds replicate: backend, payload, size, codec, delivery, mode, rate, readers, twin, tail,
        neighbours, and what `pattern_key` returns.
        """
        return (
            self.backend,
            self.payload,
            self.size,
            self.codec,
            self.delivery,
            self.mode,
            self.rate_per_s,
            self.readers,
            self.twin,
            self.tail,
            self.neighbours,
            *self.pattern_key,
        )

    @property
    def pattern_key(self) -> tuple[object, ...]:
        """Return what distinguishes trials of one backend and payload that are not broadcasts, besides readers."""
        return self.pattern, self.writers, self.batch, self.kill, self.in_flight, self.reply_bytes, self.service_ns

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for msgpack, JSON and `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a trial from what `as_dict` returned."""
        return cls(**{**values, "loads": tuple(values.get("loads", ()))})
