"""The tables of a run: one per payload, then backend × payload size; the same strings for every format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ipcbench.analysis.findings import Finding, explain
from ipcbench.analysis.patterns.cells import PatternCell, pattern_cells
from ipcbench.analysis.patterns.tables import LEGEND as PATTERN_LEGEND
from ipcbench.analysis.patterns.tables import pattern_tables
from ipcbench.analysis.report.verdict import Answer, setting_answer
from ipcbench.analysis.summary.cells import (
    RESOLVED_RATIO,
    CellSummary,
    Metric,
    SettingSummary,
    Summary,
)
from ipcbench.analysis.summary.crossover import (
    claimed_leaders,
    is_comparison,
    is_lead_unsure,
    lead_changes,
    leaders,
    ranked_count,
    told_rank,
    unranked,
)
from ipcbench.analysis.summary.curves import estimate_of, families
from ipcbench.analysis.summary.figures import scaled
from ipcbench.analysis.summary.notes import one_line, printable
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.waits import WaitShares
from ipcbench.analysis.summary.wording import (
    family_words,
    header,
    interval_words,
    joined,
    p99_words,
    rank_text,
    ratio_words,
    setting_title,
    size_words,
    verdict_words,
)
from ipcbench.render.table import NOT_MEASURED, Column, Table, footnote_letters, number
from ipcbench.results.store import Run
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, UNSURE_DIGITS, Interval
from ipcbench.stats.prior import VariancePrior

BEST_MARK = "*"
SHARED_MARK = "="
UNRANKED_MARK = "?"
_MATRIX_TITLES: Mapping[Metric, str] = {
    "latency": "One-way latency p50, µs",
    "round trip": "Round trip p50, µs",
    "throughput": "Throughput, k messages/s to each reader",
}
_MAX_SIZES = 6
"""Of a matrix; more do not fit beside the names in 100 columns."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything that is reported about a run, ready for any format."""

    header: tuple[str, ...]
    answers: tuple[Answer, ...]
    """One per setting, in the order of the summary's."""
    payload_tables: tuple[Table, ...]
    """One per setting."""
    matrices: tuple[Table, ...]
    """Each metric over the sizes, for each payload kind with several sizes."""
    findings: tuple[Finding, ...]
    """Often empty."""
    legend: tuple[str, ...]
    """Explanations of the columns that are shown."""
    summary: Summary
    pattern_cells: tuple[PatternCell, ...] = ()
    """Of queues, fan-in and rpc; a run has these or settings."""
    pattern_tables: tuple[Table, ...] = ()


def tables(run: Run) -> Tables:
    """Return the tables of a stored run; the same run gives the same tables."""
    summary, patterns = summarise(run), pattern_cells(run)
    kinds = dict.fromkeys(cell.setting.pattern for cell in patterns)
    return Tables(
        header=tuple(one_line(line) for line in header(summary)),
        answers=tuple(setting_answer(run, summary, result) for result in summary.settings),
        payload_tables=tuple(_printable(_payload_table(result)) for result in summary.settings),
        matrices=tuple(map(_printable, _matrices(summary))),
        findings=explain(summary),
        legend=(*_legend(summary), *(line for kind in kinds for line in PATTERN_LEGEND[kind])),
        summary=summary,
        pattern_cells=patterns,
        pattern_tables=tuple(map(_printable, pattern_tables(patterns))),
    )


def _printable(table: Table) -> Table:
    """Return the table without control characters, which names and reasons of a stored run may hold."""
    return replace(
        table,
        remarks=tuple(map(printable, table.remarks)),
        rows=tuple(tuple(text if text.isprintable() else one_line(text) for text in row) for row in table.rows),
        footnotes=tuple((letter, printable(text)) for letter, text in table.footnotes),
    )


@dataclass(frozen=True, slots=True)
class _Figure:
    """A column of figures: shown if any cell of the table has one."""

    column: Column
    text: Callable[[CellSummary], str]
    topic: str
    """Key of the line in the legend that explains it."""


