"""What a summary is made of: settings, cells with their figures, the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ipcbench.analysis.summary.figures import CellFigures
from ipcbench.results.model import RunInfo, TrialResult
from ipcbench.spec import CodecName, Delivery, PayloadKind, Touch, WaitStrategy
from ipcbench.stats.estimates import Interval

CellStatus = Literal["ok", "failed", "skipped"]
Metric = Literal["latency", "round trip", "throughput"]
"""What cells of a setting are ranked by: the first of these that was measured."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What cells must have in common to be compared."""

    delivery: Delivery
    payload: PayloadKind
    size: int
    """Entries of a dict; bytes of `bytes` and `ndarray`."""
    payload_bytes: int
    """Encoded size."""
    codec: CodecName
    readers: int
    depth: int
    wait: WaitStrategy
    pin: str
    touch: Touch


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One backend at one setting. Figures are None where they were not measured; a cell that is not ok has none."""

    setting: Setting
    backend: str
    status: CellStatus
    reason: str
    """Why it has no figures; empty if ok."""
    rank: int | None
    """By the setting's metric; equal where there is no clear difference."""
    ratio: Interval | None
    """How many times as slow as the best of the setting, by the same metric; 1 for the best itself."""
    latency_p50_ns: Interval | None
    latency_p99_ns: Interval | None
    """None also if there are too few samples for it."""
    round_trip_p50_ns: Interval | None
    round_trip_p99_ns: Interval | None
    throughput_per_s: float | None
    """Messages per second to every reader."""
    throughput_interval_per_s: Interval | None
    throughput_bytes_per_s: float | None
    """Payload bytes per second to every reader."""
    round_trip_rank: int | None
    throughput_rank: int | None
    read_p50_ns: float | None
    write_p50_ns: float | None
    decode_p50_ns: float | None
    writer_cpu_ns: float | None
    """Per message."""
    reader_cpu_ns: float | None
    latency_floor_ratio: float | None
    """Latency p50 as a multiple of what the harness itself costs (writer's and reader's loop)."""
    memory_bandwidth_ratio: float | None
    """Payload bytes per second to one reader as a share of one core's memory copy of that size, caches warm."""
    cold_memory_bandwidth_ratio: float | None
    """The same, of a copy between buffers that no cache holds."""
    rounds_count: int
    """Rounds with a trial that is ok."""
    samples_count: int
    """Latencies over all readers and rounds; of round trips if only those were measured."""
    trials_count: int
    clean_count: int
    """Sound trials that are stamped neither noisy nor oversubscribed."""
    failed_count: int
    notes: tuple[str, ...]
    figures: CellFigures | None = field(default=None, compare=False, repr=False)
    """What the intervals were made from; None of a cell that is not ok."""
    trials: tuple[TrialResult, ...] = field(default=(), compare=False, repr=False)
    """Those that the figures come from: the sound ones."""


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """The cells of one setting."""

    setting: Setting
    ranked_by: Metric | None
    """None if no cell has figures."""
    rate_per_s: float | None
    """Offered rate of the paced trials."""
    cells: tuple[CellSummary, ...]
    """Best first; those without figures last, with their reason."""


@dataclass(frozen=True, slots=True)
class Control:
    """How a cell differs from itself."""

    metric: Metric
    backend: str
    payload_bytes: int
    ratio: Interval
    """Its figure by the second name / by the first: geometric mean over the rounds."""

    @property
    def agrees(self) -> bool:
        """Return whether the two may be the same, as they are."""
        return self.ratio.low <= 1.0 <= self.ratio.high


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures."""

    info: RunInfo
    settings: tuple[SettingSummary, ...]
    """By delivery, payload and size."""
    noise_ratios: Mapping[Metric, float]
    """By how much two measurements of one and the same cell differ in this run, as a ratio − 1; a metric is absent if
    no cell of it has two rounds."""
    controls: tuple[Control, ...]
    """How the cell that was measured twice differs from itself, by metric."""
    placement_ns: tuple[float, float] | None
    """Least and largest placement probe of the run."""
    problems: tuple[str, ...]


def setting_of(trial: TrialResult) -> Setting:
    """Return the setting that a trial belongs to."""
    spec = trial.spec
    return Setting(
        delivery=spec.delivery,
        payload=spec.payload,
        size=spec.size,
        payload_bytes=spec.payload_bytes,
        codec=spec.codec,
        readers=spec.readers,
        depth=spec.depth,
        wait=spec.wait,
        pin=spec.pin,
        touch=spec.touch,
    )
