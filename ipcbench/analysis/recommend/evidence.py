"""What a run says about one backend for one question: its figures, and the doubts about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.summary.cells import CellSummary, SettingSummary, cells_of
from ipcbench.analysis.summary.curves import Measure, estimate_of, mixed, neighbours, share_of
from ipcbench.analysis.summary.figures import inverted, scaled
from ipcbench.analysis.summary.notes import (
    PLACEMENT_NOTE,
    WRONG_WORDS,
    failure_reason,
    is_wrong,
    one_line,
    stamped_count,
    unsteady_count,
)
from ipcbench.analysis.summary.wording import interval_words, plural
from ipcbench.results.store import Run
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, Interval
from ipcbench.util.units import format_significant

Sureness = Literal["high", "moderate", "low", "none"]
LEVELS: tuple[Sureness, ...] = get_args(Sureness)

NOT_MEASURED = "this run did not measure it"
NOT_COMPARED = "not compared, for want of rounds or of figures"
"""How the doubt begins that names such backends."""
FEW_ROUNDS = "only"
"""How the doubt begins that there were too few rounds."""
_MAX_GAP_RATIO = 16.0
"""Between sizes further apart than this, interpolation says little."""
_MOSTLY_RATIO = 0.5
"""From this share of its trials on, a stamp is about the cell and not about single trials."""
_LOADED_RATIO = 2.0
"""Latency measured at one rate is assumed to hold up to this many times that rate."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many of a backend's trials a doubt is about."""

    backend: str
    count: int
    of_count: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """A fact that makes an answer less sure."""

    text: str
    level: Sureness
    """How sure the answer can be at most."""
    grave: bool = False
    """It must stand beside the name of the winner in the verdict."""
    share: Share | None = None
    """For what `text` says of a backend's trials, in the form `KIND: COUNT of COUNT trials of BACKEND`."""

    @classmethod
    def of_trials(cls, kind: str, share: Share, level: Sureness, *, grave: bool = False) -> Self:
        """Return the doubt that some of a backend's trials are of a kind, such as noisy."""
        return cls(f"{kind}: {share.count} of {share.of_count} trials of {share.backend}", level, grave, share)


@dataclass(frozen=True, slots=True)
class Expected:
    """What to expect of a backend, with 95 % intervals; None where it was not measured."""

    latency_p50_ns: Interval | None
    latency_p99_ns: Interval | None
    round_trip_p50_ns: Interval | None
    throughput_per_s: Interval | None
    """Messages per second to each reader, while saturated."""
    throughput_bytes_per_s: Interval | None
    """Payload bytes per second to each reader, while saturated."""
    cpu_ns: Interval | None
    """CPU time per message of the writer and all readers together, while saturated."""
    rounds_counts: Mapping[Measure, int]
    """Rounds behind each figure; with fewer than three, its interval says nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One backend at the question's payload, from one measured size or between two."""

    backend: str
    cells: tuple[CellSummary, ...]
    """One cell, or the two between which it is interpolated."""
    times: Mapping[Measure, Estimate]
    expected: Expected

    @property
    def trial_ids(self) -> tuple[int, ...]:
        """Return the trials that the figures come from, in the order of execution."""
        return tuple(sorted(trial.trial_id for cell in self.cells for trial in cell.trials))


def covered_sizes(family: Sequence[SettingSummary]) -> list[int]:
    """Return the payload sizes at which anything was measured."""
    return [group.setting.payload_bytes for group in family if any(cell.status == "ok" for cell in group.cells)]


def asked_sizes(family: Sequence[SettingSummary]) -> list[int]:
    """Return the payload sizes of which something can be said: those measured or, if all failed, those tried."""
    return covered_sizes(family) or [group.setting.payload_bytes for group in family]


def gather(
    family: Sequence[SettingSummary], between: tuple[int, int], question: Question, backend: str, measure: Measure
) -> Evidence | str:
    """Return what was measured of a backend at the question's payload, or the reason why nothing usable was.

    Args:
        family: settings that differ only in size.
        between: the measured sizes on both sides of the payload.
        question: what is asked.
        backend: whose figures.
        measure: the figure that must be there.
    """
    cells = _cells(family, between, backend)
    if not cells:
        return NOT_MEASURED
    for cell in cells:
        size = f"{cell.setting.payload_bytes:,} B"
        if cell.status != "ok":
            return f"{cell.status} at {size}: {one_line(cell.reason)}"
        if estimate_of(cell, measure) is None:
            return _absence_words(cell, measure)
    share = share_of(question.payload_bytes, between)
    times = {name: time for name in get_args(Measure) if (time := _time(cells, name, share)) is not None}
    return Evidence(backend, tuple(cells), times, _expected(cells, share, times, question.payload_bytes))