LEGEND: Mapping[str, str] = {
    "one-way": "one-way: receipt − intended send time of paced messages, over all readers and rounds; decoding is not "
    "in it. p99 is n/a with fewer than 1,000 samples or three rounds; where its 95 % interval spans more than a factor "
    "of two, the interval is shown; above a factor of ten, only its lower end (≥), or n/a if that is the median.",
    "ratio": "× best: how many times as slow as the best, by one-way latency, or else by round trip, or else by "
    "throughput. It is taken round by round, and differs from the quotient of the medians where rounds are of several "
    "kinds; it has no interval if fewer than three rounds are in common. All intervals of the column hold together at "
    "95 %. A cell shares rank 1 (1=) unless all of its interval is above 1.01 and both have three rounds in common; "
    "later ranks are decided in the same way against the first cell of the rank before. Two that share a rank may "
    "still differ, and two of unlike later ranks may be equal.",
    "floor": "× floor: one-way p50 as a multiple of what the harness itself costs (its two loops over a transport "
    "that does nothing), measured right after each window.",
    "round trip": "trip: round trip, from a send to the last reader's reply; the next follows at once, so all stays "
    "hot. Paced messages come after a pause: it is not twice the one-way latency, and may rank differently.",
    "paced round trip": "trip: paced round trip, from the moment when a message was due to the last reader's reply; "
    "messages go out at a rate, however many replies are still to come.",
    "waits": "waits: how 90 % or more of the waits ended, of the readers (one-way), of all endpoints (trip): spin, "
    "while they polled; yield, while they let others run between polls; block, after they slept; else mixed. Polling "
    "is faster and uses a core.",
    "read": "read: time inside one read while saturated, waiting for the message included.",
    "decode": "decode: time to decode one payload; it is in no other figure.",
    "rate": "k msg/s, MB/s: to each reader while saturated, with its 95 % interval; MB = 1,000,000 bytes of payload.",
    "ceiling": "% of copy: payload bytes to one reader as a share of what one core copies from memory to memory in "
    "messages of this size, caches warm; above 100 if nothing is copied.",
    "CPU": "CPU: user and system time per message while saturated, of the writer and of one reader; spinning counts.",
}


def _us(value_ns: float | None) -> str:
    return number(value_ns, 1e3)


def _p99_whole(p50: Interval | None, p99: Interval | None) -> str:
    """Return what `p99_words` does, with the interval also of a p99 that is given as one figure."""
    if p99 is None or p99.high > RESOLVED_RATIO * p99.low:
        return p99_words(p50, p99)
    return interval_words(scaled(p99, 1e-3))


def _rate(cell: CellSummary) -> str:
    if cell.throughput_interval_per_s is None:
        return number(cell.throughput_per_s, 1e3, digits=_digits(cell, "throughput"))
    return interval_words(scaled(cell.throughput_interval_per_s, 1e-3))


def _digits(cell: CellSummary, metric: Metric) -> int:
    """Return how many digits of a cell's figure say something."""
    estimate = estimate_of(cell, metric)
    if estimate is None or estimate.rounds_count < MIN_CLAIM_ROUNDS:
        return UNSURE_DIGITS
    return estimate.interval().digits


def _median(cell: CellSummary, metric: Metric) -> str:
    interval = cell.latency_p50_ns if metric == "latency" else cell.round_trip_p50_ns
    return NOT_MEASURED if interval is None else number(interval.estimate, 1e3, digits=_digits(cell, metric))


def _waits(shares: WaitShares | None) -> str:
    return NOT_MEASURED if shares is None else shares.word


def _ratio(cell: CellSummary) -> str:
    if cell.ratio is None:
        return NOT_MEASURED
    return "1" if cell.ratio.low == cell.ratio.high == 1.0 else ratio_words(cell.ratio, cell.compared_rounds_count)


_FIGURES = (
    _Figure(Column(("one-way", "p50 µs")), lambda cell: _median(cell, "latency"), "one-way"),
    _Figure(Column(("one-way", "p99 µs")), lambda cell: p99_words(cell.latency_p50_ns, cell.latency_p99_ns), "one-way"),
    _Figure(Column(("one-way", "waits")), lambda cell: _waits(cell.latency_waits), "waits"),
    _Figure(Column(("× best", "[95 %]")), _ratio, "ratio"),
    _Figure(Column(("×", "floor")), lambda cell: number(cell.latency_floor_ratio), "floor"),
    _Figure(Column(("trip", "p50 µs")), lambda cell: _median(cell, "round trip"), "round trip"),
    _Figure(
        Column(("trip", "p99 µs")), lambda cell: p99_words(cell.round_trip_p50_ns, cell.round_trip_p99_ns), "round trip"
    ),
    _Figure(Column(("trip", "waits")), lambda cell: _waits(cell.round_trip_waits), "waits"),
    _Figure(Column(("read", "p50 µs")), lambda cell: _us(cell.read_p50_ns), "read"),
    _Figure(Column(("decode", "p50 µs")), lambda cell: _us(cell.decode_p50_ns), "decode"),
    _Figure(Column(("k msg/s /reader", "[95 %]")), _rate, "rate"),
    _Figure(
        Column(("MB/s", "/reader")),
        lambda cell: number(cell.throughput_bytes_per_s, 1e6, digits=_digits(cell, "throughput")),
        "rate",
    ),
    _Figure(Column(("% of", "copy")), lambda cell: number(cell.memory_bandwidth_ratio, 1e-2), "ceiling"),
    _Figure(Column(("CPU µs", "writer")), lambda cell: _us(cell.writer_cpu_ns), "CPU"),
    _Figure(Column(("CPU µs", "reader")), lambda cell: _us(cell.reader_cpu_ns), "CPU"),
)


