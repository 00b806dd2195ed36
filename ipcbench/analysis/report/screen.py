"""The end of a run on one screen: what was asked, the answer, one table, what is worth knowing, and what comes next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ipcbench.analysis.findings import Finding
from ipcbench.analysis.patterns.cells import PatternCell
from ipcbench.analysis.report.headline import family_headline
from ipcbench.analysis.report.tables import Tables, entry
from ipcbench.analysis.summary.cells import CellSummary, Metric, SettingSummary
from ipcbench.analysis.summary.crossover import claimed_leaders, unranked
from ipcbench.analysis.summary.curves import families, middle_of
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.wording import family_words, joined, plural, size_words
from ipcbench.render.table import NOT_MEASURED, Column, Table
from ipcbench.render.text import WIDTH, Styled, aligned_styled, wrapped
from ipcbench.results.store import Run
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.util.shell import shell_command
from ipcbench.util.units import format_duration_ns

_BAR_CELLS = 8
_MOST_FINDINGS = 3
_MOST_LINES = 30
_MOST_SIZES = 4
_MOST_METRICS = 2
_LONGEST_PAUSE_S = 15.0
"""More than this between two trials is a resumption: groups start in a second or two."""
_MOST_OF_BUDGET = 0.8
"""What the rounds of another run may take, as they vary, of a budget that should suffice."""
_HEADS: Mapping[Metric, str] = {"latency": "p50 µs", "round trip": "trip µs", "throughput": "k msg/s"}
_MEANINGS: Mapping[Metric, str] = {
    "latency": "one-way",
    "round trip": "{} p50",
    "throughput": "to each reader",
}
_MARKS = "* best, = not told apart"


def screen(run: Run, tables: Tables, folder: str, width: int = WIDTH) -> list[Styled]:
    """Return the lines, with their styles; about `_MOST_LINES` for settings of one family and 100 columns.

    Args:
        run: the run.
        tables: its tables.
        folder: of the run.
        width: the most columns that a line has, but for a single column of a table or a word that is wider.
    """
    lines = _answers(run, tables, width)
    end = [("", ""), *((line, "dim") for line in _next(run, tables, folder))]
    wide = lines if width >= WIDTH else _answers(run, tables, WIDTH)  # a narrow terminal shows as much
    room = _MOST_LINES - len(wide) - len(end) - 1
    known: list[Styled] = []
    for finding in tables.findings[:_MOST_FINDINGS]:
        if (count := len(_known(finding, WIDTH))) <= room:
            known += _known(finding, width)
            room -= count
    return [*lines, *([("", "")] if known else []), *known, *end]


def _answers(run: Run, tables: Tables, width: int) -> list[Styled]:
    """Return what was asked, the answers, the tables, and what is missing in them."""
    lines = [line for family in families(tables.summary) for line in _family(run, tables, family, width)]
    lines += _patterns(run, tables, width)
    return lines + [(line, "") for text in _missing(run) for line in wrapped(text, width)]


def _patterns(run: Run, tables: Tables, width: int) -> Iterator[Styled]:
    """Yield the tables of queues, fan-in and rpc, their answers, and what their columns mean."""
    for table in tables.pattern_tables:
        yield from ((line, "bold") for line in wrapped(table.title, width))
        yield from ((line, "") for text in table.remarks for line in wrapped(text, width))
        yield "", ""
        shown = slice(-1 if table.columns[-1].head[-1] == "notes" else None)
        rows = tuple(row[shown] for row in table.rows)
        yield from aligned_styled(replace(table, columns=table.columns[shown], rows=rows), width)
        yield "", ""
    if tables.pattern_tables:
        yield f"{_rounds_words(run)}; `ipcbench analyze` has the notes and says what the columns mean", "dim"


def _family(run: Run, tables: Tables, family: Sequence[SettingSummary], width: int) -> Iterator[Styled]:
    """Yield what was asked, the answer and the table of settings that differ in size only."""
    middle = middle_of(family)
    yield from ((line, "bold") for line in wrapped(_asked(run, family), width))
    headline = family_headline(tables, family)
    yield from ((line, "") for text in (headline.sentence, *headline.remarks) for line in wrapped(text, width))
    yield "", ""
    metrics = _metrics(family)
    yield from aligned_styled(_table(family, metrics, middle), width)
    yield from ((line, "dim") for line in wrapped(_legend(family, metrics, middle, width), width))
    if (more := len(family) - _MOST_SIZES) > 0:
        yield f"{plural(more, 'more size', 'more sizes')} measured: see `ipcbench analyze`", "dim"


def _missing(run: Run) -> Iterator[str]:
    """Yield which backends were left out, and the first reason of each that has failed trials."""
    yield from (f"left out: {name}: {reason}" for name, reason in run.info.skipped.items())
    failed: dict[str, list[str]] = {}
    for trial in (*run.trials, *run.pattern_trials):
        if trial.status == "failed":
            failed.setdefault(trial.spec.backend, []).append(one_line(trial.reason))
    for name, reasons in failed.items():
        more = ", and for other reasons" if len(set(reasons)) > 1 else ""
        yield f"failed: {plural(len(reasons), 'trial', 'trials')} of {name}: {reasons[0]}{more}"


def _known(finding: Finding, width: int) -> list[Styled]:
    """Return what a finding says, and what to do, in a line or two."""
    fact = finding.sentence.partition(": ")[0]
    return [(line, "") for line in wrapped(f"{fact}. {finding.action}", width, first="- ")]


def _asked(run: Run, family: Sequence[SettingSummary]) -> str:
    """Return payload, readers, codec, rounds and time in one line."""
    first, last = family[0].setting, family[-1].setting
    sizes = size_words(first) if first == last else f"{_short(family[0])} to {size_words(last)}"
    variants = f", variants {joined([*run.info.variant_versions])} in turns" if run.info.variant_versions else ""
    hosts = f", between {len(run.info.hosts)} hosts" if run.info.hosts else ""
    return f"{first.payload} of {sizes}, {family_words(first)}{variants}{hosts}; {_rounds_words(run)}"


def _rounds_words(run: Run) -> str:
    """Return how many rounds there are, in how much time, and how the run ended if that is unusual."""
    done, begun = run.info.rounds_done, len(_rounds_begun(run))
    whole, part = plural(done, "round", "rounds"), begun > done
    rounds = f"{whole}{' + a part' * part}" if done else "a part of a round"
    took = format_duration_ns(1e9 * _took_s(run))
    is_usual = run.info.status == "complete" or (run.info.status == "out of budget" and done >= MIN_CLAIM_ROUNDS)
    ended = "" if is_usual else f"{run.info.status}, "
    return f"{ended}{rounds} in {took}"


def _budget_for(run: Run) -> str:
    """Return the option that gives enough rounds the time that they will take; empty where the run's budget will do."""
    if not run.info.rounds_done:
        return " and a larger --budget"  # nobody knows how long a round takes
    budget_s, needed_s = run.info.sweep.get("budget_s"), _took_s(run) / run.info.rounds_done * MIN_CLAIM_ROUNDS
    if isinstance(budget_s, int | float) and needed_s > _MOST_OF_BUDGET * budget_s:
        return f" --budget {math.ceil(needed_s / _MOST_OF_BUDGET)}s"
    return ""