def table_times(
    family: Sequence[SettingSummary], between: tuple[int, int], payload_bytes: int, measure: Measure
) -> dict[str, Estimate]:
    """Return backend → time at a payload, of all that were measured, whether they can do what is asked or not."""
    share = share_of(payload_bytes, between)
    backends = dict.fromkeys(cell.backend for cell in cells_of(family))
    found = {name: _time(_cells(family, between, name), measure, share) for name in backends}
    return {name: time for name, time in found.items() if time is not None}


def _cells(family: Sequence[SettingSummary], between: tuple[int, int], backend: str) -> list[CellSummary]:
    """Return a backend's cells at one or two sizes; none if it lacks one."""
    tried = [ranking for ranking in family if ranking.setting.payload_bytes in between]
    rankings = [ranking for ranking in tried if covered_sizes([ranking])] or tried
    cells = [cell for cell in cells_of(rankings) if cell.backend == backend]
    return cells if len(cells) == len(rankings) else []


def _time(cells: Sequence[CellSummary], measure: Measure, share: float) -> Estimate | None:
    return _between([estimate_of(cell, measure) for cell in cells], share)


def _absence_words(cell: CellSummary, measure: Measure) -> str:
    """Return why a cell with figures lacks this one: its trials of that mode failed, or were too few."""
    if measure == "cpu" and cell.rounds_count == 1:
        return "CPU time takes 2 rounds, and 3 to be compared; there is 1"
    if measure in {"latency", "round trip"} and cell.figures is not None and cell.figures.unreadable_count:
        return f"the samples of its {measure} at {cell.setting.payload_bytes:,} B are missing or unusable"
    what = "CPU time" if measure == "cpu" else measure
    text = f"no {what} was measured at {cell.setting.payload_bytes:,} B, or too little of it"
    return f"{text}; {one_line(cell.notes[0])}" if cell.failed_count and cell.notes else text


def wrong_words(run: Run, backend: str, question: Question) -> str:
    """Return that a backend broke its promise, with the first message; empty if every message was as it should be.

    It counts at every size, for any number of readers and in any mode: which ones would be safe, nobody knows.
    """
    tried = [
        trial
        for trial in (*run.trials, *run.controls)
        if trial.spec.backend == backend and trial.spec.delivery == question.delivery
    ]
    wrong = [trial for trial in tried if is_wrong(trial)]
    if not wrong:
        return ""
    trials = plural(len(tried), "trial", "trials")
    return f"{WRONG_WORDS} in {len(wrong)} of {trials} of this run: {failure_reason(wrong[:1])}"


def too_slow_words(evidence: Evidence, question: Question, offered_per_s: float | None) -> str:
    """Return why a backend cannot deliver the rate asked for; empty if it can, or if that is unknown."""
    capacity = evidence.expected.throughput_per_s
    rate = question.rate_per_s
    if rate is None or capacity is None or capacity.high >= rate or (offered_per_s or 0.0) >= rate:
        return ""
    if evidence.expected.rounds_counts["throughput"] < MIN_CLAIM_ROUNDS:
        return ""
    delivers = f"flat out it delivers {interval_words(capacity)} messages/s"
    return f"too slow for {format_significant(rate)} messages/s: {delivers}"


def doubts(
    evidence: Evidence,
    measure: Measure,
    question: Question,
    offered_per_s: float | None,
    between: tuple[int, int],
    cores: object,
) -> tuple[Doubt, ...]:
    """Return what makes the figures of a backend less than sure, the most serious first.

    Args:
        evidence: the figures.
        measure: the figure that decides.
        question: what is asked.
        offered_per_s: the rate of the paced trials, None if there were none.
        between: the measured sizes on both sides of the payload.
        cores: how many cores the machine could use; None if unknown.
    """
    reasons = [*_trial_doubts(evidence, measure), *_load_doubts(evidence, question, cores)]
    reasons += [*_gap_doubts(question, between), *_rate_doubts(evidence, question, offered_per_s)]
    return tuple(sorted(reasons, key=lambda doubt: LEVELS.index(doubt.level), reverse=True))


