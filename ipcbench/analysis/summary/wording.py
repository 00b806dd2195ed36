"""A run in sentences, the same in every format: titles, verdicts and the header block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ipcbench.analysis.summary.cells import (
    KNOWN_TAIL_RATIO,
    METRIC_WORDS,
    RESOLVED_RATIO,
    CellSummary,
    Control,
    Metric,
    Setting,
    SettingSummary,
    Summary,
    cells_of,
)
from ipcbench.analysis.summary.notes import WRONG_WORDS, others_cpu_ratio, stamped_count
from ipcbench.render.table import NOT_MEASURED, number
from ipcbench.results.model import RunInfo, TrialResult
from ipcbench.spec import COUNTED_PAYLOADS, is_sized_in_bytes
from ipcbench.stats.decisions import compare
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval
from ipcbench.util.units import format_bytes, format_duration_ns, format_significant

NOT_KNOWN = "n/a"
_MIN_BOUND, _MAX_BOUND = 0.01, 99.0
_SURPRISING_RATIO = 1.5
"""A tie of times that seem to differ more than this is explained."""
_OWN_RATIO = Interval(1.0, 1.0, 1.0)
"""Of the best cell."""
_ALIKE_NEEDS = 3
"""Numbers of missing rounds further apart than this are told apart."""
_MIN_OTHERS_RATIO = 0.05
"""Less CPU time of other processes than this is not worth a word: any system has some."""

_MOST_NAMED = 6
"""A sentence names no more backends than this one after another; tables have them all."""

_MOST_SHARES = 2
"""More different shares of trials than these are added up."""

_TIME_WORDS: Mapping[Metric, str] = {**METRIC_WORDS, "throughput": "time per message"}


def size_words(setting: Setting) -> str:
    """Return the size of a setting; see `size_text`."""
    return size_text(setting.payload, setting.size)


def size_text(payload: str, size: int) -> str:
    """Return a size in its unit: entries of a dict or of records, what a function was called with, or bytes."""
    if payload in COUNTED_PAYLOADS:
        return plural(size, "entry", "entries")
    return format_bytes(size) if is_sized_in_bytes(payload) else f"size {size:,}"


def plural(count: int, singular: str, many: str) -> str:
    """Return `1 reader` or `3 readers`."""
    return f"{count:,} {singular if count == 1 else many}"


def rank_text(rank: int | None, ranks: Iterable[int | None]) -> str:
    """Return a rank, followed by `=` if others of `ranks` share it."""
    if rank is None:
        return NOT_MEASURED
    return f"{rank}=" if sum(other == rank for other in ranks) > 1 else str(rank)


def joined(names: Sequence[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def some(names: Sequence[str]) -> str:
    """Return what `joined` does; of many, the first ones and how many more there are."""
    most = _MOST_NAMED - 1
    return joined(names if len(names) <= _MOST_NAMED else [*names[:most], f"{len(names) - most} more"])


def family_words(setting: Setting) -> str:
    """Return what the settings of a family have in common: codec, readers, delivery, and what is unusual."""
    parts = [setting.codec, plural(setting.readers, "reader", "readers"), setting.delivery]
    if setting.touch != "header":
        parts.append(f"readers touch {setting.touch}")
    if setting.wait != "auto":
        parts.append(f"waiting by {setting.wait}")
    if setting.pin != "none":
        parts.append(f"pinned {setting.pin}")
    if setting.neighbours:
        parts.append(neighbours_words(setting.neighbours))
    return ", ".join(parts)


def neighbours_words(count: int) -> str:
    """Return `beside 2 busy neighbours`, or `without neighbours`."""
    return f"beside {plural(count, 'busy neighbour', 'busy neighbours')}" if count else "without neighbours"


def payload_line(setting: Setting) -> str:
    """Return kind, size in its own unit and encoded bytes: `dict of 10 entries = 521 B`."""
    return f"{setting.payload} of {size_words(setting)} = {setting.payload_bytes:,} B"


def setting_title(setting: Setting) -> str:
    """Return payload, codec, readers and delivery."""
    return f"{payload_line(setting)}, {family_words(setting)}"


def interval_words(interval: Interval, unit: str = "") -> str:
    """Return an estimate with its interval: `53.7 µs [45.1–60.2]` for the unit ` µs`."""
    estimate, low, high = (
        format_significant(value, interval.digits) for value in (interval.estimate, interval.low, interval.high)
    )
    return f"{estimate}{unit} [{low}–{high}]"


def _p50_words(interval: Interval | None) -> str:
    return NOT_MEASURED if interval is None else number(interval.estimate, 1e3, digits=interval.digits)


def p99_words(p50: Interval | None, p99: Interval | None) -> str:
    """Return a p99 in µs: one figure, both ends of its interval, or the lower one; `NOT_KNOWN` if that is the median.

    Args:
        p50: the median of the same samples; None if there is none.
        p99: in ns, as p50 is; None if there are too few samples or rounds.
    """
    if p50 is not None and p99 is None:
        return NOT_KNOWN
    if p99 is not None and p99.high > KNOWN_TAIL_RATIO * p99.low:
        known = p50 is None or p99.low > p50.estimate
        return f"≥ {_lower_end(p50, p99)}" if known else NOT_KNOWN
    if p99 is not None and p99.high > RESOLVED_RATIO * p99.low:
        return f"{_lower_end(p50, p99)}–{format_significant(p99.high / 1e3, 2)}"
    return _p50_words(p99)


def _lower_end(p50: Interval | None, p99: Interval) -> str:
    """Return the lower end of a p99 cut to two digits, or the median beside it if that is more."""
    step = 10.0 ** (math.floor(math.log10(p99.low / 1e3)) - 1) if p99.low > 0.0 else 1.0
    short = format_significant(step * math.floor(p99.low / 1e3 / step + 1e-9), 2)
    return _p50_words(p50) if p50 is not None and float(short.replace(",", "")) < p50.estimate / 1e3 else short


def ratio_words(ratio: Interval, rounds_count: int | None = None) -> str:
    """Return a ratio with its interval: `2.26 [1.75–3.07]`; meaningless bounds are shown as <0.01 and >99.

    Args:
        ratio: the ratio.
        rounds_count: how many rounds the two have in common, if they are compared by rounds; too few give no interval.
    """
    if rounds_count is not None and rounds_count < MIN_CLAIM_ROUNDS:
        return format_significant(ratio.estimate)
    digits = ratio.digits
    low = "<0.01" if ratio.low < _MIN_BOUND <= ratio.estimate else format_significant(ratio.low, digits)
    high = ">99" if ratio.high > _MAX_BOUND >= ratio.estimate else format_significant(ratio.high, digits)
    return f"{format_significant(ratio.estimate, digits)} [{low}–{high}]"


def verdict_words(ranking: SettingSummary) -> str:
    """Return in one line what may be concluded at this setting, and nothing more."""
    ranked = [cell for cell in ranking.cells if cell.rank is not None]
    absent = "".join(f" No {ranking.words(metric)}: {why}." for metric, why in ranking.absent.items())
    if all(cell.status != "ok" for cell in ranking.cells):
        why = "every trial failed" if any(cell.failed_count for cell in ranking.cells) else "nothing was measured"
        return f"No verdict: {why}.{_caveats(ranking)}"
    if not ranked or ranking.ranked_by is None:
        return f"No verdict: no figure can be ranked.{absent}"
    what = ranking.words(ranking.ranked_by)
    best = [cell for cell in ranked if cell.rank == 1]
    figures = some([_main_figure(cell, ranking.ranked_by) for cell in best])
    short = [cell for cell in ranking.cells if cell.rank is None and cell.ratio is not None]
    if len(ranked) == 1 and short:
        text = f"No verdict: only {best[0].backend} has at least {MIN_CLAIM_ROUNDS} rounds of {what}: {figures}"
    elif len(ranked) == 1:
        text = f"Only {best[0].backend} has a {what}: {figures}"
    elif len(best) == 1:
        superlative = "highest" if ranking.ranked_by == "throughput" else "lowest"
        spoilt = ", although messages of it went wrong" if best[0].wrong_count else ""
        among = " of those with rounds enough" if short else ""
        text = f"{best[0].backend} has the {superlative} {what}{among}{spoilt}: {figures}"
    elif contrary := [cell.backend for cell in best if _contradicts(cell)]:
        text = f"No verdict on {what}: {figures}, but {contrary_words(contrary, best[0].backend)}"
    else:
        names = some([cell.backend for cell in best])
        wrong = [cell.backend for cell in best if cell.wrong_count]
        spoilt = f", although messages of {joined(wrong)} went wrong" if wrong else ""
        few = all((cell.compared_rounds_count or 0) < MIN_CLAIM_ROUNDS for cell in best[1:])
        said = "No verdict on" if few else "No clear difference in"
        text = f"{said} {what} between {names}{spoilt}: {figures}{_more_rounds(best)}"
    text += _following_words(ranking.ranked_by, ranked)
    if short and len(ranked) > 1:
        text += f"; not ranked, for want of rounds: {some([cell.backend for cell in short])}"
    if lost := [cell.backend for cell in ranking.cells if _has_lost(cell, ranking.ranked_by)]:
        text += f"; not ranked, for want of their samples: {joined(lost)}"
    return f"{text}.{_other_words(ranking)}{absent}{_caveats(ranking)}"


def _has_lost(cell: CellSummary, metric: Metric) -> bool:
    """Return whether a cell lacks the figure because files of its samples are missing or damaged."""
    has = {"latency": cell.latency_p50_ns, "round trip": cell.round_trip_p50_ns}.get(metric, cell.throughput_per_s)
    return has is None and cell.figures is not None and cell.figures.unreadable_count > 0


def _contradicts(cell: CellSummary) -> bool:
    """Return whether a cell is clearly faster round by round than the one with the best figure."""
    enough = cell.compared_rounds_count is not None and cell.compared_rounds_count >= MIN_CLAIM_ROUNDS
    return enough and cell.ratio is not None and compare(cell.ratio) == "faster"


def contrary_words(contrary: Sequence[str], best: str) -> str:
    """Return why there is no verdict where the rounds contradict the figures."""
    return (
        f"by the rounds {joined(contrary)} would be faster than {best}; messages are of several kinds, see the "
        "distributions"
    )


def _more_rounds(tied: Sequence[CellSummary]) -> str:
    """Return how many more rounds would tell cells apart if they differ as it seems; empty if unknown, or too many."""
    best, *others = tied
    common = {cell.backend: cell.compared_rounds_count or 0 for cell in others}
    unknown = [cell for cell in others if common[cell.backend] < MIN_CLAIM_ROUNDS]
    needs = {cell.backend: cell.rounds_to_decide for cell in others if cell not in unknown}
    text = f"; if they differ as their rounds do, {_needs_words(needs, best.backend)}" if needs else ""
    if unknown:
        own = min(cell.rounds_count for cell in (best, *unknown))
        fewest = min(common[cell.backend] for cell in unknown)
        names = f"of {some([cell.backend for cell in unknown])}, " if needs else ""
        text += f"; {names}{too_few_words(fewest, best.backend if own >= MIN_CLAIM_ROUNDS else '')}"
    return text


def _needs_words(needs: Mapping[str, int | None], best: str) -> str:
    """Return how many more rounds would tell backends from the best: `about 3 more rounds would tell b from a, and 100
    would not tell c`.

    Args:
        needs: backend → how many; None for more than can be said.
        best: the best one.
    """
    known = {name: need for name, need in needs.items() if need is not None}
    soon = {name: need for name, need in known.items() if need <= _ALIKE_NEEDS * min(known.values())}
    if len(soon) == len(needs):
        return f"about {plural(max(soon.values()), 'more round', 'more rounds')} would decide"
    late = {name: need for name, need in known.items() if name not in soon}
    parts = [
        f"about {plural(max(group.values()), 'more round', 'more rounds')} would tell {some(list(group))}"
        for group in (soon, late)
        if group
    ]
    if never := [name for name, need in needs.items() if need is None]:
        parts.append(f"100 more rounds would not tell {some(never)}")
    first, *rest = parts
    return joined([f"{first} from {best}", *rest])


def _following_words(metric: Metric, ranked: Sequence[CellSummary]) -> str:
    """Return which backend has the next rank, with its ratio to the best; empty if none has."""
    best, following = ranked[0], next((cell for cell in ranked if cell.rank != 1), None)
    if following is None or following.ratio is None:
        return ""
    same = [cell.backend for cell in ranked if cell.rank == following.rank and cell is not following]
    tied = [cell.ratio.estimate for cell in ranked if cell.rank == 1 and cell.ratio is not None]
    first = next_words(best.backend, tied, following.ratio.estimate)
    ratio = ratio_words(following.ratio, following.compared_rounds_count)
    slow = "slow" if metric == "throughput" else "long"
    tie = f", not told apart from {some(same)}" if same else ""
    return f"; {first} {following.backend}, {ratio} times as {slow}{tie}"


def next_words(best: str, tied_ratios: Iterable[float], ratio: float) -> str:
    """Return how to introduce the first backend that is not of the first rank; one of that rank may look slower.

    Args:
        best: the backend that all are compared with.
        tied_ratios: how many times as slow as the best the others of its rank look.
        ratio: how many times as slow the first one of the next rank looks.
    """
    return f"the first told apart from {best} is" if max(tied_ratios, default=0.0) > ratio else "next is"


def too_few_words(rounds_count: int, common_with: str = "") -> str:
    """Return that so many rounds, or rounds in common with a backend, tell nothing apart; empty if they may."""
    if rounds_count >= MIN_CLAIM_ROUNDS:
        return ""
    common, verb = f" in common with {common_with}" if common_with else "", "is" if rounds_count == 1 else "are"
    rounds = plural(rounds_count, "round", "rounds")
    return f"{rounds}{common} {verb} too few to tell (it takes at least {MIN_CLAIM_ROUNDS})"


def ended_words(info: RunInfo) -> str:
    """Return how a run ended, with its rounds."""
    done = f"{plural(info.rounds_done, 'round', 'rounds')} done"
    budget, ratio = info.sweep.get("budget_s"), info.sweep.get("precision_ratio")
    precision = f"{100 * ratio:g} %" if isinstance(ratio, int | float) and ratio else ""
    if info.status == "out of budget" and isinstance(budget, int | float):
        may_rank = info.rounds_done < MIN_CLAIM_ROUNDS <= info.planned_rounds
        again = "; --resume goes on with as much again" if may_rank else ""
        missed = f"; not every median is known to within {precision}" if precision else ""
        return f"{done}; the budget of {format_duration_ns(1e9 * budget)} left no time for more{again}{missed}"
    reached = f"; every median is known to within {precision}" if precision and info.status == "complete" else ""
    where = f" in round {info.rounds_done + 1}" if info.status == "interrupted" else ""
    return f"{info.status}{where}, {done}{reached}"


def _main_figure(cell: CellSummary, metric: Metric) -> str:
    p50 = {"latency": cell.latency_p50_ns, "round trip": cell.round_trip_p50_ns}.get(metric)
    if p50 is not None:
        return format_duration_ns(p50.estimate)
    return f"{format_significant((cell.throughput_per_s or 0.0) / 1e3)} k messages/s"


def _other_words(ranking: SettingSummary) -> str:
    """Return which backends lead by the metrics that do not order the table."""
    text = ""
    if ranking.ranked_by == "latency":
        ranks = {cell.backend: cell.round_trip_rank for cell in ranking.cells if cell.round_trip_p50_ns is not None}
        text += _leaders_words(ranking, "round trip", "Shortest", ranks)
    if ranking.ranked_by != "throughput":
        ranks = {cell.backend: cell.throughput_rank for cell in ranking.cells if cell.throughput_per_s is not None}
        text += _leaders_words(ranking, "throughput", "Highest", ranks)
    return text


def _doubtful(ranking: SettingSummary, metric: Metric, ranks: Mapping[str, int | None]) -> str:
    """Return the interval of the tied backend that seems furthest from the best, if that may surprise; else nothing."""
    ratios = _tied_ratios(ranking, metric, ranks)
    name = max(ratios, key=lambda name: ratios[name].estimate, default="")
    if not name or ratios[name].estimate < _SURPRISING_RATIO:
        return ""
    cell, best = next(cell for cell in ranking.cells if cell.backend == name), _best_by(ranking, metric)
    needs = _needs_words({name: cell.other_rounds_to_decide.get(metric)}, best)
    verb, slow = ("is", "slow") if metric == "throughput" else ("takes", "long")
    return f" (although {name} {verb} {ratio_words(ratios[name])} times as {slow} as {best} by the rounds; {needs})"


def _tied_ratios(ranking: SettingSummary, metric: Metric, ranks: Mapping[str, int | None]) -> dict[str, Interval]:
    """Return backend → its ratio to the best, of those that share rank 1 by a metric that does not order the table."""
    return {
        cell.backend: cell.other_ratios[metric]
        for cell in ranking.cells
        if ranks.get(cell.backend) == 1 and metric in cell.other_ratios
    }


def _best_by(ranking: SettingSummary, metric: Metric) -> str:
    return next(cell.backend for cell in ranking.cells if cell.other_ratios.get(metric) == _OWN_RATIO)


def _leaders_words(ranking: SettingSummary, metric: Metric, praise: str, ranks: Mapping[str, int | None]) -> str:
    what, doubtful = ranking.words(metric), _doubtful(ranking, metric, ranks)
    measured = [name for name, rank in ranks.items() if rank is not None]
    first = [name for name in measured if ranks[name] == 1]
    if len(measured) < 2:
        return ""
    short = [name for name in ranks if name not in measured]
    unranked = f"; not ranked, for want of rounds: {some(short)}" if short else ""
    tied = _tied_ratios(ranking, metric, ranks)
    if contrary := [name for name, ratio in tied.items() if compare(ratio) == "faster"]:
        best = _best_by(ranking, metric)
        return f" No verdict on {what}: {contrary_words(contrary, best)}{unranked}."
    few = [name for name in first if name not in tied]
    if few == first:  # the best, too, has too few
        return f" {what.capitalize()}: too few rounds to tell{unranked}."
    unknown = f"; of {some(few)}, too few rounds in common with {_best_by(ranking, metric)} to tell" if few else ""
    known = [name for name in first if name in tied]
    if few and known == [_best_by(ranking, metric)] and len(first) == len(measured):
        return f" No verdict on {what}{unknown}{unranked}."
    if len(first) == len(measured):
        return f" No clear difference in {what}{doubtful}{unknown}{unranked}."
    return f" {praise} {what}: {some(known)}{doubtful}{unknown}{unranked}."


def _caveats(ranking: SettingSummary) -> str:
    """Return what speaks against the backends that lead by any metric, so that no win hides it."""
    measured = [cell for cell in ranking.cells if cell.status == "ok"]
    first = [cell for cell in measured if 1 in {cell.rank, cell.round_trip_rank, cell.throughput_rank}]
    counts = {
        "failed": [(cell.failed_count, cell.trials_count) for cell in first],
    }
    stamps = ["noisy"]
    if not all(stamped_count(cell.trials, "oversubscribed") for cell in measured):
        stamps.append("oversubscribed")
    for stamp in stamps:
        counts[stamp] = [(stamped_count(cell.trials, stamp), len(cell.trials)) for cell in first]
    warnings = []
    wrong = [cell for cell in ranking.cells if cell.wrong_count]
    counted = [(kind, first, shares) for kind, shares in counts.items()]
    counted.insert(0, (WRONG_WORDS, wrong, [(cell.wrong_count, cell.trials_count) for cell in wrong]))
    for kind, cells, shares in counted:
        named = {cell.backend: share for cell, share in zip(cells, shares, strict=True) if share[0]}
        if named:
            warnings.append(f"{kind}: {share_words(named)}")
    return f" Beware: {'; '.join(warnings)}." if warnings else ""


def share_words(shares: Mapping[str, tuple[int, int]]) -> str:
    """Return how many of how many trials something is said of, by backend: `2 of 15 trials of shm, 6 of 15 of lmdb`; of
    more than two different shares, only the sum.
    """
    backends: dict[tuple[int, int], list[str]] = {}
    for backend, share in shares.items():
        backends.setdefault(share, []).append(backend)
    if len(backends) > _MOST_SHARES:
        count, of_count = (sum(numbers) for numbers in zip(*shares.values(), strict=True))
        return f"{count} of {of_count} trials of {some([*shares])}"
    each = (
        f"{count} of {of_count}{' trials' * (not place)}{' each' * (len(names) > 1)} of {some(names)}"
        for place, ((count, of_count), names) in enumerate(backends.items())
    )
    return ", ".join(each)


def header(summary: Summary) -> tuple[str, ...]:
    """Return what to know before any figure: run, machine, harness floor, oversubscription, noise, gaps."""
    return tuple(_header(summary))


def _host_words(info: RunInfo) -> Iterator[str]:
    if info.hosts:
        cores = joined([str(host["machine"].get("logical_cores")) for host in info.hosts])
        yield (
            f"hosts: the endpoints ran on {len(info.hosts)} hosts ({info.place}) with {cores} cores; machine and floor "
            "here are those of the coordinator"
        )


def _header(summary: Summary) -> Iterator[str]:
    info = summary.info
    yield f"run: {info.run_id}, {ended_words(info)}, seed {info.sweep.get('seed', 'unknown')}"
    yield f"machine: {_machine_words(summary)}"
    yield from _variant_words(info)
    yield from _host_words(info)
    if info.floor is not None:
        writer, reader = format_duration_ns(info.floor.writer_ns), format_duration_ns(info.floor.reader_ns)
        saturated = ""
        if info.floor.saturated_writer_ns is not None and info.floor.saturated_reader_ns is not None:
            saturated = (
                f" ({format_duration_ns(info.floor.saturated_writer_ns)} and "
                f"{format_duration_ns(info.floor.saturated_reader_ns)} while saturated)"
            )
        yield f"harness floor: {writer} writer and {reader} reader per message{saturated}; it is part of every figure"
        if info.floor.wakeup_ns is not None:
            yield f"wake-up floor: {format_duration_ns(info.floor.wakeup_ns)} to wake a process that sleeps on a pipe"
    settings = [ranking.setting for ranking in summary.settings]
    yield from _load_words(summary)
    if settings or not summary.pattern_trials:  # the tables of a pattern have intervals, and no noise of their own
        yield _noise_words(summary)
    yield from _control_words(summary.controls)
    if summary.placement_ns is not None:
        times = " to ".join(dict.fromkeys(map(format_duration_ns, summary.placement_ns)))
        yield f"placement: a cache line takes {times} from one core to another, interpreter included"
    if any(setting.delivery == "latest_value" for setting in settings):
        yield (
            "latest_value: readers get the latest value and older ones are overwritten; never compare these figures "
            "with every_message"
        )
    yield from (f"left out: {name}: {reason}" for name, reason in info.skipped.items())
    yield from (f"problem: {problem}" for problem in summary.problems)


def _machine_words(summary: Summary) -> str:
    machine, versions = summary.info.machine, summary.info.versions
    memory = machine.get("memory_bytes")
    parts: list[Any] = [
        f"{machine.get('cpu_model') or 'unknown CPU'}{' (virtual)' if machine.get('virtual') else ''}",
        f"{_cores(summary) or 'unknown number of'} cores",
        f"{memory / 2**30:.1f} GiB" if isinstance(memory, int) else None,
        machine.get("kernel"),
        machine.get("python"),
        f"ipcbench {versions['ipcbench']}" if "ipcbench" in versions else None,
    ]
    return ", ".join(str(part) for part in parts if part)


def _variant_words(info: RunInfo) -> Iterator[str]:
    """Yield which variants took turns, and in which versions they differ."""
    if not info.variant_versions:
        return
    versions = list(info.variant_versions.values())
    packages = dict.fromkeys(package for each in versions for package in each)
    found = {package: [each.get(package, "none") for each in versions] for package in packages}
    unlike = [f"{package} {' / '.join(texts)}" for package, texts in found.items() if len(set(texts)) > 1]
    alike = [f"{package} {texts[0]}" for package, texts in found.items() if len(set(texts)) == 1]
    text = f"variants: {joined(list(info.variant_versions))}, in turns"
    yield f"{text}, which differ in {', '.join(unlike)}" if unlike else f"{text}, all with {', '.join(alike)}"


def _cores(summary: Summary) -> str:
    cores = summary.info.machine.get("usable_cores")
    return f"{cores:g}" if isinstance(cores, int | float) else ""


def _load_words(summary: Summary) -> Iterator[str]:
    """Yield for each number of processes how many cores there are, and who else used them."""
    groups: dict[int, list[TrialResult]] = {}
    broadcasts = (trial for cell in cells_of(summary.settings) for trial in cell.trials)
    for trial in (*broadcasts, *summary.pattern_trials):
        groups.setdefault(trial.spec.endpoints_count, []).append(trial)
    cores = summary.info.machine.get("usable_cores")
    for processes, trials in sorted(groups.items()):
        text = f"load: {processes} processes on {_cores(summary) or 'an unknown number of'} cores"
        if isinstance(cores, int | float) and processes > cores:
            text += (
                ": oversubscribed; they take turns, so latencies include time spent waiting for a core, and more cores "
                "may change the ranks"
            )
        if any(neighbours := sorted({trial.spec.neighbours for trial in trials})):
            text += f"; {joined([neighbours_words(count) for count in neighbours])}"
        others = others_cpu_ratio(trials)
        if others is not None and others >= _MIN_OTHERS_RATIO:
            text += f"; other processes took {others:.0%} of the CPU time".replace("%", " %")
        yield text


def _control_words(controls: Sequence[Control]) -> Iterator[str]:
    """Yield how the cell that was measured twice differs from itself."""
    if not controls:
        return
    first = controls[0]
    ratios = joined([f"{ratio_words(control.ratio)} in {METRIC_WORDS[control.metric]}" for control in controls])
    text = (
        f"control: {first.backend} at {first.payload_bytes:,} B, twice a round; the second is {ratios} times the first"
    )
    unlike = [METRIC_WORDS[control.metric] for control in controls if not control.agrees]
    yield f"{text}; it should be 1: doubt small differences in {joined(unlike)}" if unlike else text


def _noise_words(summary: Summary) -> str:
    if not summary.noise_ratios:
        return "noise: unknown, it takes two backends and three rounds"
    metric, noise = next(iter(summary.noise_ratios.items()))
    return (
        f"noise: two equal cells would differ by about {format_significant(100 * noise, 2)} % in "
        f"{_TIME_WORDS[metric]} (one standard deviation)"
    )