def _rounds_begun(run: Run) -> set[int]:
    return {trial.spec.round_index for trial in (*run.trials, *run.pattern_trials)}


def _took_s(run: Run) -> float:
    """Return for how long the run measured, without the time between its end and its resumption."""
    took_s, end_s = 0.0, run.info.started_unix_s
    for trial in sorted(run.all_trials, key=lambda trial: trial.started_unix_s):
        fresh_s = trial.started_unix_s + trial.duration_s - end_s
        is_resumed = trial.started_unix_s - end_s > _LONGEST_PAUSE_S
        took_s += trial.duration_s if is_resumed else max(0.0, fresh_s)
        end_s += max(0.0, fresh_s)
    return took_s


def _table(family: Sequence[SettingSummary], metrics: Sequence[Metric], middle: SettingSummary) -> Table:
    shown = _evenly(family)
    names = dict.fromkeys(cell.backend for result in (middle, *family) for cell in result.cells)
    cells = {cell.backend: cell for cell in middle.cells}
    bars = _bars({name: _time_ns(cell, metrics[0]) for name, cell in cells.items()})
    sizes = [_short(result) for result in shown]

    def heads(metric: Metric) -> Iterator[Column]:
        return (Column((_HEADS[metric] if not index else "", size)) for index, size in enumerate(sizes))

    return Table(
        title="",
        columns=(
            Column(("", "backend"), "left", names_row=True),
            *heads(metrics[0]),
            Column(("", _short(middle)), "left"),
            Column(("", "waits"), "left"),
            *(column for metric in metrics[1:] for column in heads(metric)),
        ),
        rows=tuple(
            (
                name,
                *(entry(result, name, metrics[0], family) for result in shown),
                bars.get(name, ""),
                _waits(cells.get(name), metrics[0]) if bars else "",
                *(entry(result, name, metric, family) for metric in metrics[1:] for result in shown),
            )
            for name in names
        ),
    ).without_empty_columns()


def _metrics(family: Sequence[SettingSummary]) -> list[Metric]:
    """Return what the table shows: what ranks it, then of latency, throughput and round trips what was measured."""
    cells = [cell for result in family for cell in result.cells]
    known: Mapping[Metric, bool] = {
        "latency": any(cell.latency_p50_ns for cell in cells),
        "throughput": any(cell.throughput_per_s for cell in cells),
        "round trip": any(cell.round_trip_p50_ns for cell in cells),
    }
    ranks = {result.ranked_by for result in family}
    found = sorted((metric for metric, is_known in known.items() if is_known), key=lambda metric: metric not in ranks)
    found = found[:_MOST_METRICS]
    return sorted(found, key=list(_HEADS).index) or ["latency"]


