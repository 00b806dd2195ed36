"""The data of a summary: settings, cells with their figures, the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self

from ipcbench.analysis.summary.figures import CellFigures
from ipcbench.analysis.summary.waits import WaitShares
from ipcbench.results.model import RunInfo, TrialResult
from ipcbench.spec import Delivery, Touch, WaitStrategy
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, Interval
from ipcbench.stats.prior import VariancePrior

CellStatus = Literal["ok", "failed", "skipped"]
Metric = Literal["latency", "round trip", "throughput"]
"""What cells are ranked by, see `preferred_metrics`."""
RESOLVED_RATIO = 2.0
"""A p99 whose interval spans more than this is not given as one figure."""
KNOWN_TAIL_RATIO = 10.0
"""Of a p99 whose interval spans more than this, only the lower end is shown."""
METRIC_WORDS: Mapping[Metric, str] = {
    "latency": "one-way latency",
    "round trip": "round trip",
    "throughput": "throughput",
}


def preferred_metrics(info: RunInfo) -> tuple[Metric, ...]:
    """Return by what the cells of a setting are ranked: by the first of these that was measured. Between hosts, round
    trips come first, since they need no second clock.
    """
    return ("round trip", "latency", "throughput") if info.hosts else ("latency", "round trip", "throughput")


def time_of(figures: CellFigures, metric: Metric) -> Estimate | None:
    """Return the time of a cell by a metric; for throughput that is the time per message."""
    if metric == "throughput":
        return figures.message_time
    return figures.latency_p50 if metric == "latency" else figures.round_trip_p50


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What cells must have in common to be ranked against each other."""

    delivery: Delivery
    neighbours: int
    payload: str
    size: int
    """See `TrialSpec.size`."""
    payload_bytes: int
    """Encoded size."""
    codec: str
    readers: int
    depth: int
    wait: WaitStrategy
    pin: str
    touch: Touch

    @classmethod
    def of(cls, trial: TrialResult) -> Self:
        """Return the setting that a trial belongs to."""
        return cls(**{field.name: getattr(trial.spec, field.name) for field in fields(cls)})

    def without_size(self) -> Self:
        """Return the setting with size 0: equal for settings that differ only in size."""
        return replace(self, size=0, payload_bytes=0)


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One backend at one setting. Figures that were not measured are None; a cell that is not ok has none."""

    setting: Setting
    backend: str
    status: CellStatus
    reason: str
    """Why it has no figures; empty if ok."""
    rank: int | None = None
    """By the setting's metric; equal ranks have no clear difference."""
    ratio: Interval | None = None
    """How many times as slow as the best of the setting, by the same metric; 1 for the best itself. The intervals of
    a setting hold together at 95 %, so that they decide the ranks."""
    rounds_to_decide: int | None = None
    """How many more rounds would probably tell it from the best; 0 if they are told apart, None if that is unknown."""
    other_ratios: Mapping[Metric, Interval] = field(default_factory=dict)
    """Like `ratio`, by the other metrics by which it has a rank, and three rounds in common with the best."""
    other_rounds_to_decide: Mapping[Metric, int | None] = field(default_factory=dict)
    """Like `rounds_to_decide`, by the other metrics."""
    compared_rounds_count: int | None = None
    """Rounds that it has in common with the best; None if it was not compared."""
    latency_p50_ns: Interval | None = None
    latency_p99_ns: Interval | None = None
    """None also if there are too few samples."""
    round_trip_p50_ns: Interval | None = None
    round_trip_p99_ns: Interval | None = None
    throughput_per_s: float | None = None
    """Messages per second to every reader."""
    throughput_interval_per_s: Interval | None = None
    throughput_bytes_per_s: float | None = None
    """Payload bytes per second to every reader."""
    round_trip_rank: int | None = None
    throughput_rank: int | None = None
    read_p50_ns: float | None = None
    write_p50_ns: float | None = None
    decode_p50_ns: float | None = None
    writer_cpu_ns: float | None = None
    """Per message."""
    reader_cpu_ns: float | None = None
    latency_floor_ratio: float | None = None
    """Latency p50 as a multiple of the harness floor (writer's and reader's loop)."""
    memory_bandwidth_ratio: float | None = None
    """Payload bytes per second to one reader as a share of one core's memory copy of that size, caches warm."""
    cold_memory_bandwidth_ratio: float | None = None
    """The same for a copy between buffers that no cache holds."""
    latency_waits: WaitShares | None = None
    """How the readers waited in the paced trials; None if unknown."""
    round_trip_waits: WaitShares | None = None
    throughput_waits: WaitShares | None = None
    rounds_count: int = 0
    """Rounds with a sound trial."""
    samples_count: int = 0
    """Latencies over all readers and rounds; round trips if only those were measured."""
    trials_count: int = 0
    clean_count: int = 0
    """Sound trials stamped neither noisy nor oversubscribed."""
    failed_count: int = 0
    wrong_count: int = 0
    """Failed trials in which messages were lost, duplicated, reordered or torn."""
    notes: tuple[str, ...] = ()
    figures: CellFigures | None = field(default=None, compare=False, repr=False)
    """The estimates behind the intervals; None for a cell that is not ok."""
    trials: tuple[TrialResult, ...] = field(default=(), compare=False, repr=False)
    """The sound trials, from which the figures come."""

    def drawn(self, value: Interval) -> Interval:
        """Return a figure as charts draw it: without an interval if there are fewer than three rounds."""
        if self.rounds_count >= MIN_CLAIM_ROUNDS:
            return value
        return Interval(value.estimate, value.estimate, value.estimate)


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """The cells of one setting, ranked."""

    setting: Setting
    ranked_by: Metric | None
    """None if no cell has figures."""
    rate_per_s: float | None
    """Offered rate of the paced trials."""
    cells: tuple[CellSummary, ...]
    """Best first; cells without figures last, with their reason."""
    absent: Mapping[Metric, str] = field(default_factory=dict)
    """Metrics that were tried and of which no cell has a figure that could be ranked: why."""
    trips_per_s: float | None = None
    """Offered rate of paced round trips; None if each followed the one before."""

    def words(self, metric: Metric) -> str:
        """Return what users call a metric."""
        return "paced round trip" if metric == "round trip" and self.trips_per_s else METRIC_WORDS[metric]


def cells_of(rankings: Iterable[SettingSummary]) -> list[CellSummary]:
    """Return the cells of several settings."""
    return [cell for ranking in rankings for cell in ranking.cells]


@dataclass(frozen=True, slots=True)
class Control:
    """The A/A control: how a cell differs from itself."""

    metric: Metric
    backend: str
    payload_bytes: int
    ratio: Interval
    """Figure of its second trial in a round over that of the first, as two backends are compared."""

    @property
    def agrees(self) -> bool:
        """Return whether the two may be equal, as they should be."""
        return self.ratio.low <= 1.0 <= self.ratio.high


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run."""

    info: RunInfo
    settings: tuple[SettingSummary, ...]
    """By delivery, payload and size."""
    noise_ratios: Mapping[Metric, float]
    """By how much two equal cells typically differ in this run, as a ratio − 1; a metric is absent if no two cells of a
    setting have two rounds."""
    priors: Mapping[Metric, VariancePrior]
    """What the comparisons of the run tell about how much rounds differ; a metric is absent if there are too few."""
    controls: tuple[Control, ...]
    """By metric."""
    placement_ns: tuple[float, float] | None
    """Smallest and largest placement probe of the run."""
    problems: tuple[str, ...]
    pattern_trials: tuple[TrialResult, ...] = ()
    """Of queues, fan-in and rpc, whose figures are in ipcbench/analysis/patterns/."""