_WHOLE_TAILS: Mapping[tuple[str, ...], Callable[[CellSummary], str]] = {
    ("one-way", "p99 µs"): lambda cell: _p99_whole(cell.latency_p50_ns, cell.latency_p99_ns),
    ("trip", "p99 µs"): lambda cell: _p99_whole(cell.round_trip_p50_ns, cell.round_trip_p99_ns),
}
_WIDE_FIGURES = tuple(replace(figure, text=_WHOLE_TAILS.get(figure.column.head, figure.text)) for figure in _FIGURES)


def wide_tables(summary: Summary) -> tuple[Table, ...]:
    """Return the tables of the payloads with the interval of every known p99, for a page, which has the room."""
    return tuple(_printable(_payload_table(result, _WIDE_FIGURES)) for result in summary.settings)


def _shown(cells: Sequence[CellSummary], figures: Sequence[_Figure] = _FIGURES) -> tuple[_Figure, ...]:
    return tuple(figure for figure in figures if any(figure.text(cell) != NOT_MEASURED for cell in cells))


def _legend(summary: Summary) -> tuple[str, ...]:
    topics = {
        "paced round trip" if figure.topic == "round trip" and result.trips_per_s else figure.topic
        for result in summary.settings
        for figure in _shown(result.cells)
    }
    return tuple(text for topic, text in LEGEND.items() if topic in topics)


def _payload_table(result: SettingSummary, figures: Sequence[_Figure] = _FIGURES) -> Table:
    common = _common_notes(result.cells)
    letters = footnote_letters(note for cell in result.cells for note in cell_remarks(cell) if note not in common)
    ranks = [told_rank(result, cell, result.ranked_by) for cell in result.cells]
    is_alone = result.ranked_by is not None and not is_comparison(result, result.ranked_by)
    shown = _shown(result.cells, figures)
    return Table(
        title=setting_title(result.setting),
        remarks=(verdict_words(result), *(f"All: {note}." for note in common)),
        columns=(
            Column(("", "rank")),
            Column(("", "backend"), "left", names_row=True),
            *(figure.column for figure in shown),
            Column(("", "notes"), "left"),
        ),
        rows=tuple(
            (
                UNRANKED_MARK if rank is None and cell.status == "ok" and not is_alone else rank_text(rank, ranks),
                cell.backend,
                *(figure.text(cell) for figure in shown),
                _note_marks(cell, letters),
            )
            for rank, cell in zip(ranks, result.cells, strict=True)
        ),
        best_rows=frozenset(index for index, rank in enumerate(ranks) if rank == 1),
        footnotes=tuple((letter, note) for note, letter in letters.items()),
    )


def _note_marks(cell: CellSummary, letters: Mapping[str, str]) -> str:
    status = "" if cell.status == "ok" else f"{cell.status}: "
    return status + " ".join(letters[note] for note in cell_remarks(cell) if note in letters)


def cell_remarks(cell: CellSummary) -> tuple[str, ...]:
    """Return the remarks on a cell: why it has no figures, or the notes on its figures."""
    return cell.notes if cell.status == "ok" else (one_line(cell.reason),)


def _common_notes(cells: Sequence[CellSummary]) -> tuple[str, ...]:
    """Return the notes that all of several measured cells have; they are printed once, above the table."""
    measured = [cell.notes for cell in cells if cell.status == "ok"]
    if len(measured) < 2:
        return ()
    return tuple(note for note in measured[0] if all(note in notes for notes in measured))


