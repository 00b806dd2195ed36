"""A sweep: what a run measures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from ipcbench.errors import ConfigError
from ipcbench.spec.channel import DELIVERIES, MAX_DEPTH, WAIT_STRATEGIES, Delivery, WaitStrategy
from ipcbench.spec.checks import require_choice, require_range, require_some
from ipcbench.spec.trial import (
    CODEC_NAMES,
    COUNTED_PAYLOADS,
    MAX_PAYLOAD_BYTES,
    MODES,
    PAYLOAD_KINDS,
    SAMPLE,
    TOUCHES,
    TRIPS,
    VARIANT_MARK,
    WORKS,
    CodecName,
    Mode,
    Touch,
    TrialSpec,
    Trips,
    Work,
    work_name,
)
from ipcbench.util.reference import is_reference
from ipcbench.util.units import format_duration_ns

_PIN = re.compile(r"auto|none|\d+(,\d+)*")
_VARIANT_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_LONGEST_BUDGET_S = 7 * 24 * 3600
_MAX_NEIGHBOURS = 1024
_MAX_PEERS = 64
_MAX_BATCH = 4096
USUAL_LOADS = (0.5, 0.8, 0.95)
USUAL_P99_LIMIT_S = 0.001
_MAX_IN_FLIGHT = 1024
_MAX_SERVICE_S = 0.2
_OF_CALLS = ("in_flight", "reply_sizes", "services_s", "p99_limit_s")
MAX_PATTERN_WINDOW_S = 5.0
"""The endpoints of a queue or fan-in keep the times of all messages."""

_CODECS_OF: Mapping[str, tuple[CodecName, ...]] = {
    "dict": ("pickle", "pickle5", "msgpack"),
    "records": ("pickle", "pickle5", "numpy"),
    "bytes": ("pickle", "pickle5", "msgpack", "raw"),
    "ndarray": ("pickle", "pickle5", "numpy"),
}

AUTO_RATE_PER_S = 1000.0
AUTO_RATE_BYTES_PER_S = 100e6
"""Without `rate`, a paced trial offers the lower of these two, so that every transport idles between messages."""

PINGPONG_WINDOW_RATIO = 0.6
"""Share of `window_s` for round trips, which follow one another without pauses."""

LOOK_WINDOW_S, LOOK_WARMUP_S = 0.04, 0.005
LOOK_SAMPLES = 20
"""Of a first look: the longest window, the warm-up, and the fewest samples of a paced window that count, over all
readers, for which it may be longer: a median takes so many."""

AUTO_PACED_MESSAGES = 150
TAIL_MESSAGES = 400
"""Of a window in one piece for the tail: enough that a stall of 50 ms fits into it with what came before."""
MIN_TAIL_MESSAGES = 100
"""There is no such window if it would have fewer messages, since p99 needs 1,000."""
_TAIL_ROUNDS, _TAIL_EVERY = 3, 2
_AUTO_TURN_MESSAGES = 25
_AUTO_TURNS_S, _AUTO_PACED_S = 0.25, 0.4
"""A paced window is longer than asked to see `AUTO_PACED_MESSAGES`, but not longer than the second of these; in turns,
not longer than the first, unless that is fewer messages than `_AUTO_TURN_MESSAGES`."""

TURN_S = 0.04
"""Approximate length of a turn, after which the next backend is measured."""
UNCOUNTED_OF_TURN = 3
"""Messages of a paced turn that enter no figure, at most half of it: on a machine whose caches and cores others have
just used, they take several times as long as those after them."""
_LEAST_TURNS = 2
_MAX_TURNS_WINDOW_S = 60.0
_MAX_TURNS_PAYLOAD_BYTES = 2**25
"""Limit of turns: the channels of all backends that take turns are open at the same time."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A Python interpreter whose backends are measured beside the same backends of other interpreters."""

    name: str
    """Letters, digits, `_`, `.` and `-`."""
    python: str
    """Path of the interpreter, or of a program that takes the same arguments."""

    def __str__(self) -> str:
        """Return it as the command line has it."""
        return f"{self.name}={self.python}"