def _evenly(family: Sequence[SettingSummary]) -> list[SettingSummary]:
    """Return the settings, or some of them if there are many: the first, the last, and some between."""
    count = min(len(family), _MOST_SIZES)
    steps = max(1, count - 1)
    return [family[round(index * (len(family) - 1) / steps)] for index in range(count)]


def _short(result: SettingSummary) -> str:
    return size_words(result.setting).removesuffix(" entries").removesuffix(" entry")


def _time_ns(cell: CellSummary, metric: Metric) -> float | None:
    if metric == "throughput":
        return 1e9 / cell.throughput_per_s if cell.throughput_per_s else None
    p50 = cell.latency_p50_ns if metric == "latency" else cell.round_trip_p50_ns
    return None if p50 is None else p50.estimate


def _bars(values: dict[str, float | None]) -> dict[str, str]:
    """Return bars whose lengths are to each other as the values are."""
    longest = max((value for value in values.values() if value is not None), default=0.0)
    return {name: "█" * max(1, round(_BAR_CELLS * value / longest)) for name, value in values.items() if value}


def _waits(cell: CellSummary | None, metric: Metric) -> str:
    if cell is None:
        return NOT_MEASURED
    shares = {
        "latency": cell.latency_waits,
        "round trip": cell.round_trip_waits,
        "throughput": cell.throughput_waits,
    }[metric]
    return NOT_MEASURED if shares is None else shares.word


def _legend(family: Sequence[SettingSummary], metrics: Sequence[Metric], middle: SettingSummary, width: int) -> str:
    size, encoded = size_words(middle.setting), f"{middle.setting.payload_bytes:,} B"
    ranked = [metric for metric in metrics if any(claimed_leaders(result, metric) for result in family)]
    words = [
        f"{_HEADS[metric].removesuffix(' µs')}: {_MEANINGS[metric].format(middle.words(metric))}"
        + " (too few rounds to rank)" * bool(ranked and metric not in ranked)
        for metric in metrics
    ]
    short = (
        ["? too few rounds to rank"]
        if any(unranked(result, metric, family) for result in family for metric in metrics)
        else []
    )
    legend = "; ".join([*words, *([_MARKS] if ranked else []), *short])
    if not any(_time_ns(cell, metrics[0]) for cell in middle.cells):
        return legend  # there are no bars
    legend += f"; bar, waits: {size}"
    whole = f"{legend}, {encoded}"
    return whole if size != encoded and len(whole) <= width else legend


def _is_comparison(tables: Tables) -> bool:
    """Return whether two backends were measured at the same setting."""
    groups: list[Sequence[CellSummary | PatternCell]] = [result.cells for result in tables.summary.settings]
    groups += [list(cells) for _, cells in groupby(tables.pattern_cells, key=lambda cell: cell.setting)]
    return any(sum(cell.status == "ok" for cell in cells) > 1 for cells in groups)


def _next(run: Run, tables: Tables, folder: str) -> Iterator[str]:
    """Yield the commands that tell more."""
    status, are_few = run.info.status, run.info.rounds_done < MIN_CLAIM_ROUNDS
    ends_with_few = status == "complete" or (status == "out of budget" and run.info.planned_rounds < MIN_CLAIM_ROUNDS)
    if are_few and ends_with_few and _is_comparison(tables):
        has_out = any(word.partition("=")[0] == "--out" for word in run.info.command)  # and the folder is not empty now
        other = " and another --out" * has_out
        yield f"enough to rank:       the same command with --rounds {MIN_CLAIM_ROUNDS}{_budget_for(run)}{other}"
    elif status == "interrupted" or (are_few and status != "complete"):
        between = " --hosts HOSTS" * bool(run.info.hosts)  # whose names no record has
        yield f"more rounds:          {shell_command('ipcbench', 'run', '--resume', folder)}{between}"
    yield f"all figures, report:  {shell_command('ipcbench', 'analyze', folder)}"
    if run.info.variant_versions:
        yield f"what differs:         {shell_command('ipcbench', 'compare', folder)}"
    elif asked := [answer.asked for answer in tables.answers if answer.asked]:
        yield f"for your traffic:     {shell_command('ipcbench', 'recommend', folder)} {asked[len(asked) // 2]}"
    elif any(cell.rate_per_s is not None and cell.setting.pattern != "rpc" for cell in tables.pattern_cells):
        size = tables.pattern_cells[0].setting.payload_bytes
        yield f"for your traffic:     {shell_command('ipcbench', 'recommend', folder)} --size {size}"
