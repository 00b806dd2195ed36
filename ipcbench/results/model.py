"""The records of a run: results of trials by endpoint, and the run's description. Plain, frozen, fit for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ipcbench.backend import Waits
from ipcbench.spec import TrialSpec, WaitStrategy, recorded_names

SCHEMA_VERSION = 1
"""Of run.json, trials.jsonl and samples/; a reader refuses any other."""

Status = Literal["ok", "failed", "skipped"]
"""`ok`: measured, nothing lost. `failed`: tried, kept, never ranked. `skipped`: not tried, with the reason."""

Stamp = Literal["clean", "noisy", "oversubscribed"]
"""Disturbance of a trial. `oversubscribed`: more endpoints than cores. `noisy`: caused by the hypervisor, a quota,
other processes or a change of placement."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an endpoint consumed during the measured window (differences of getrusage and schedstat), and how its waits
    ended.
    """

    user_cpu_s: float
    system_cpu_s: float
    voluntary_switches_count: int
    involuntary_switches_count: int
    minor_faults_count: int
    major_faults_count: int
    max_rss_bytes: int
    """Peak of the process so far, not a difference."""
    run_queue_wait_s: float | None = None
    """Time for which the endpoint's thread was ready to run and had no core; None if the system does not report it."""
    waits: Waits | WaitStrategy | None = None
    """How many of its waits ended while it spun, while it yielded, after it slept; the name of the way if it has only
    one; None if unknown. Mode pingpong: of both channels together."""


@dataclass(frozen=True, slots=True)
class Integrity:
    """Errors that a reader counted, over warm-up, window and drain. All zero on a sound lossless channel."""

    expected_count: int = 0
    received_count: int = 0
    lost_count: int = 0
    duplicated_count: int = 0
    reordered_count: int = 0
    torn_count: int = 0
    """Header, trailer or length do not match, or the payload's hash is wrong."""
    skipped_count: int = 0
    """latest_value only: values overwritten before this reader looked; not an error."""
    hashed_count: int = 0
    """Messages whose whole payload was hashed and compared."""

    @property
    def errors_count(self) -> int:
        """Return the number of messages that were not delivered as guaranteed."""
        return self.lost_count + self.duplicated_count + self.reordered_count + self.torn_count


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of one column over *all* timed messages of the window (`samples/` may hold every Nth only)."""

    count: int
    p50_ns: float
    p90_ns: float
    p99_ns: float
    max_ns: float
    mean_ns: float


@dataclass(frozen=True, slots=True)
class EndpointResult:
    """An endpoint's part of a trial."""

    role: str
    """`writer`, `reader-0`, `reader-1` …; of a queue `worker-0` …, of a fan-in `reader`, `writer-0` …"""
    process_id: int
    messages_count: int
    """Messages of the measured window that this endpoint wrote or read."""
    first_ns: int
    """Writer: first send; reader: first receipt (CLOCK_MONOTONIC)."""
    last_ns: int
    """Writer: end of the last write; reader: last receipt."""
    call: Quantiles | None
    """Time inside `write`, or inside `read` (waiting included); None in mode pingpong."""
    latency: Quantiles | None
    """Readers: receipt − intended send time in mode paced, receipt − send time in mode pingpong. None in other modes,
    and if the clocks' error is too large."""
    decode: Quantiles | None
    """Readers: time to decode, from the decode phase; None for a writer or without such a phase."""
    usage: Usage
    integrity: Integrity
    """All zero for a writer."""
    sample_stride: int = 1
    """`samples/` holds every Nth message, where N is this."""
    gc_count: int = 0
    """Garbage collections inside the window (0 unless the backend forces one)."""
    warmup_count: int = 0
    """Messages of the warm-up."""
    steady: bool = True
    """Whether the two halves of the window agree (see docs/method.md)."""
    round_trip: Quantiles | None = None
    """Writer, mode pingpong: from a send to the last reader's reply."""
    core: int | None = None
    """Core that the process was bound to; None if the system placed it."""
    stamp_stride: int = 1
    """The clock was read around every Nth message of the window, beginning with the first; the last is one of them."""
    floor_ns: float | None = None
    """What the harness's loop of this window cost per message over no transport, in the same process right after it;
    None in mode pingpong."""