def _between(estimates: Sequence[Estimate | None], share: float) -> Estimate | None:
    """Return the estimate between those of two sizes, or the only one; None if any is missing."""
    known = [estimate for estimate in estimates if estimate is not None]
    if len(known) < len(estimates) or not known:
        return None
    return known[0] if len(known) == 1 else mixed(known[0], known[1], share)


def _expected(
    cells: Sequence[CellSummary], share: float, times: Mapping[Measure, Estimate], payload_bytes: int
) -> Expected:
    tail = _between([cell.figures.latency_p99 if cell.figures else None for cell in cells], share)
    rate = inverted(times["throughput"].interval()) if "throughput" in times else None
    return Expected(
        latency_p50_ns=times["latency"].interval() if "latency" in times else None,
        latency_p99_ns=tail.interval() if tail is not None else None,
        round_trip_p50_ns=times["round trip"].interval() if "round trip" in times else None,
        throughput_per_s=rate,
        throughput_bytes_per_s=scaled(rate, payload_bytes) if rate is not None else None,
        cpu_ns=times["cpu"].interval() if "cpu" in times else None,
        rounds_counts={name: time.rounds_count for name, time in times.items()},
    )


def _trial_doubts(evidence: Evidence, measure: Measure) -> Iterator[Doubt]:
    name = evidence.backend
    tried = sum(cell.trials_count for cell in evidence.cells)
    failed = sum(cell.failed_count for cell in evidence.cells)
    trials = [trial for cell in evidence.cells for trial in cell.trials]
    if failed:
        yield Doubt.of_trials("failed", Share(name, failed, tried), "low", grave=True)
    noisy = stamped_count(trials, "noisy")
    if noisy:
        level: Sureness = "low" if noisy >= _MOSTLY_RATIO * len(trials) else "moderate"
        yield Doubt.of_trials("noisy", Share(name, noisy, len(trials)), level, grave=True)
    unsteady = unsteady_count(trials)
    if unsteady:
        level = "moderate" if unsteady >= _MOSTLY_RATIO * len(trials) else "high"
        yield Doubt.of_trials("unsteady", Share(name, unsteady, len(trials)), level)
    rounds = evidence.times[measure].rounds_count
    if rounds < MIN_CLAIM_ROUNDS:
        yield Doubt(f"{FEW_ROUNDS} {plural(rounds, 'round', 'rounds')}: {name}", "low", grave=True)
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
    if ratio <= _MAX_GAP_RATIO:
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
    rounds = evidence.expected.rounds_counts.get("throughput", 0)
    few = rounds < MIN_CLAIM_ROUNDS  # then the ends of the interval are no figures
    least = None if capacity is None else capacity.estimate if few else capacity.low
    if capacity is not None and least is not None and least < rate and (offered or 0.0) < rate:
        delivers = format_significant(capacity.estimate) if few else interval_words(capacity)
        told = f" in {plural(rounds, 'round', 'rounds')}" if few else ""
        text = f"{name} may not keep up with {format_significant(rate)} messages/s: flat out it delivers"
        yield Doubt(f"{text} {delivers} messages/s{told}", "low", grave=True)
    if offered is not None and rate > _LOADED_RATIO * offered and evidence.expected.latency_p50_ns is not None:
        measured = f"{format_significant(offered)} messages/s"
        text = f"latency was measured at {measured}, not at {format_significant(rate)} messages/s"
        decides = question.optimise == "latency"
        yield Doubt(text, "moderate" if decides else "high", grave=decides)


def offered_rate(family: Sequence[SettingSummary], between: tuple[int, int]) -> float | None:
    """Return the lowest rate offered in the paced trials around the payload, None if there were none."""
    rates = [ranking.rate_per_s for ranking in family if ranking.setting.payload_bytes in between]
    return min((rate for rate in rates if rate is not None), default=None)


def measured_around(family: Sequence[SettingSummary], payload_bytes: int) -> tuple[int, int] | None:
    """Return the measured sizes on both sides of a payload, None outside the measured range (if all failed: tried)."""
    return neighbours(asked_sizes(family), payload_bytes)