def _matrices(summary: Summary) -> Iterator[Table]:
    """Yield a matrix backend × size of each metric for each kind of payload measured at several sizes."""
    for settings in families(summary):
        if len(settings) < 2:
            continue
        for metric in _MATRIX_TITLES:
            prior = summary.priors.get(metric)
            if any(leaders(result, metric) for result in settings):
                for start in range(0, len(settings), _MAX_SIZES):
                    yield _matrix(settings, settings[start : start + _MAX_SIZES], metric, prior)


def _matrix(
    family: Sequence[SettingSummary],
    settings: Sequence[SettingSummary],
    metric: Metric,
    prior: VariancePrior | None,
) -> Table:
    backends = list(dict.fromkeys(cell.backend for result in family for cell in result.cells))
    first = settings[0].setting
    changes = tuple(change.sentence() for change in lead_changes(family, metric, prior))
    remarks = changes or (_no_crossover(family, metric),)
    is_compared = any(is_comparison(result, metric) for result in family)
    marks = f"no marks: {'too few rounds' if is_compared else 'nothing'} to rank"
    if any(claimed_leaders(result, metric) for result in family):
        marks = f"{BEST_MARK} best; {SHARED_MARK} shares the first rank: no clear difference from the best"
    if any(unranked(result, metric, family) for result in settings):
        marks += f"; {UNRANKED_MARK} too few rounds to rank"
    rows = tuple((name, *(entry(result, name, metric, family) for result in settings)) for name in backends)
    return Table(
        title=f"{_MATRIX_TITLES[metric]}: {first.payload}, {family_words(first)}",
        remarks=(*remarks, marks),
        columns=(
            Column(("", "backend"), "left", names_row=True),
            *(Column((size_words(result.setting), f"{result.setting.payload_bytes:,} B")) for result in settings),
        ),
        rows=rows,
        best_cells=frozenset(
            (place, column)
            for place, row in enumerate(rows)
            for column, text in enumerate(row[1:], 1)
            if text.endswith((BEST_MARK, SHARED_MARK))
        ),
    )


def _no_crossover(family: Sequence[SettingSummary], metric: Metric) -> str:
    if not any(is_comparison(result, metric) for result in family):
        return "A single backend at each size: there is nothing to compare it with."
    if not any(claimed_leaders(result, metric) for result in family):
        return f"Fewer than {MIN_CLAIM_ROUNDS} rounds: too few to tell which is ahead at which size."
    always = frozenset.intersection(*(claimed_leaders(result, metric) for result in family))
    if always and all(ranked_count(result, metric) != 1 for result in family):
        verb = "has" if len(always) == 1 else "have"
        names = joined([cell.backend for cell in family[-1].cells if cell.backend in always])
        short = dict.fromkeys(cell.backend for result in family for cell in unranked(result, metric))
        among = f" among the others, since {joined([*short])} has too few rounds at a size" if short else ""
        return f"No crossover{among}: {names} {verb} the first rank at every size, alone or shared."
    too_few = [result for result in family if unranked(result, metric, family) and not claimed_leaders(result, metric)]
    reason = "from each size to the next, the first ranks overlap or a figure is missing"
    if too_few:
        sizes = joined([size_words(result.setting) for result in too_few])
        others = f"; elsewhere, {reason}" if len(family) - len(too_few) > 1 else ""
        reason = f"fewer than {MIN_CLAIM_ROUNDS} rounds at {sizes}, too few to tell which is ahead there{others}"
    return f"No clear crossover: {reason}."


def entry(result: SettingSummary, backend: str, metric: Metric, family: Sequence[SettingSummary]) -> str:
    """Return a backend's figure at a setting of a family, with a mark if it has or shares the first rank, or has none.

    While a backend without a rank may be as good as the first, nobody is marked: a lone "=" would say of whom?
    """
    cell = next((cell for cell in result.cells if cell.backend == backend), None)
    if cell is None:
        return f"{NOT_MEASURED}  "
    if cell.status != "ok":
        return f"{cell.status}  "
    text = _figure(cell, metric)
    first = claimed_leaders(result, metric)
    mark = UNRANKED_MARK if cell in unranked(result, metric, family) else " "
    if backend in first and not is_lead_unsure(result, metric):
        mark = BEST_MARK if len(first) == 1 else SHARED_MARK
    return f"{text} {mark}"


def _figure(cell: CellSummary, metric: Metric) -> str:
    if metric == "throughput":
        return number(cell.throughput_per_s, 1e3, digits=_digits(cell, "throughput"))
    return _median(cell, metric)
