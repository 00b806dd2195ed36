"""The tables of queues, fan-in and rpc: rates, shares and times by number of peers, and what a killed worker cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from ipcbench.analysis.patterns.cells import NOT_REACHED, LoadFigures, PatternCell, PatternSetting
from ipcbench.analysis.summary.figures import scaled
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.wording import (
    interval_words,
    joined,
    neighbours_words,
    plural,
    rank_text,
    ratio_words,
    size_text,
    too_few_words,
)
from ipcbench.render.table import NOT_MEASURED, Column, Table, footnote_letters, number
from ipcbench.spec import Work, work_name
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, UNSURE_DIGITS, Interval, ratio, rounds_in_common
from ipcbench.util.units import format_bytes, format_duration_ns, format_significant

NOT_HELD = "not held"
_TOGETHER = ("batch", "in_flight")
_PEERS: dict[Work, tuple[str, str]] = {
    "queue": ("worker", "workers"), "fan_in": ("writer", "writers"), "rpc": ("client", "clients"),
}  # fmt: skip
_UNITS: dict[Work, str] = {"queue": "k tasks/s", "fan_in": "k msg/s", "rpc": "k calls/s"}

LEGEND: dict[Work, tuple[str, ...]] = {
    "queue": (
        "k tasks/s: tasks that the writer gives to all workers together flat out, with its 95 % interval; ranks "
        "are by it, within equal workers and batches.",
        "busiest: the share of the tasks that the busiest worker got; even shares would be 1 / workers.",
        "wait: from the intended send of a task to the begin of its work, p50 / p99, at a share of the backend's own "
        "k tasks/s; n/a: fewer than 1,000 tasks in a round, take a longer --window. not held: in half of the rounds or "
        "more a backlog was left, and the wait would grow with the window.",
    ),
    "fan_in": (
        "k msg/s: messages of all writers together while all write flat out, with its 95 % interval; ranks are by it, "
        "within equal writers and batches.",
        "fair: Jain's index of the writers' rates: 1 if all get the same, 1 / writers if one gets everything.",
        "time: from the intended send of a message to its receipt, p50 of all / p99 of the slowest writer, at a share "
        "of the backend's own k msg/s; n/a: a writer sent fewer than 1,000 messages in a round, take a longer "
        "--window. not held: in half of the rounds or more a backlog was left, and the time would grow with the "
        "window.",
    ),
    "rpc": (
        "k calls/s: calls of all clients together while each makes one after the other, as many at a time as it has in "
        "flight, with its 95 % interval; ranks are by it, within equal clients and calls in flight.",
        "fair: Jain's index of the clients' rates: 1 if all get the same, 1 / clients if one gets everything.",
        "time: from the moment at which a call is due to its result, p50 / p99 of all clients, at a share of the "
        "backend's own k calls/s; n/a: fewer than 1,000 calls in a round, take a longer --window. not held: in half of "
        "the rounds or more a backlog was left, and the time would grow with the window.",
        "p99 ≤: calls per second of the largest of these loads that was held with a p99 of at most that; – if none "
        "was, n/a if nobody knows.",
        "plain, call: p50 of a round trip of plain messages with as many bytes over the same transport, and of a call, "
        "one at a time and in turns.",
    ),
}


def peers_words(setting: PatternSetting) -> str:
    """Return how many peers a setting has, and its batch if there is one: `16 workers, batch 256`."""
    more = f", batch {setting.batch:,}" if setting.batch > 1 else ""
    more += f", {setting.in_flight:,} in flight" if setting.in_flight > 1 else ""
    return plural(setting.peers, *_PEERS[setting.pattern]) + more


def pattern_tables(cells: Sequence[PatternCell]) -> tuple[Table, ...]:
    """Return the tables: of each payload one with all numbers of peers, one about batches if there are several, and of
    a queue one about killed workers.
    """
    found: list[Table] = []
    families: dict[PatternSetting, list[PatternCell]] = {}
    for cell in cells:
        families.setdefault(cell.setting.family(), []).append(cell)
    for family, rows in families.items():
        found.append(_table(family, rows, f", {_subject(family)}" if len(families) > 1 else ""))
        batched = [cell for cell in rows if cell.rate_per_s is not None]
        if len({cell.setting.batch for cell in batched}) > 1:
            found.append(_batch_table(family, batched))
        if costs := [cell for cell in batched if cell.calls is not None]:
            found.append(_cost_table(family, costs))
        if any(cell.recovery is not None or cell.recovery_reason for cell in rows):
            found.append(_recovery_table(family, rows))
    return tuple(found)


def _title(family: PatternSetting) -> str:
    name = family.pattern if family.pattern == "rpc" else work_name(family.pattern).capitalize()
    return f"{name}: {_subject(family)}"


def _subject(family: PatternSetting) -> str:
    """Return what a family carries and how, beside its pattern."""
    beside = f", {neighbours_words(family.neighbours)}" if family.neighbours else ""
    wait = f", wait {family.wait}" if family.wait != "auto" else ""
    size = size_text(family.payload, family.size)
    encoded = "" if family.size == family.payload_bytes else f" ({family.payload_bytes:,} B encoded)"
    if family.pattern == "rpc":
        work = f", {format_duration_ns(family.service_ns)} of work" if family.service_ns else ""
        return f"request {size}, reply {format_bytes(family.reply_bytes)}{work}{wait}{beside}"
    return f"{family.payload} of {size}{encoded}, {family.codec}{wait}{beside}"


def _table(family: PatternSetting, cells: Sequence[PatternCell], subject: str) -> Table:
    together = _TOGETHER[family.pattern == "rpc"]
    several = len({getattr(cell.setting, together) for cell in cells}) > 1
    loads = _loads(cells)
    ranks = {cell.setting: [each.rank for each in cells if each.setting == cell.setting] for cell in cells}
    settings = {cell.setting for cell in cells}
    left_out = Counter(cell.backend for cell in cells if cell.status == "skipped")
    nowhere = {cell.backend: cell for cell in cells if left_out[cell.backend] == len(settings)}
    cells = [cell for cell in cells if cell.backend not in nowhere]
    lines = [*((f"{cell.setting.peers}", cell) for cell in cells), *(("any", cell) for cell in nowhere.values())]
    letters = footnote_letters(text for _, cell in lines for text in _remarks(cell))
    has_limit = bool(_limits_ns(cells))

    def row(peers: str, cell: PatternCell) -> tuple[str, ...]:
        return (
            peers,
            *([f"{getattr(cell.setting, together):,}" if peers != "any" else peers] if several else []),
            rank_text(cell.rank, ranks[cell.setting]),
            cell.backend,
            _status(cell) if cell.rate_per_s is None else rate_words(cell),
            _share(cell.largest_share_ratio) if family.pattern == "queue" else number(cell.jain_ratio),
            *(_times(cell, load) for load in loads),
            *([_within_limit(cell)] if has_limit else []),
            _marks(cell, letters),
        )

    return Table(
        title=_title(family),
        remarks=tuple(verdicts(cells, subject)),
        columns=tuple(_columns(family, cells, several)),
        rows=tuple(row(peers, cell) for peers, cell in lines),
        best_rows=frozenset(index for index, (_, cell) in enumerate(lines) if cell.rank == 1),
        footnotes=tuple((letter, text) for text, letter in letters.items()),
    )


def _columns(family: PatternSetting, cells: Sequence[PatternCell], several: bool) -> Iterator[Column]:
    yield Column(("", _PEERS[family.pattern][1]))
    if several:
        yield Column(("in", "flight") if family.pattern == "rpc" else ("", "batch"))
    yield from (Column(("", "rank")), Column(("", "backend"), "left", names_row=True))
    yield Column((_UNITS[family.pattern], "[95 %]"))
    yield Column(("busiest", "worker")) if family.pattern == "queue" else Column(("", "fair"))
    yield from _heads(family, _loads(cells))
    if _limits_ns(cells):
        yield Column((_UNITS["rpc"], f"p99 ≤ {format_duration_ns(max(_limits_ns(cells)))}"))
    yield Column(("", "notes"), "left")


def _loads(cells: Sequence[PatternCell]) -> list[float]:
    return sorted({load.load_ratio for cell in cells for load in cell.loads})


def _heads(family: PatternSetting, loads: Sequence[float]) -> Iterator[Column]:
    head = {"queue": "wait p50 / p99", "rpc": "p50 / p99"}.get(family.pattern, "p50 / slowest p99")
    yield from (Column((head, f"µs at {100 * load:g} %")) for load in loads)


def rate_words(cell: PatternCell) -> str:
    """Return the rate in thousands per second, with its interval if there are rounds enough."""
    assert cell.rate_per_s is not None  # noqa: S101 - the caller has checked
    if cell.rounds_count < MIN_CLAIM_ROUNDS:
        return format_significant(cell.rate_per_s.estimate / 1e3, UNSURE_DIGITS)
    return interval_words(scaled(cell.rate_per_s, 1e-3))


def _status(cell: PatternCell) -> str:
    """Return what stands in the place of figures."""
    is_able = cell.status == "failed" or cell.reason.startswith(NOT_REACHED)
    return cell.status if is_able else "cannot"


def _share(ratio: float | None) -> str:
    return NOT_MEASURED if ratio is None else f"{100 * ratio:.0f} %"


def _times(cell: PatternCell, ratio: float) -> str:
    load = next((load for load in cell.loads if load.load_ratio == ratio), None)
    if load is not None and not load.is_held:
        return NOT_HELD
    if load is None or load.wait_p50_ns is None:
        return NOT_MEASURED
    tail = load.slowest_p99_ns if cell.setting.pattern == "fan_in" else load.wait_p99_ns
    return f"{_time(load, load.wait_p50_ns)} / {'n/a' if tail is None else _time(load, tail)}"


def _time(load: LoadFigures, time: Interval) -> str:
    digits = time.digits if load.held_count >= MIN_CLAIM_ROUNDS else UNSURE_DIGITS
    return number(time.estimate, 1e3, digits=min(digits, UNSURE_DIGITS))


def _remarks(cell: PatternCell) -> tuple[str, ...]:
    """Return the remarks on a cell: why it has no figures, or the notes on its figures."""
    return tuple(map(one_line, cell.notes if cell.status == "ok" else (cell.reason,)))


def _marks(cell: PatternCell, letters: dict[str, str]) -> str:
    return " ".join(letters[text] for text in _remarks(cell))


def verdicts(cells: Sequence[PatternCell], subject: str) -> Iterator[str]:
    """Yield for each number of peers and batch which backend carries most, as far as the rounds can tell; `subject`
    tells them from those of other tables.
    """
    if all(cell.rank is None for cell in cells):
        yield f"{subject.removeprefix(', ')}: {verdict(cells)}." if subject else f"{verdict(cells)}."
        return
    for setting, some in groupby(cells, key=lambda cell: cell.setting):
        yield f"{peers_words(setting)}{subject}: {verdict(list(some))}."


def unit_of(setting: PatternSetting) -> str:
    """Return the unit of a rate in thousands: `k tasks/s`, `k msg/s`."""
    return _UNITS[setting.pattern]


def verdict(cells: Sequence[PatternCell]) -> str:
    """Return which backend of one setting carries most; without the setting and without a full stop."""
    measured = [cell for cell in cells if cell.rate_per_s is not None]
    if not measured:
        return "nothing was measured"
    unit = _UNITS[measured[0].setting.pattern]
    ranked = [cell for cell in measured if cell.rank is not None]
    if not ranked:
        rounds = min(cell.rounds_count for cell in measured)
        few = too_few_words(rounds) if rounds < MIN_CLAIM_ROUNDS else "there is nothing to compare it with"
        return f"{measured[0].backend} {rate_words(measured[0])} {unit}, but {few}" if len(measured) == 1 else few
    first = [cell for cell in ranked if cell.rank == 1]
    figures = joined([f"{cell.backend} {rate_words(cell)}" for cell in first])
    text = f"{figures} {unit}" + (", no clear difference" if len(first) > 1 else " is ahead")
    following = next((cell for cell in ranked if cell.rank != 1), None)
    if following is not None and following.ratio is not None:
        text += f"; next {following.backend}, {ratio_words(following.ratio, following.compared_rounds_count)}"
        text += " times as slow"
    return text


def _batch_table(family: PatternSetting, cells: Sequence[PatternCell]) -> Table:
    """Return what batches bring and cost, beside the smallest that the same backend was measured with."""
    least: dict[tuple[int, str], PatternCell] = {}
    rows = []
    loads = _loads(cells)[:1]
    for cell in sorted(cells, key=lambda cell: (cell.setting.peers, cell.backend, cell.setting.batch)):
        base = least.setdefault((cell.setting.peers, cell.backend), cell)
        words = "1" if cell is base else NOT_MEASURED
        if cell is not base and cell.time is not None and base.time is not None:
            words = ratio_words(ratio(base.time, cell.time), rounds_in_common(base.time, cell.time))
        names = (f"{cell.setting.peers}", cell.backend, f"{cell.setting.batch:,}")
        rows.append((*names, words, *(_times(cell, load) for load in loads)))
    return Table(
        title=f"{_title(family)}: what batches bring and cost",
        columns=(
            Column(("", _PEERS[family.pattern][1])),
            Column(("", "backend"), "left", names_row=True),
            Column(("", "batch")),
            Column(("times", "as fast")),
            *_heads(family, loads),
        ),
        rows=tuple(rows),
    )


def _limits_ns(cells: Sequence[PatternCell]) -> set[float]:
    return {cell.calls.p99_limit_ns for cell in cells if cell.calls is not None}


def _within_limit(cell: PatternCell) -> str:
    if cell.calls is None or not cell.calls.within_limit_per_s:
        return "n/a" if cell.calls is not None and cell.calls.within_limit_per_s is None else NOT_MEASURED
    return format_significant(cell.calls.within_limit_per_s / 1e3, UNSURE_DIGITS)


def _cost_table(family: PatternSetting, cells: Sequence[PatternCell]) -> Table:
    """Return what one call at a time costs beside a plain round trip: of each backend, in the trials of the fewest
    clients.
    """
    rows, seen = [], set()
    for cell in sorted(cells, key=lambda cell: (cell.setting.peers, cell.setting.in_flight)):
        calls = cell.calls
        if calls is None or cell.backend in seen:
            continue
        seen.add(cell.backend)
        few = cell.rounds_count < MIN_CLAIM_ROUNDS
        times = [format_significant(time.estimate / 1e3, UNSURE_DIGITS) if few else interval_words(scaled(time, 1e-3))
                 for time in (calls.plain_p50_ns, calls.call_p50_ns)]  # fmt: skip
        rows.append((cell.backend, *times, ratio_words(calls.cost_ratio, cell.rounds_count)))
    return Table(
        title=f"{_title(family)}: a call beside a plain round trip, one at a time",
        columns=(
            Column(("", "backend"), "left", names_row=True),
            Column(("plain", "p50 µs")),
            Column(("call", "p50 µs")),
            Column(("call", "/ plain")),
        ),
        rows=tuple(rows),
    )


def _recovery_table(family: PatternSetting, cells: Sequence[PatternCell]) -> Table:
    """Return what became of the tasks after the first worker of a queue was killed at work."""
    rows, letters = [], footnote_letters(one_line(cell.recovery_reason) for cell in cells if cell.recovery_reason)
    for cell in cells:
        found = cell.recovery
        if found is None and not cell.recovery_reason:
            continue
        counts: list[int | None] = [None] * 5
        if found is not None:
            counts = [found.kills_count, found.sent_count, found.lost_count]
            counts += [found.redelivered_count, found.repeated_count]
        texts = (NOT_MEASURED if count is None else f"{count:,}" for count in counts)
        mark = f"failed: {letters[one_line(cell.recovery_reason)]}" if cell.recovery_reason else ""
        rows.append((cell.backend, f"{cell.setting.peers}", *texts, mark))
    return Table(
        title=f"{_title(family)}: the first worker is killed while it works on a task",
        columns=(
            Column(("", "backend"), "left", names_row=True),
            *(Column(head) for head in (("", "workers"), ("", "kills"), ("tasks", "sent"), ("tasks", "lost"))),
            *(Column(head) for head in (("given to", "others"), ("begun", "twice"))),
            Column(("", "notes"), "left"),
        ),
        rows=tuple(rows),
        footnotes=tuple((letter, text) for text, letter in letters.items()),
    )