def recorded_names(backends: Iterable[str], variants: Sequence[str]) -> tuple[str, ...]:
    """Return the names by which trials have these backends: `shm`, or with variants `shm@base` and `shm@head`."""
    endings = [f"{VARIANT_MARK}{name}" for name in variants] or [""]
    return tuple(f"{name}{ending}" for name in backends for ending in endings)


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """What a run measures: every combination of backend, variant, size and mode, once per round.

    Raises:
        ConfigError: on construction, naming the field, its value and what is allowed.
    """

    name: str = "default"
    backends: tuple[str, ...] = ("zmq", "shm", "lmdb", "mpi", "mpi-pkl5", "mpi-buffer")
    base: str = ""
    """One of `backends`, maybe what you use today: sentences say what the others gain over it."""
    readers: int = 3
    payload: str = "dict"
    """A kind; `module:function`, which is called with a size and returns an object; or `sample`."""
    sizes: tuple[int, ...] = (10, 100, 1000, 10000)
    """Entries of a dict or of records; arguments of the user's function; otherwise bytes."""
    sample: str = ""
    """Path of the file with the object to send, if the payload is `sample`."""
    codec: str = "pickle"
    """A name, or `module:Class`."""
    delivery: Delivery = "every_message"
    modes: tuple[Mode, ...] = ("paced", "pingpong", "saturate")
    rate_per_s: float | None = None
    """Offered rate of paced trials; None chooses by size, see `AUTO_RATE_PER_S`."""
    trips: Trips = "auto"
    """Round trips: `closed`, each follows the reply to the one before; `paced`, on the schedule of paced messages.
    `auto` is paced between hosts, where that is the latency that needs no second clock, and else closed."""
    rounds: int = 20
    """At most; see `budget_s`."""
    budget_s: float = 100.0
    """How long the run measures, also inside a round: no batch begins of which less than half would probably fit."""
    precision_ratio: float = 0.0
    """If above 0: rounds continue beyond `rounds` until the interval of every cell's median lies within this share of
    it on either side, or the budget is spent."""
    control: bool = True
    """Whether one cell is measured a second time in every round, by separate processes, as an A/A control that no table
    shows: a clear difference of the two means that small differences in this run are doubtful."""
    look: bool = True
    """Whether the first of several rounds is short, for a first look: its windows take about `LOOK_WINDOW_S`, with no
    decode phase, no placement probe, no control and no tail."""
    tail: bool = True
    """Whether paced cells that take turns are measured once more in some rounds, in one piece, for p99."""
    seed: int = 1
    """Seed of the order of cells in each round."""
    warmup_s: float = 0.015
    window_s: float = 0.25
    """Least length of the measured window; a paced trial may take longer to see enough messages."""
    depth: int = 64
    wait: WaitStrategy = "auto"
    pin: str = "none"
    """`none`: the system places the processes. `auto`: each gets its own core if there are enough. `0,1,…`: the writer
    runs on the first core, reader 0 on the second, and so on, cyclically. A transport's own threads follow."""
    touch: Touch = "header"
    """What a reader touches while it is timed: `none` (only the sequence number), `header` and trailer, one byte of
    each of the message's `pages`, or `all` of it, copied out. A zero-copy read costs nothing until the payload is
    touched."""
    variants: tuple[Variant, ...] = ()
    """Interpreters that run the backends, each by its own code, as `shm@base` and `shm@head`; none: this process's."""
    neighbours: tuple[int, ...] = (0,)
    """How many processes keep a core busy each while a trial is measured: every cell is measured beside each of these
    numbers of them. The A/A control runs beside the first."""
    pattern: Work = "broadcast"
    """All but a broadcast have trials of their own: `modes`, `rate_per_s`, `control`, `look`, `tail` do not apply."""
    peers: tuple[int, ...] = ()
    """Numbers of workers of a queue, of writers of a fan-in, or of clients of rpc; empty for a broadcast."""
    batches: tuple[int, ...] = (1,)
    """Of a queue or fan-in: how many messages a writer hands over together. At a given rate, it waits until the last of
    them is due."""
    loads: tuple[float, ...] = USUAL_LOADS
    """Of a queue, fan-in or rpc: the shares of what it carries flat out at which times are measured."""
    in_flight: tuple[int, ...] = (1,)
    """Of rpc: how many calls a client may have in flight."""
    reply_sizes: tuple[int, ...] = ()
    """Of rpc: bytes of the array in a reply; empty: as many as in the request."""
    services_s: tuple[float, ...] = (0.0,)
    """Of rpc: for how long the method works."""
    p99_limit_s: float = USUAL_P99_LIMIT_S
    """Of rpc: the tables say how many calls per second it takes with a p99 of at most this."""

    def __post_init__(self) -> None:
        for field in ("backends", "sizes", "modes", "neighbours"):
            require_some(field, getattr(self, field))
        if self.base:
            require_choice("base", self.base, self.backends)
        require_range("readers", self.readers, 1, 1024)
        self._require_payload()
        require_choice("delivery", self.delivery, DELIVERIES)
        for mode in self.modes:
            require_choice("modes", mode, MODES)
        if "pingpong" in self.modes and self.delivery != "every_message":
            raise ConfigError("modes", "pingpong", "paced or saturate for delivery latest_value")
        if self.rate_per_s is not None:
            require_range("rate", self.rate_per_s, 0.1, 10**6)
        require_range("rounds", self.rounds, 1, 10_000)
        if not 1 <= self.budget_s <= _LONGEST_BUDGET_S:
            raise ConfigError("budget", f"{self.budget_s:g} s", "1 s to 7 days")
        require_range("precision", self.precision_ratio, 0, 1)
        require_range("seed", self.seed, 0, 2**63)
        require_range("warmup_s", self.warmup_s, 0.001, 60)
        require_range("window_s", self.window_s, 0.01, 3600)
        require_range("depth", self.depth, 2, MAX_DEPTH)
        require_choice("wait", self.wait, WAIT_STRATEGIES)
        if not _PIN.fullmatch(self.pin):
            raise ConfigError("pin", self.pin, "auto, none, or cores such as 0,1")
        require_choice("touch", self.touch, TOUCHES)
        require_choice("trips", self.trips, TRIPS)
        require_range("neighbours", min(self.neighbours), 0, _MAX_NEIGHBOURS)
        require_range("neighbours", max(self.neighbours), 0, _MAX_NEIGHBOURS)
        self._require_variants()
        self._require_pattern()

    def _require_pattern(self) -> None:
        require_choice("pattern", self.pattern, WORKS)
        if self.pattern == "broadcast":
            self._require_usual("peers", "batches", "loads", *_OF_CALLS)
            return
        peers = {"queue": "readers", "fan_in": "writers"}.get(self.pattern, "clients")
        for field, name, low, high in (
            ("peers", peers, 1, _MAX_PEERS), ("batches", "batches", 1, _MAX_BATCH), ("loads", "loads", 0.01, 1.0),
        ):  # fmt: skip
            require_some(name, getattr(self, field))
            for value in getattr(self, field):
                require_range(name, value, low, high)
        require_range("window_s", self.window_s, 0.01, MAX_PATTERN_WINDOW_S)
        if self.delivery != "every_message":
            raise ConfigError("delivery", self.delivery, f"every_message for {work_name(self.pattern)}")
        if self.variants:
            allowed = f"none: {work_name(self.pattern)} is measured without variants"
            raise ConfigError("variant", str(self.variants[0]), allowed)
        if self.pattern == "rpc":
            self._require_calls()
        else:
            self._require_usual(*_OF_CALLS)

    def _require_calls(self) -> None:
        self._require_usual("batches", "touch", "depth")
        if self.payload != "bytes":
            raise ConfigError("payload", self.payload, "bytes for rpc, whose requests and replies are arrays of them")
        for field, values, low, high in (("in_flight", self.in_flight, 1, _MAX_IN_FLIGHT),):
            require_some(field, values)
            for value in values:
                require_range(field, value, low, high)
        require_some("services_s", self.services_s)
        for time_s in self.services_s:
            if not 0 <= time_s <= _MAX_SERVICE_S:
                raise ConfigError("services_s", format_duration_ns(1e9 * time_s), f"0 to {1e3 * _MAX_SERVICE_S:g}ms")
        if self.codec != "raw":
            raise ConfigError("codec", self.codec, "raw for rpc, which packs what it sends in its own way")
        if self.reply_sizes:
            require_some("reply_sizes", self.reply_sizes)
        for size in self.reply_sizes:
            require_range("reply_sizes", size, 0, MAX_PAYLOAD_BYTES)
        require_range("p99_limit_s", self.p99_limit_s, 1e-6, 60)

    def _require_usual(self, *names: str) -> None:
        """Raise ConfigError unless options that do not apply are as nobody gave them."""
        for name in names:
            if (value := getattr(self, name)) != self.__dataclass_fields__[name].default:
                values = value if isinstance(value, tuple) else (value,)
                words = (format_duration_ns(1e9 * each) if name.endswith("_s") else f"{each}" for each in values)
                raise ConfigError(name, ",".join(words), f"nothing beside pattern {work_name(self.pattern)}")

    @property
    def most_readers(self) -> int:
        """The most readers that a channel of the sweep has."""
        return {"broadcast": self.readers, "queue": max(self.peers, default=1)}.get(self.pattern, 1)

    @property
    def most_writers(self) -> int:
        """The most writers that a channel of the sweep has."""
        return max(self.peers) if self.pattern in {"fan_in", "rpc"} else 1

    def _require_payload(self) -> None:
        """Check payload, sizes and codec; whether a codec can encode the user's own object shows when it does."""
        if self.is_own_payload:
            if (self.payload == SAMPLE) != bool(self.sample):
                raise ConfigError("sample", self.sample, "the path of a file, with payload `sample` and no other")
        else:
            require_choice("payload", self.payload, (*PAYLOAD_KINDS, "module:function"))
        for size in self.sizes:
            require_range("sizes", size, 0, 10**6 if self.payload in COUNTED_PAYLOADS else MAX_PAYLOAD_BYTES)
        if not is_reference(self.codec):
            require_choice("codec", self.codec, (*CODEC_NAMES, "module:Class"))
            codecs = _CODECS_OF.get(self.payload, CODEC_NAMES)
            if self.codec not in codecs:
                raise ConfigError(
                    "codec", self.codec, f"{', '.join(codecs)} or module:Class for payload {self.payload}"
                )

    @property
    def is_own_payload(self) -> bool:
        """Whether what is sent comes from the user's function or file."""
        return self.payload == SAMPLE or is_reference(self.payload)

    @property
    def payload_label(self) -> str:
        """What the trials' records call the payload; a sample has the name of its file, without its folder."""
        return f"{SAMPLE} {Path(self.sample).name}" if self.sample else self.payload

    def _require_variants(self) -> None:
        names = [variant.name for variant in self.variants]
        for variant in self.variants:
            if not _VARIANT_NAME.fullmatch(variant.name):
                raise ConfigError("variant", str(variant), "NAME=PYTHON, with a NAME of letters, digits, '_', '.', '-'")
            if names.count(variant.name) > 1:
                raise ConfigError("variant", variant.name, "each name once")
        if len(names) == 1:
            allowed = "two or more, of which the first is the base; without any, this interpreter is measured"
            raise ConfigError("variant", str(self.variants[0]), allowed)

    def trial(
        self,
        backend: str,
        size: int,
        payload_bytes: int,
        mode: Mode,
        round_index: int,
        *,
        twin: bool = False,
        neighbours: int = 0,
    ) -> TrialSpec:
        """Return the trial of a cell in a round; `payload_bytes` is the encoded size of its payload."""
        rate, window_s = 0.0, self.window_s
        if mode == "paced" or (mode == "pingpong" and self.trips == "paced"):
            rate = self.rate_per_s or min(AUTO_RATE_PER_S, AUTO_RATE_BYTES_PER_S / max(1, payload_bytes))
            in_turns = self.rate_per_s is None and self.delivery == "every_message"
            least = _AUTO_TURN_MESSAGES if in_turns else AUTO_PACED_MESSAGES
            window_s = max(window_s, min(AUTO_PACED_MESSAGES / rate, _AUTO_TURNS_S), min(least / rate, _AUTO_PACED_S))
        elif mode == "pingpong":
            window_s *= PINGPONG_WINDOW_RATIO
        return TrialSpec(
            backend=backend,
            payload=self.payload_label,
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
            turns=self._turns(payload_bytes, rate, window_s),
            neighbours=neighbours,
        )

    def pattern_trials(
        self, backend: str, size: int, payload_bytes: int, round_index: int, neighbours: int = 0
    ) -> tuple[TrialSpec, ...]:
        """Return the trials of a queue, fan-in or rpc with one backend and payload in a round: one for each number of
        peers and each batch, and of a queue with several workers one in which the first of them is killed.
        """
        plain = self.trial(backend, size, payload_bytes, "saturate", round_index, neighbours=neighbours)
        windows = 1 + len(self.loads) + (self.pattern == "rpc")
        trials = [
            replace(
                plain,
                pattern=self.pattern,
                readers=peers if self.pattern == "queue" else 1,
                writers=1 if self.pattern == "queue" else peers,
                batch=batch,
                in_flight=in_flight,
                depth=max(2, in_flight) if self.pattern == "rpc" else self.depth,
                reply_bytes=reply_bytes,
                service_ns=round(1e9 * service_s),
                loads=self.loads,
                window_s=self.window_s * windows,
                turns=windows,
            )
            for peers in self.peers
            for batch in self.batches
            for in_flight in self.in_flight
            for reply_bytes in (self.reply_sizes or (payload_bytes,) if self.pattern == "rpc" else (0,))
            for service_s in self.services_s
        ]
        if self.pattern == "queue" and self.most_readers > 1:
            most = next(trial for trial in trials if trial.readers == self.most_readers)
            trials.append(replace(most, loads=(), window_s=self.window_s, turns=1, kill=True))
        return tuple(trials)

    def is_look(self, round_index: int) -> bool:
        """Return whether a round is the first look."""
        return self.look and self.rounds > 1 and not round_index and self.pattern == "broadcast"

    def round_has_tails(self, round_index: int) -> bool:
        """Return whether a round also has windows in one piece: the first three after the look, then every second."""
        number = round_index - self.is_look(0)
        return 0 <= number < _TAIL_ROUNDS or (number > 0 and number % _TAIL_EVERY == 0)

    def look_trial(self, trial: TrialSpec) -> TrialSpec:
        """Return the short trial that a first look makes of this one."""
        window_s = min(trial.window_s, LOOK_WINDOW_S * (PINGPONG_WINDOW_RATIO if trial.mode == "pingpong" else 1.0))
        turns = trial.turns
        if trial.is_paced:
            least = math.ceil(LOOK_SAMPLES / trial.readers)
            longest_s = (least + _LEAST_TURNS * UNCOUNTED_OF_TURN) / trial.rate_per_s
            window_s = min(trial.window_s, max(window_s, longest_s))
            fitting = int((round(window_s * trial.rate_per_s) - least) / UNCOUNTED_OF_TURN)
            turns = min(turns, max(_LEAST_TURNS, fitting))
        turns = min(turns, self._turns(trial.payload_bytes, trial.rate_per_s, window_s))
        return replace(trial, window_s=window_s, warmup_s=min(trial.warmup_s, LOOK_WARMUP_S), turns=turns, look=True)

    def tail_trial(self, paced: TrialSpec) -> TrialSpec | None:
        """Return the trial for the tail that goes with a paced one in its round; None if there is none to make."""
        in_turns = paced.mode == "paced" and paced.turns > 1 and not paced.twin
        if not (self.tail and in_turns and self.round_has_tails(paced.round_index)):
            return None
        window_s = max(paced.window_s, min(TAIL_MESSAGES / paced.rate_per_s, _AUTO_PACED_S))
        if paced.rate_per_s * window_s < MIN_TAIL_MESSAGES:
            return None
        return replace(paced, window_s=window_s, turns=1, tail=True)

    def _turns(self, payload_bytes: int, rate_per_s: float, window_s: float) -> int:
        """Return the number of turns of a window; `rate_per_s` is 0 for a closed loop."""
        whole = self.delivery != "every_message" or (rate_per_s and self.rate_per_s is not None)
        if whole or window_s > _MAX_TURNS_WINDOW_S or payload_bytes > _MAX_TURNS_PAYLOAD_BYTES:
            return 1
        turns = max(_LEAST_TURNS, round(window_s / TURN_S))
        return max(1, min(turns, round(rate_per_s * window_s)) if rate_per_s else turns)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON and `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a sweep from what `as_dict` returned."""
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        if "variants" in plain:
            variants = plain["variants"]
            plain["variants"] = tuple(each if isinstance(each, Variant) else Variant(**each) for each in variants)
        return cls(**plain)
