"""Findings: what stands out in a run, the figures behind it, and what to do about it.

Every rule looks at one cell and returns an observation, or None if the fact was not measured. A finding collects the
cells of one family whose value is above the rule's threshold. All thresholds stand in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ipcbench.analysis.summary.cells import CellSummary, SettingSummary, Summary, cells_of
from ipcbench.analysis.summary.curves import families
from ipcbench.analysis.summary.figures import held_ratio, reader_skew, waiting_core_ratio
from ipcbench.analysis.summary.notes import WRONG_WORDS, printable
from ipcbench.analysis.summary.order import OrderChange, order_changes
from ipcbench.analysis.summary.wording import joined, neighbours_words, plural, size_words
from ipcbench.stats.decisions import LEAST_RATIO
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.util.units import format_duration_ns, format_significant

_MIN_COPY_BYTES = 64 * 1024
"""For smaller payloads a call costs more than a copy."""
_MIN_GROWTH_RATIO = 4.0
"""Two sizes closer than this say little about the cost of a byte."""
_NEARLY_ALL_RATIO = 0.95
_IDLE_RATIO = 0.5
"""A reader that is offered less than this share of what it could take mostly waits."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One cell for which a finding is true."""

    backend: str
    payload_bytes: int
    value: float
    """Above the rule's threshold."""
    figures: dict[str, float]
    """The figures from which the value follows, by name with unit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a run."""

    rule: str
    sentence: str
    """The fact with its figures for the cell where it is most pronounced, then where else it holds."""
    action: str
    threshold: float
    means: str
    """What the value is that was above the threshold."""
    evidence: tuple[Proof, ...]
    """Every cell for which it is true, the most pronounced first."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {**asdict(self), "evidence": [asdict(proof) for proof in self.evidence]}


@dataclass(frozen=True, slots=True)
class Observation:
    """A fact about one cell: its value, the figures behind it, and the sentence that states them."""

    value: float
    figures: Mapping[str, float]
    """By name with unit; `value` follows from them."""
    sentence: str


@dataclass(frozen=True, slots=True)
class CellContext:
    """A cell with its setting, its family and its run."""

    summary: Summary
    family: tuple[SettingSummary, ...]
    ranking: SettingSummary
    cell: CellSummary

    def named(self) -> str:
        """Return payload, backend and busy neighbours, if any: `dict of 1,000 entries over shm`."""
        setting = self.cell.setting
        beside = f" {neighbours_words(setting.neighbours)}" if setting.neighbours else ""
        return f"{setting.payload} of {size_words(setting)} over {self.cell.backend}{beside}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A fact that is worth reporting above a threshold."""

    name: str
    threshold: float
    """A cell whose value is above this is reported."""
    unit: Literal["times", "share", "difference of shares"]
    means: str
    """What the value is."""
    observe: Callable[[CellContext], Observation | None]
    action: str
    of_figures: bool = True
    """Whether it looks at figures, and so at cells that have them of several rounds; else at all that were tried."""


def explain(summary: Summary) -> tuple[Finding, ...]:
    """Return what stands out, one finding per rule and family of settings; empty if nothing does."""
    by_rule = (
        finding
        for family in families(summary)
        for rule in RULES
        if (finding := _finding(rule, summary, family)) is not None
    )
    return (*by_rule, *_order_finding(order_changes(summary)))


def _order_finding(changes: Sequence[OrderChange]) -> Iterator[Finding]:
    """Yield one finding on all pairs of backends whose order the neighbours change; nothing if there are none."""
    changes = sorted(changes, key=lambda change: -change.least_ratio)
    for first in changes[:1]:
        others = dict.fromkeys(joined(sorted(change.ahead)) for change in changes[1:])
        also = f" Also, by some metric at some size: {'; '.join(others)}." if others else ""
        yield Finding(
            rule="order beside neighbours",
            sentence=printable(first.sentence() + also),
            action="Choose by the figures for a machine as busy as yours will be.",
            threshold=1.0 + LEAST_RATIO,
            means="least factor by which one is ahead without, and the other beside neighbours",
            evidence=tuple(
                Proof(change.ahead[1], change.setting.payload_bytes, change.least_ratio, _order_figures(change))
                for change in changes
            ),
        )