MAX_PLACEMENT_RATIO = 1.6
"""Placement probes that differ by more than this saw other cores: near to each other, or far apart."""


def placement_differs(probes_ns: Sequence[float]) -> bool:
    """Return whether placement probes, in ns, saw cores near to each other as well as cores far apart."""
    return max(probes_ns) > MAX_PLACEMENT_RATIO * min(probes_ns)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the machine did around one trial."""

    load_1min: float
    steal_ratio: float
    """Share of the machine's CPU time that the hypervisor gave to others during the trial."""
    throttled_s: float
    """Time for which the cgroup CPU quota stopped processes during the trial."""
    probe_before_ns: float | None
    """Half round trip of a spinning cache-line ping-pong of writer and reader 0 just before the trial; None if
    impossible."""
    probe_after_ns: float | None
    clock_offset_ns: float
    """Largest |offset| of a worker's clock to the coordinator's; 0 if all workers share one clock."""
    clock_delay_ns: int | float
    """Twice the error of that offset, at least the delay of an answer about it; 0 if all workers share one clock."""
    clocks_agree: bool
    """False if there is no one-way latency because of the clocks; a note then says why."""
    clock_error_ns: float = 0.0
    """Largest error of a one-way time due to the clocks: the writer's and a reader's; 0 if they share one clock."""
    clock_offsets_ns: tuple[float, ...] = ()
    """By endpoint, the writer first: what was subtracted from its times. Empty if all share one clock."""
    others_cpu_ratio: float | None = None
    """Share of the machine's CPU time that processes other than the run's own took during the trial; None if
    unknown."""


@dataclass(frozen=True, slots=True)
class PatternWindow:
    """One window of a queue or fan-in."""

    load_ratio: float | None
    """Offered rate as a share of the rate of the trial's first window; None for that one, which is flat out."""
    offered_per_s: float | None
    """By all writers together; None flat out."""
    rate_per_s: float
    """Flat out, what the writers began to write within the planned window, of which other windows offer a share; at a
    share, what was due in the window and arrived in it."""
    is_held: bool
    """Whether the writers could hold the offered rate; true flat out."""
    peer_counts: tuple[int, ...]
    """Messages of the window, whenever they arrived, by worker of a queue, by writer of a fan-in."""
    wait: Quantiles | None = None
    """Receipt − intended send time of all messages; None flat out."""
    slowest_p99_ns: float | None = None
    """Fan-in: the p99 of that time of the writer with the highest; None flat out, and if one sent too few for a p99."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of the messages of a queue of which a worker was killed, counted by their numbers."""

    sent_count: int
    lost_count: int
    """Nobody began to work on them."""
    repeated_count: int
    """Two workers began to work on them."""
    redelivered_count: int | None
    """Given to another worker after the death, begun or not; None if the backend does not count them."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """What one call of rpc at a time costs beside a plain round trip with the same transport, in turns."""

    plain: Quantiles
    """Of round trips of plain messages with as many bytes, and the same work between."""
    call: Quantiles


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One line of trials.jsonl."""

    trial_id: int
    """From 0, in the order of execution; names the file in samples/."""
    spec: TrialSpec
    status: Status
    reason: str
    """Why it failed or was skipped, with role, exit code and last output; empty if ok."""
    started_unix_s: float
    duration_s: float
    notes: tuple[str, ...] = ()
    """Stamps: `oversubscribed`, `noisy: …`, `unsteady`, `closed loop` …"""
    endpoints: tuple[EndpointResult, ...] = ()
    conditions: Conditions | None = None
    throughput_per_s: float | None = None
    """Messages validated by every reader between first and last receipt, N − 1 intervals; of a queue or fan-in, the
    rate of the first window. None unless mode saturate."""
    achieved_rate_per_s: float | None = None
    """Rate at which the writer sent; None unless mode paced."""
    turn_counts: tuple[int, ...] = ()
    """Messages of each turn that were timed; a single number if the window was one piece."""
    kept_counts: tuple[int, ...] = ()
    """Samples of each turn that are stored; empty if the columns were thinned as a whole, by `sample_stride`."""
    turn_rates_per_s: tuple[float, ...] = ()
    """Like `throughput_per_s`, for each turn; empty unless mode saturate, in turns."""
    has_samples: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further measured facts; names end with the unit."""
    windows: tuple[PatternWindow, ...] = ()
    """Of a queue, fan-in or rpc: flat out, then at each load."""
    recovery: Recovery | None = None
    """Of a queue of which a worker was killed."""
    cost: CallCost | None = None
    """Of rpc."""

    @property
    def writer(self) -> EndpointResult | None:
        """Return the writer's part; None if the trial ended before it."""
        return next((endpoint for endpoint in self.endpoints if endpoint.role == "writer"), None)

    @property
    def readers(self) -> tuple[EndpointResult, ...]:
        """Return the readers' parts."""
        return tuple(endpoint for endpoint in self.endpoints if endpoint.role != "writer")

    @property
    def main_figure(self) -> float | None:
        """Return the figure that the trial is judged by; None if it has none.

        Messages per second (saturate), median round trip in ns (pingpong), or the mean over the readers of their median
        one-way latency in ns (paced).
        """
        if self.spec.mode == "saturate":
            return self.throughput_per_s
        if self.spec.mode == "pingpong":
            return self.writer.round_trip.p50_ns if self.writer and self.writer.round_trip else None
        medians = [reader.latency.p50_ns for reader in self.readers if reader.latency is not None]
        return sum(medians) / len(medians) if medians else None

    @property
    def stamp(self) -> Stamp:
        """Return the most severe of the trial's stamps; docs/method.md has the thresholds."""
        if "oversubscribed" in self.notes:
            return "oversubscribed"
        return "noisy" if any(note.startswith("noisy") for note in self.notes) else "clean"


