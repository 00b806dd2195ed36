"""What a run says about one backend at one question: figures, what stands beside them, how far they can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.summary.cells import CellSummary, SettingSummary
from ipcbench.analysis.summary.curves import Measure, estimate_of, mixed, neighbours, share_of
from ipcbench.analysis.summary.notes import PLACEMENT_NOTE, one_line, stamped_count, unsteady_count
from ipcbench.stats.decisions import MIN_ROUNDS, Estimate, Interval
from ipcbench.util.units import format_significant

Sureness = Literal["high", "moderate", "low", "none"]
LEVELS: tuple[Sureness, ...] = get_args(Sureness)

MAX_GAP_RATIO = 16.0
"""Between sizes further apart than this, interpolation says little."""
NOT_MEASURED = "this run did not measure it"
MOSTLY_RATIO = 0.5
"""From this share of its trials on, a stamp is about the cell and not about a trial."""
_LOADED_RATIO = 2.0
"""Latency measured at one rate is taken to hold up to this many times that rate."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A fact that makes an answer less sure."""

    text: str
    level: Sureness
    """How sure the answer can be at most."""
    grave: bool = False
    """It belongs beside the name of a winner, wherever that is said."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What to expect of a backend; None where it was not measured. Each with its 95 % interval."""

    latency_p50_ns: Interval | None
    latency_p99_ns: Interval | None
    round_trip_p50_ns: Interval | None
    throughput_per_s: Interval | None
    """Messages per second to each reader, while saturated."""
    throughput_bytes_per_s: Interval | None
    """Payload bytes per second to each reader, while saturated."""
    cpu_ns: Interval | None
    """CPU time per message of the writer and all readers together, while saturated."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One backend at the question's payload, from one measured size or between two."""

    backend: str
    cells: tuple[CellSummary, ...]
    """One, or the two that it is interpolated between."""
    times: Mapping[Measure, Estimate]
    expected: Expected

    @property
    def trial_ids(self) -> tuple[int, ...]:
        """Return the trials that the figures come from, in the order of execution."""
        return tuple(sorted(trial.trial_id for cell in self.cells for trial in cell.trials))


def covered_sizes(family: Sequence[SettingSummary]) -> list[int]:
    """Return the payload sizes at which anything was measured."""
    return [one.setting.payload_bytes for one in family if any(cell.status == "ok" for cell in one.cells)]


def gather(
    family: Sequence[SettingSummary], between: tuple[int, int], question: Question, backend: str, axis: Measure
) -> Evidence | str:
    """Return what was measured of a backend at the question's payload, or why that says nothing.

    Args:
        family: settings that differ in nothing but the size.
        between: the measured sizes on both sides of the payload.
        question: what is asked.
        backend: whose figures.
        axis: which figure must be there.
    """
    at = [one for one in family if one.setting.payload_bytes in between and covered_sizes([one])]
    cells = [cell for one in at for cell in one.cells if cell.backend == backend]
    if len(cells) < len(at):
        return NOT_MEASURED
    for cell in cells:
        size = f"{cell.setting.payload_bytes:,} B"
        if cell.status != "ok":
            return f"{cell.status} at {size}: {one_line(cell.reason)}"
        if estimate_of(cell, axis) is None:
            return _absence_words(cell, axis)
    share = share_of(question.payload_bytes, between)
    times = {one: time for one in get_args(Measure) if (time := _joined(cells, share, one)) is not None}
    return Evidence(backend, tuple(cells), times, _expected(cells, share, times, question.payload_bytes))


def _absence_words(cell: CellSummary, axis: Measure) -> str:
    """Return why a cell that has figures has none on this axis: its trials of that mode failed, or were too few."""
    what = "CPU time" if axis == "cpu" else axis
    text = f"no {what} was measured at {cell.setting.payload_bytes:,} B, or too little of it"
    return f"{text}; {one_line(cell.notes[0])}" if cell.failed_count and cell.notes else text


def keeps_up(evidence: Evidence, question: Question, offered_per_s: float | None) -> str:
    """Return why a backend cannot deliver the rate that is asked for; empty if it can, or if nothing is known."""
    capacity = evidence.expected.throughput_per_s
    rate = question.rate_per_s
    if rate is None or capacity is None or capacity.estimate >= rate or (offered_per_s or 0.0) >= rate:
        return ""
    return f"too slow for {format_significant(rate)} messages/s: at most {_interval_words(capacity)} messages/s"


def doubts(
    evidence: Evidence, question: Question, offered_per_s: float | None, between: tuple[int, int], cores: object
) -> tuple[Doubt, ...]:
    """Return what makes the figures of a backend less than sure, the gravest first.

    Args:
        evidence: the figures.
        question: what is asked.
        offered_per_s: the rate of the paced trials, None if there were none.
        between: the measured sizes on both sides of the payload.
        cores: how many the machine could use; None if unknown.
    """
    found = [*_trial_doubts(evidence), *_load_doubts(evidence, question, cores)]
    found += [*_gap_doubts(question, between), *_rate_doubts(evidence, question, offered_per_s)]
    return tuple(sorted(found, key=lambda one: LEVELS.index(one.level), reverse=True))


def _joined(cells: Sequence[CellSummary], share: float, axis: Measure) -> Estimate | None:
    return _between([estimate_of(cell, axis) for cell in cells], share)