def _order_figures(change: OrderChange) -> dict[str, float]:
    few, many = change.neighbours
    return {f"ratio_beside_{few}": change.ratios[0].estimate, f"ratio_beside_{many}": change.ratios[1].estimate}


def _finding(rule: Rule, summary: Summary, family: tuple[SettingSummary, ...]) -> Finding | None:
    hits = sorted(_hits(rule, summary, family), key=lambda hit: -hit[1].value)
    if not hits:
        return None
    first, *others = (context.cell for context, _ in hits)
    text = hits[0][1].sentence
    if others and len({seen.sentence for _, seen in hits}) > 1:
        text += f" Also {_elsewhere(first, others)}, {_value_range(rule, [seen.value for _, seen in hits[1:]])}."
    return Finding(
        rule=rule.name,
        sentence=printable(text),
        action=rule.action,
        threshold=rule.threshold,
        means=rule.means,
        evidence=tuple(
            Proof(context.cell.backend, context.cell.setting.payload_bytes, seen.value, dict(seen.figures))
            for context, seen in hits
        ),
    )


def _hits(
    rule: Rule, summary: Summary, family: tuple[SettingSummary, ...]
) -> Iterator[tuple[CellContext, Observation]]:
    """Yield the cells for which the rule is true."""
    for ranking in family:
        for cell in ranking.cells:
            has_figures = cell.status == "ok" and cell.rounds_count >= MIN_CLAIM_ROUNDS
            if has_figures or (cell.trials_count and not rule.of_figures):
                context = CellContext(summary, family, ranking, cell)
                seen = rule.observe(context)
                if seen is not None and seen.value > rule.threshold:
                    yield context, seen


def _elsewhere(first: CellSummary, others: Sequence[CellSummary]) -> str:
    """Return where else a finding is true: at how many more sizes of the first backend, and of the others."""
    counts: dict[str, int] = {}
    for cell in others:
        counts[cell.backend] = counts.get(cell.backend, 0) + 1
    own = counts.pop(first.backend, 0)
    parts = [f"{first.backend} at {plural(own, 'more size', 'more sizes')}"] if own else []
    return joined(parts + [f"{name} at {plural(count, 'size', 'sizes')}" for name, count in counts.items()])


def _value_range(rule: Rule, values: Sequence[float]) -> str:
    units = {"times": (1.0, "times"), "share": (100.0, "%"), "difference of shares": (100.0, "percentage points")}
    factor, unit = units[rule.unit]
    low, high = format_significant(factor * min(values)), format_significant(factor * max(values))
    return f"{low} to {high} {unit}" if low != high else f"{low} {unit}"


# The rules


def _wrong(context: CellContext) -> Observation | None:
    wrong, tried = context.cell.wrong_count, context.cell.trials_count
    return Observation(
        wrong / tried,
        {"wrong_count": wrong, "trials_count": tried},
        f"{context.named()}: {WRONG_WORDS} in {wrong} of {plural(tried, 'trial', 'trials')}.",
    )


def _decoding(context: CellContext) -> Observation | None:
    decode, latency = context.cell.decode_p50_ns, context.cell.latency_p50_ns
    if decode is None or latency is None:
        return None
    ratio = decode / latency.high
    return Observation(
        ratio,
        {"decode_p50_ns": decode, "latency_p50_high_ns": latency.high},
        f"Decoding takes longer than transport: {context.named()}, {format_duration_ns(decode)} to decode against at "
        f"most {format_duration_ns(latency.high)} one way, {_times(ratio)}.",
    )


def _spinning(context: CellContext) -> Observation | None:
    share, offered = waiting_core_ratio(context.cell.trials), context.ranking.rate_per_s
    capacity = context.cell.throughput_per_s
    if share is None or offered is None or (capacity is not None and offered > _IDLE_RATIO * capacity):
        return None
    return Observation(
        share,
        {"reader_core_ratio": share, "offered_rate_per_s": offered},
        f"Waiting burns a core: {context.named()}, each reader uses {_percent(share)} of a core at "
        f"{format_significant(offered)} messages/s.",
    )


