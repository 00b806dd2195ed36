"""A difference of two traces as text, Markdown and JSON."""

from __future__ import annotations

from dataclasses import asdict

from ipcbench.render.document import document
from ipcbench.render.table import NOT_MEASURED, Table, make_columns
from ipcbench.render.text import aligned, bullets, escape, markdown_table, shortened, wrapped
from ipcbench.stats.decisions import LEAST_RATIO
from ipcbench.stats.estimates import Interval
from ipcbench.trace.compare.diff import Change, Diff, MethodDiff, Verdict, worst_first
from ipcbench.util.units import format_duration_ns, format_significant

_HEADS = ("method", "calls A", "calls B", "figure", "A", "B", "B / A [95 %]", "verdict")
_MAX_NAME_CELLS = 40
_DECIDED = (
    "slower and faster: all of the 95 % interval of B / A is more than "
    f"{format_significant(100 * LEAST_RATIO, 1)} % from 1. Intervals are 95 % each, from a bootstrap of blocks "
    "of time within these two traces: of 20 equal figures, up to one is called different. They do not cover how "
    "one run of the application differs from the next."
)


def as_text(diff: Diff) -> str:
    """Return a table for a terminal."""
    lines = [_summary(diff), *_notes(diff), "", *aligned(_table(diff)), "", *wrapped(_DECIDED, indent="")]
    return "\n".join(lines) + "\n"


def as_markdown(diff: Diff) -> str:
    """Return a table for a pull request."""
    parts = (f"**{escape(_summary(diff))}**", bullets(_notes(diff)), markdown_table(_table(diff)), _DECIDED)
    return "\n\n".join(parts) + "\n"


def as_json(diff: Diff) -> str:
    """Return all figures unrounded, times in ns."""
    fields = {
        "a": [str(path) for path in diff.a.paths],
        "b": [str(path) for path in diff.b.paths],
        "methods": [asdict(method) for method in diff.methods],
    }
    return document("trace diff", fields)


def _summary(diff: Diff) -> str:
    verdicts: tuple[Verdict, ...] = ("slower", "faster", "no clear difference", "not comparable")
    return "B against A: " + ", ".join(f"{diff.count(verdict)} {verdict}" for verdict in verdicts)


def _notes(diff: Diff) -> list[str]:
    named = [f"{letter} is {', '.join(map(str, side.paths))}" for letter, side in (("A", diff.a), ("B", diff.b))]
    return named + [f"{letter}: {words}" for letter, side in (("A", diff.a), ("B", diff.b)) for words in side.words()]


def _table(diff: Diff) -> Table:
    rows = (
        _row(method, change, index)
        for method in worst_first(diff.methods)
        for index, change in enumerate(_told(method))
    )
    return Table("", make_columns(_HEADS, left=(0, 3, 7)), tuple(rows))


def _told(method: MethodDiff) -> tuple[Change, ...]:
    """Return the figures to show; for a method of only one trace, the first is enough."""
    return method.changes[:1] if method.changes[0].why.startswith("only in") else method.changes


def _row(method: MethodDiff, change: Change, index: int) -> tuple[str, ...]:
    first = (_shown_name(method.method), f"{method.a_count:,}", f"{method.b_count:,}") if not index else ("", "", "")
    verdict = f"{change.verdict}: {change.why}" if change.why else change.verdict
    return (*first, change.figure, _time(change.a_ns), _time(change.b_ns), _ratio(change.times), verdict)


def _shown_name(name: str) -> str:
    """Return a name as one line without control characters; of a long one, the start."""
    plain = " ".join("".join(char if char.isprintable() else " " for char in name).split())
    return shortened(plain or "?", _MAX_NAME_CELLS, keep="start")


def _time(value_ns: float | None) -> str:
    return NOT_MEASURED if value_ns is None else format_duration_ns(value_ns)


def _ratio(times: Interval | None) -> str:
    if times is None:
        return NOT_MEASURED
    low, middle, high = (format_significant(value) for value in (times.low, times.estimate, times.high))
    return f"{middle} [{low}–{high}]"