def _between(found: Sequence[Estimate | None], share: float) -> Estimate | None:
    known = [one for one in found if one is not None]
    if len(known) < len(found) or not known:
        return None
    return known[0] if len(known) == 1 else mixed(known[0], known[1], share)


def _expected(
    cells: Sequence[CellSummary], share: float, times: Mapping[Measure, Estimate], payload_bytes: int
) -> Expected:
    tail = _between([cell.figures.latency_p99 if cell.figures else None for cell in cells], share)
    per_message = times["throughput"].interval() if "throughput" in times else None
    rate = None
    if per_message is not None:
        rate = Interval(1.0 / per_message.high, 1.0 / per_message.estimate, 1.0 / per_message.low)
    return Expected(
        latency_p50_ns=times["latency"].interval() if "latency" in times else None,
        latency_p99_ns=tail.interval() if tail is not None else None,
        round_trip_p50_ns=times["round trip"].interval() if "round trip" in times else None,
        throughput_per_s=rate,
        throughput_bytes_per_s=_scaled(rate, payload_bytes),
        cpu_ns=times["cpu"].interval() if "cpu" in times else None,
    )


def _scaled(one: Interval | None, factor: float) -> Interval | None:
    return None if one is None else Interval(one.low * factor, one.estimate * factor, one.high * factor)


def _trial_doubts(evidence: Evidence) -> Iterator[Doubt]:
    name = evidence.backend
    tried = sum(cell.trials_count for cell in evidence.cells)
    failed = sum(cell.failed_count for cell in evidence.cells)
    trials = [trial for cell in evidence.cells for trial in cell.trials]
    if failed:
        yield Doubt(f"failed: {failed} of {tried} trials of {name}", "low", grave=True)
    noisy = stamped_count(trials, "noisy")
    if noisy:
        level: Sureness = "low" if noisy >= MOSTLY_RATIO * len(trials) else "moderate"
        yield Doubt(f"noisy: {noisy} of {len(trials)} trials of {name}", level, grave=True)
    unsteady = unsteady_count(trials)
    if unsteady:
        level = "moderate" if unsteady >= MOSTLY_RATIO * len(trials) else "high"
        yield Doubt(f"unsteady: {unsteady} of {len(trials)} trials of {name}", level)
    rounds = min(cell.rounds_count for cell in evidence.cells)
    if rounds < MIN_ROUNDS:
        yield Doubt(f"{name} was measured in only {rounds} round{'s' * (rounds != 1)}", "low", grave=True)
    if any(PLACEMENT_NOTE in cell.notes for cell in evidence.cells):
        yield Doubt(f"of {name}, {PLACEMENT_NOTE}", "moderate")


def _load_doubts(evidence: Evidence, question: Question, cores: object) -> Iterator[Doubt]:
    processes = question.readers + 1
    trials = [trial for cell in evidence.cells for trial in cell.trials]
    known = isinstance(cores, int | float) and not isinstance(cores, bool)
    if (known and processes > cores) or stamped_count(trials, "oversubscribed"):  # type: ignore[operator]
        where = f"{processes} processes on {cores:g} cores" if known else f"{processes} processes"
        yield Doubt(f"oversubscribed: {where}, and more cores may reorder the ranks", "moderate", grave=True)


def _gap_doubts(question: Question, between: tuple[int, int]) -> Iterator[Doubt]:
    low, high = between
    if low == high:
        return
    text = f"{question.payload_bytes:,} B was not measured: interpolated between {low:,} B and {high:,} B"
    ratio = high / max(1, low)
    if ratio <= MAX_GAP_RATIO:
        yield Doubt(text, "moderate")
    else:
        yield Doubt(f"{text}, {format_significant(ratio)} times apart: that says little", "low", grave=True)


def _rate_doubts(evidence: Evidence, question: Question, offered: float | None) -> Iterator[Doubt]:
    rate, name = question.rate_per_s, evidence.backend
    if rate is None:
        return
    capacity = evidence.expected.throughput_per_s
    if capacity is None and (offered or 0.0) < rate:
        yield Doubt(f"whether {name} keeps up with {format_significant(rate)} messages/s was not measured", "low")
    elif capacity is not None and capacity.low < rate and (offered or 0.0) < rate:
        text = f"{name} may not keep up with {format_significant(rate)} messages/s: at most {_interval_words(capacity)}"
        yield Doubt(f"{text} messages/s", "low", grave=True)
    if offered is not None and rate > _LOADED_RATIO * offered and question.optimise == "latency":
        measured = f"{format_significant(offered)} messages/s"
        yield Doubt(f"latency was measured at {measured}, not at {format_significant(rate)} messages/s", "moderate")


def offered_rate(family: Sequence[SettingSummary], between: tuple[int, int]) -> float | None:
    """Return the least rate offered in the paced trials around the payload, None if there were none."""
    rates = [one.rate_per_s for one in family if one.setting.payload_bytes in between and one.rate_per_s is not None]
    return min(rates, default=None)


def measured_around(family: Sequence[SettingSummary], payload_bytes: int) -> tuple[int, int] | None:
    """Return the measured sizes on both sides of a payload, None if it lies outside what was measured."""
    return neighbours(covered_sizes(family), payload_bytes)


def _interval_words(one: Interval) -> str:
    low, high = format_significant(one.low), format_significant(one.high)
    return f"{format_significant(one.estimate)} [{low}–{high}]"