def _oversubscribed(context: CellContext) -> Observation | None:
    cores = context.summary.info.machine.get("usable_cores")
    if isinstance(cores, bool) or not isinstance(cores, int | float) or cores <= 0:
        return None
    processes = context.cell.setting.readers + 1
    return Observation(
        processes / cores,
        {"processes_count": processes, "usable_cores_count": float(cores)},
        f"Oversubscription may decide the ranking: {processes} processes share {cores:g} cores, so latencies include "
        "time spent waiting for a core.",
    )


def _copies(context: CellContext) -> Observation | None:
    cell, floor = context.cell, context.summary.info.floor
    size = cell.setting.payload_bytes
    bandwidth = floor.memcpy_bytes_per_s.get(str(size)) if floor is not None else None
    if not bandwidth or size < _MIN_COPY_BYTES or cell.writer_cpu_ns is None or cell.reader_cpu_ns is None:
        return None
    copy_ns, path_ns = 1e9 * size / bandwidth, cell.writer_cpu_ns + cell.reader_cpu_ns
    copies = path_ns / copy_ns
    return Observation(
        copies,
        {"writer_cpu_ns": cell.writer_cpu_ns, "reader_cpu_ns": cell.reader_cpu_ns, "memory_copy_ns": copy_ns},
        f"A message costs more than one copy: {context.named()}, writer and one reader together use "
        f"{format_duration_ns(path_ns)} of CPU time per message, {format_significant(copies)} times as much as one "
        f"copy of it ({format_duration_ns(copy_ns)}).",
    )


def _fixed_cost(context: CellContext) -> Observation | None:
    """Observe, for the smallest size of a backend, the share of its time per message that is independent of size."""
    rates = {
        cell.setting.payload_bytes: cell.throughput_interval_per_s
        for cell in cells_of(context.family)
        if cell.backend == context.cell.backend and cell.throughput_interval_per_s is not None
    }
    small = context.cell.setting.payload_bytes
    larger = [size for size in rates if size >= _MIN_GROWTH_RATIO * max(1, small)]
    if not larger or small != min(rates):
        return None
    size = min(larger)
    # the least share that the intervals allow: the small message as fast and the larger as slow as they may be
    small_ns, large_ns = 1e9 / rates[small].high, 1e9 / rates[size].low
    share = max(0.0, min(1.0, (small_ns * size - large_ns * small) / ((size - small) * small_ns)))
    part = "nearly all" if share > _NEARLY_ALL_RATIO else f"at least {_percent(share)}"
    small_ns, large_ns = 1e9 / rates[small].estimate, 1e9 / rates[size].estimate
    return Observation(
        share,
        {"small_ns": small_ns, "large_ns": large_ns, "small_bytes": small, "large_bytes": size},
        f"Small messages pay for the call, not for the bytes: {context.named()}, {part} of the "
        f"{format_duration_ns(small_ns)} that a message of {small:,} B takes does not depend on its size "
        f"({size:,} B take {format_duration_ns(large_ns)}).",
    )


def _tail(context: CellContext) -> Observation | None:
    p50, p99 = context.cell.latency_p50_ns, context.cell.latency_p99_ns
    if p50 is None or p99 is None:
        return None
    ratio = p99.low / p50.estimate
    return Observation(
        ratio,
        {"latency_p50_ns": p50.estimate, "latency_p99_low_ns": p99.low},
        f"The tail is far above the median: {context.named()}, one-way p99 at least {format_duration_ns(p99.low)} "
        f"against p50 {format_duration_ns(p50.estimate)}, {_times(ratio)}.",
    )


def _back_pressure(context: CellContext) -> Observation | None:
    share, rate = held_ratio(context.cell.trials), context.cell.throughput_per_s
    if share is None or rate is None:
        return None
    return Observation(
        share,
        {"writer_held_ratio": share, "throughput_per_s": rate},
        f"The writer is held back: {context.named()}, while saturated it waits inside write, for room, a core or its "
        f"transport, {_percent(share)} of the time, at {format_significant(rate)} messages/s.",
    )