@dataclass(frozen=True, slots=True)
class Floor:
    """The harness's own cost on this machine, measured in the same run."""

    writer_ns: float
    """Per message: the writer's loop over a transport that does nothing, paced, every message stamped."""
    reader_ns: float
    """Per message: the reader's loop over a transport that does nothing, every message stamped."""
    clock_ns: float
    """One reading of the clock."""
    clock_resolution_ns: float
    memcpy_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """Payload size in bytes (as text) → bandwidth of one core's memory copy of that size, with both buffers in its
    caches as far as they fit."""
    memcpy_cold_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """The same with both buffers evicted from the caches."""
    wakeup_ns: float | None = None
    """Half round trip of a byte through pipes between two processes that sleep until it arrives; None if unknown."""
    saturated_writer_ns: float | None = None
    """As `writer_ns`, of the loop for a saturated window of short messages; None in runs that stamped every message."""
    saturated_reader_ns: float | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """run.json: what was to be measured, where, and how it ended."""

    run_id: str
    schema_version: int
    started_unix_s: float
    command: tuple[str, ...]
    """Command line that reproduces the run; empty for a library call."""
    sweep: Mapping[str, Any]
    """`SweepSpec.as_dict()`."""
    payloads: tuple[Mapping[str, Any], ...]
    """Per size: `size`, `payload_bytes`, `encode_ns`."""
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    skipped: Mapping[str, str]
    """Backend → why it was left out of the run, and how to get it."""
    floor: Floor | None = None
    status: Literal["running", "complete", "interrupted", "out of budget"] = "running"
    rounds_done: int = 0
    variant_versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variant → versions of its Python, its ipcbench and the packages that it uses; empty without variants."""
    capabilities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Backend that was named as `module:Class` → `Capabilities.as_dict()`: reading a run imports no such module."""
    hosts: tuple[Mapping[str, Any], ...] = ()
    """Of a run on several hosts, each one's `machine`, `versions` and `floor`; their names are not kept."""
    place: str = ""
    """Which endpoints ran on which of them: `spread`, `pack`, or `writer=host N`."""

    @property
    def planned_backends(self) -> tuple[str, ...]:
        """Return the names by which trials of the sweep have its backends."""
        return recorded_names(map(str, self.sweep.get("backends", ())), tuple(self.variant_versions))

    @property
    def planned_rounds(self) -> int:
        """Return the rounds of the sweep; 0 if they are not known."""
        rounds = self.sweep.get("rounds")
        return rounds if isinstance(rounds, int) else 0
