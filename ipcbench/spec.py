"""The inputs, validated once: what a channel is, what a trial measures, what a sweep holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from ipcbench.errors import ConfigError

Delivery = Literal["every_message", "latest_value"]
WaitStrategy = Literal["auto", "spin", "yield", "block"]

DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)
WAIT_STRATEGIES: tuple[WaitStrategy, ...] = get_args(WaitStrategy)

NAME_PREFIX = "ipcb-"
"""Every resource that ipcbench makes (segment, socket, directory, process group) has a name that starts so."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
_PIN = re.compile(r"auto|none|\d+(,\d+)*")
_MAX_DEPTH = 2**16


def require_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(field, value, " or ".join(choices))


def require_range(field: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless `low` ≤ `value` ≤ `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(field, value, f"{low:,} to {high:,}")


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """One live path from one writer to N readers, as asked for."""

    name: str
    """Prefix of every resource of the channel: letters, digits, `-` and `_`, at most 48; unique on the host."""
    readers: int = 1
    """How many readers there are, exactly."""
    max_message_bytes: int = 2**20
    """Largest message it must carry."""
    delivery: Delivery = "every_message"
    depth: int = 16
    """For every_message: how many written messages a reader may be behind before the writer is held (2 to 65,536). A
    backend may hold fewer large messages, and more small ones as far as buffers on the way take them
    (docs/contract.md)."""
    wait: WaitStrategy = "auto"
    """How a blocked endpoint waits."""
    processes: tuple[int, ...] = ()
    """Numbers, in the process group, of the writer and then of each reader; empty means 0, 1, 2 … Only a transport that
    names processes (MPI: ranks) looks at them."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                "channel name", self.name, "1 to 48 letters, digits, '-' or '_', not beginning with a sign"
            )
        require_range("readers", self.readers, 1, 1024)
        require_range("max_message_bytes", self.max_message_bytes, 0, 2**40)
        require_range("depth", self.depth, 2, _MAX_DEPTH)
        require_choice("delivery", self.delivery, DELIVERIES)
        require_choice("wait", self.wait, WAIT_STRATEGIES)
        if self.processes and len(set(self.processes)) != self.readers + 1:
            raise ConfigError("processes", self.processes, f"{self.readers + 1} different numbers, or none")

    def process_numbers(self) -> tuple[int, ...]:
        """Return the process numbers of the writer and of readers 0, 1, 2 …"""
        return self.processes or tuple(range(self.readers + 1))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for msgpack, JSON and `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a channel from what `as_dict` returned."""
        return cls(**{**values, "processes": tuple(values["processes"])})


PayloadKind = Literal["dict", "bytes", "ndarray"]
Mode = Literal["paced", "pingpong", "saturate"]
"""`paced`: one way, open loop at a rate. `pingpong`: round trips, closed loop. `saturate`: one way, flat out."""
Touch = Literal["none", "header", "pages", "all"]
CodecName = Literal["pickle", "pickle5", "msgpack", "raw"]

PAYLOAD_KINDS: tuple[PayloadKind, ...] = get_args(PayloadKind)
MODES: tuple[Mode, ...] = get_args(Mode)
TOUCHES: tuple[Touch, ...] = get_args(Touch)
CODEC_NAMES: tuple[CodecName, ...] = get_args(CodecName)

AUTO_RATE_PER_S = 1000.0
AUTO_RATE_BYTES_PER_S = 100e6
"""Without `rate`, a paced trial offers the lower of these two: low enough that every transport idles between
messages."""

PINGPONG_WINDOW_RATIO = 0.6
"""Round trips follow one another at once: so much of `window_s` has plenty of them."""

AUTO_PACED_MESSAGES = 150
_AUTO_PACED_MAX_S = 0.4

TURN_S = 0.015
"""About so long one backend's messages are measured before it is the next one's turn."""
_MAX_TURNS_WINDOW_S = 60.0
_MAX_TURNS_PAYLOAD_BYTES = 2**25
"""The channels of all backends that take turns are open at once."""


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One measurement: a backend, a payload and a way of offering it, in one round."""

    backend: str
    payload: PayloadKind
    size: int
    """Entries of a dict; bytes of `bytes` and `ndarray`."""
    payload_bytes: int
    """Encoded size: what the transport carries as payload."""
    codec: CodecName
    delivery: Delivery
    mode: Mode
    rate_per_s: float
    """Offered rate of a paced trial; 0 for the others."""
    readers: int
    depth: int
    wait: WaitStrategy
    warmup_s: float
    """Least warm-up; it goes on until steady, up to four times this."""
    window_s: float
    """Length of the measured window."""
    round_index: int
    """Which round, from 0."""
    pin: str = "none"
    """Cores of the processes, see `SweepSpec.pin`."""
    touch: Touch = "header"
    """How much of a message a reader looks at, see `SweepSpec.touch`."""
    twin: bool = False
    """Whether this is the second measurement of a cell in its round, see `SweepSpec.control`."""
    turns: int = 1
    """In how many parts the window is measured, with the other backends' parts of the same round in between."""

    @property
    def cell(self) -> tuple[str, str, int, str, str, str, float, int, bool]:
        """What is replicated over rounds: backend, payload, size, codec, delivery, mode, rate, readers, twin."""
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
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for msgpack, JSON and `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a trial from what `as_dict` returned."""
        return cls(**values)


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """What one run measures: every combination of backend, size and mode, once a round.

    Raises:
        ConfigError: on construction, naming the field, its value and what is allowed.
    """

    name: str = "default"
    backends: tuple[str, ...] = ("zmq", "shm", "lmdb", "mpi", "mpi-pkl5")
    readers: int = 3
    payload: PayloadKind = "dict"
    sizes: tuple[int, ...] = (10, 100, 1000, 10000)
    """Entries of a dict; bytes of `bytes` and `ndarray`."""
    codec: CodecName = "pickle"
    delivery: Delivery = "every_message"
    modes: tuple[Mode, ...] = ("paced", "pingpong", "saturate")
    rate_per_s: float | None = None
    """Offered rate of paced trials; None chooses by size, see `AUTO_RATE_PER_S`."""
    rounds: int = 5
    budget_s: float = 105.0
    """No further round begins when it would probably end after this."""
    precision_ratio: float = 0.0
    """If above 0: rounds go on, beyond `rounds`, until the interval of every cell's median is within this share of it
    on either side, or the budget is spent."""
    control: bool = True
    """Whether one cell is measured twice in every round, by processes of its own, under a name that no table shows: how
    much the two differ is the run's noise floor (A/A)."""
    seed: int = 1
    """Of the order of cells in each round."""
    warmup_s: float = 0.03
    window_s: float = 0.15
    """Least length of the measured window; a paced trial may take longer to see enough messages."""
    depth: int = 64
    wait: WaitStrategy = "auto"
    pin: str = "none"
    """`none`: the system places the processes. `auto`: each on a core of its own, where there are enough. `0,1,…`: the
    writer on the first, reader 0 on the second, and so on, round and round. A transport's own threads follow."""
    touch: Touch = "header"
    """What a reader looks at inside the timing: `none` but the number in front, `header` and trailer, a byte of each of
    its `pages`, or `all` of it, copied out. A zero-copy read costs its reader nothing until the payload is touched."""

    def __post_init__(self) -> None:
        for field, values in (("backends", self.backends), ("sizes", self.sizes), ("modes", self.modes)):
            if not values or len(set(values)) != len(values):
                raise ConfigError(field, ",".join(map(str, values)), "one or more, each once")
        require_range("readers", self.readers, 1, 1024)
        require_choice("payload", self.payload, PAYLOAD_KINDS)
        for size in self.sizes:
            require_range("sizes", size, 0, 10**6 if self.payload == "dict" else 2**30)
        require_choice("codec", self.codec, CODEC_NAMES)
        if self.codec == "raw" and self.payload != "bytes":
            raise ConfigError("codec", self.codec, f"pickle, pickle5 or msgpack for payload {self.payload}")
        if self.codec == "msgpack" and self.payload == "ndarray":
            raise ConfigError("codec", self.codec, "pickle or pickle5 for payload ndarray")
        require_choice("delivery", self.delivery, DELIVERIES)
        for mode in self.modes:
            require_choice("modes", mode, MODES)
        if "pingpong" in self.modes and self.delivery != "every_message":
            raise ConfigError("modes", "pingpong", "paced or saturate for delivery latest_value")
        if self.rate_per_s is not None:
            require_range("rate", self.rate_per_s, 0.1, 1e6)
        require_range("rounds", self.rounds, 1, 10_000)
        require_range("budget", self.budget_s, 1, 7 * 24 * 3600)
        require_range("precision", self.precision_ratio, 0, 1)
        require_range("seed", self.seed, 0, 2**63)
        require_range("warmup_s", self.warmup_s, 0.001, 60)
        require_range("window_s", self.window_s, 0.01, 3600)
        require_range("depth", self.depth, 2, _MAX_DEPTH)
        require_choice("wait", self.wait, WAIT_STRATEGIES)
        if not _PIN.fullmatch(self.pin):
            raise ConfigError("pin", self.pin, "auto, none, or cores such as 0,1")
        require_choice("touch", self.touch, TOUCHES)

    def trial(
        self, backend: str, size: int, payload_bytes: int, mode: Mode, round_index: int, *, twin: bool = False
    ) -> TrialSpec:
        """Return the trial of one cell in one round; `payload_bytes` is the encoded size of that payload."""
        rate, window_s, turns = 0.0, self.window_s, 1
        if mode == "paced":
            rate = self.rate_per_s or min(AUTO_RATE_PER_S, AUTO_RATE_BYTES_PER_S / max(1, payload_bytes))
            window_s = max(window_s, min(AUTO_PACED_MESSAGES / rate, _AUTO_PACED_MAX_S))
            turns = self._turns(payload_bytes, rate, window_s)
        elif mode == "pingpong":
            window_s *= PINGPONG_WINDOW_RATIO
        return TrialSpec(
            backend=backend,
            payload=self.payload,
            size=size,
            payload_bytes=payload_bytes,
            codec=self.codec,
            delivery=self.delivery,
            mode=mode,
            rate_per_s=round(rate, 3),
            readers=self.readers,
            depth=self.depth,
            wait=self.wait,
            warmup_s=self.warmup_s,
            window_s=window_s,
            round_index=round_index,
            pin=self.pin,
            touch=self.touch,
            twin=twin,
            turns=turns,
        )

    def _turns(self, payload_bytes: int, rate_per_s: float, window_s: float) -> int:
        """Return how many turns a paced window has: one if a rate was asked for, which pauses would not sustain."""
        whole = self.rate_per_s is not None or self.delivery != "every_message"
        if whole or window_s > _MAX_TURNS_WINDOW_S or payload_bytes > _MAX_TURNS_PAYLOAD_BYTES:
            return 1
        return max(1, min(round(rate_per_s * window_s), round(window_s / TURN_S)))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON and `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a sweep from what `as_dict` returned."""
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)