def _slow_reader(context: CellContext) -> Observation | None:
    skew = reader_skew(context.cell.trials) if context.cell.setting.readers > 1 else None
    if skew is None:
        return None
    return Observation(
        skew.in_three_of_four,
        {
            "slowest_of_fastest_reader_p50_ratio": skew.median,
            "in_three_of_four_rounds_at_least_ratio": skew.in_three_of_four,
        },
        f"One reader lags behind another: {context.named()}, in three of four rounds the one-way p50 of the slowest "
        f"reader (mostly {skew.slowest}) is at least {_times(skew.in_three_of_four)} that of the fastest.",
    )


def _unlike_waits(context: CellContext) -> Observation | None:
    """Observe, for a backend with the shortest round trip, how much more often it polls than one that it beats."""
    own = context.cell.round_trip_waits
    if context.cell.round_trip_rank != 1 or own is None:
        return None
    others = {
        cell.backend: cell.round_trip_waits.slept_ratio
        for cell in context.ranking.cells
        if cell.round_trip_waits is not None and (cell.round_trip_rank or 0) > 1
    }
    if not others:
        return None
    name = max(others, key=lambda name: others[name])
    return Observation(
        others[name] - own.slept_ratio,
        {"slept_ratio": own.slept_ratio, "other_slept_ratio": others[name]},
        f"Round trips compare unlike ways of waiting: {context.named()}, {_percent(own.slept_ratio)} of the waits "
        f"ended after the endpoint had slept, over {name} {_percent(others[name])}.",
    )


def _times(ratio: float) -> str:
    return f"{format_significant(ratio)} times"


def _percent(share: float) -> str:
    return f"{format_significant(100.0 * share)} %"


RULES: tuple[Rule, ...] = (
    Rule(
        "broken promise",
        0.0,
        "share",
        "share of the trials in which messages went wrong",
        _wrong,
        "Do not use it as it is: `ipcbench check` shows which law of the contract it breaks.",
        of_figures=False,
    ),
    Rule(
        "oversubscription",
        1.0,
        "times",
        "processes per usable core",
        _oversubscribed,
        "Repeat with fewer readers or on more cores before you trust the order; compare CPU time, which suffers less.",
    ),
    Rule(
        "decoding dominates",
        1.0,
        "times",
        "decode p50 over one-way latency p50",
        _decoding,
        "Change what is sent before you change the transport: --codec msgpack, or --payload records --codec numpy.",
    ),
    Rule(
        "spinning",
        0.5,
        "share",
        "share of a core that a reader uses while it mostly waits",
        _spinning,
        "If those cores have other work, wait by blocking: --wait block, where `ipcbench list` offers it.",
    ),
    Rule(
        "unlike waits",
        0.5,
        "difference of shares",
        "share of waits that ended after sleeping: that of a backend with a longer round trip, less its own",
        _unlike_waits,
        "Where cores are shared with other work, compare again with --wait block, or beside busy processes: "
        "--neighbours 0,1.",
    ),
    Rule(
        "copies",
        2.0,
        "times",
        "CPU time of writer and one reader over that of one copy of the payload",
        _copies,
        "If its reads copy, prefer a transport whose reads do not: `ipcbench recommend` with --needs zero-copy.",
    ),
    Rule(
        "small messages",
        0.8,
        "share",
        "share of the time per message that does not depend on its size",
        _fixed_cost,
        "Put several small messages into one where latency allows it.",
    ),
    Rule(
        "tail",
        10.0,
        "times",
        "lower end of the interval of the one-way latency p99 over p50",
        _tail,
        "Plan by p99, not by p50; `ipcbench doctor` says what disturbs this machine, --pin auto keeps processes in "
        "place.",
    ),
    Rule(
        "back-pressure",
        0.5,
        "share",
        "share of the time that the writer is held inside write while saturated",
        _back_pressure,
        "If readers are busy, make them faster or fewer; a larger --depth only helps against bursts.",
    ),
    Rule(
        "slow reader",
        2.0,
        "times",
        "one-way p50 of the slowest reader over that of the fastest, in three of four rounds at least",
        _slow_reader,
        "A lossless channel goes at the pace of its slowest reader: give each a core (--pin auto), or use latest_value "
        "if only the latest value counts.",
    ),
)
"""In the order in which findings are reported."""
