"""A difference of two traces as text, Markdown and JSON."""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict

from ipcbench.stats.decisions import LEAST_RATIO, MIN_DIFFERENCE_RATIO
from ipcbench.stats.estimates import Interval
from ipcbench.trace.compare.diff import Change, Diff, MethodDiff, Verdict, worst_first
from ipcbench.util.units import format_duration_ns, format_significant

_HEAD = ("method", "calls A", "calls B", "figure", "A", "B", "B / A [95 %]", "verdict")
_LEFT = {0, 3, 7}
_MOST_NAME = 40
_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#~&"})
_WIDTH = 100


def _decided() -> str:
    return (
        "slower and faster: all of the 95 % interval of B / A is more than "
        f"{format_significant(100 * LEAST_RATIO, 1)} % from 1, and the difference is more than "
        f"{format_significant(100 * MIN_DIFFERENCE_RATIO, 1)} %. Intervals are by a bootstrap of blocks of time "
        "within these two traces, each by itself: of 20 figures that are equal, up to one is called different; and how "
        "one run of the application differs from the next is not in them."
    )


def as_text(found: Diff) -> str:
    """Return a table for a terminal."""
    rows = [_HEAD, *_rows(found)]
    widths = [max(_columns(row[index]) for row in rows) for index in range(len(_HEAD))]

    def line(row: Sequence[str]) -> str:
        cells = (
            text + " " * (width - _columns(text)) if index in _LEFT else " " * (width - _columns(text)) + text
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    words = textwrap.wrap(_decided(), _WIDTH)
    return "\n".join([_summary(found), *_notes(found), "", *map(line, rows), "", *words]) + "\n"


def as_markdown(found: Diff) -> str:
    """Return a table for a pull request."""
    lines = [f"**{_summary(found).translate(_SPECIAL)}**", ""]
    lines += [f"- {one.translate(_SPECIAL)}" for one in _notes(found)]
    lines += [
        "",
        f"| {' | '.join(_HEAD)} |",
        "|" + "".join("---|" if i in _LEFT else "---:|" for i in range(len(_HEAD))),
    ]
    lines += [f"| {' | '.join(text.translate(_SPECIAL) for text in row)} |" for row in _rows(found)]
    return "\n".join([*lines, "", _decided()]) + "\n"


def as_json(found: Diff) -> str:
    """Return everything; times in ns, nothing rounded."""
    document = {
        "format": "ipcbench trace diff",
        "version": 1,
        "a": [str(path) for path in found.a.paths],
        "b": [str(path) for path in found.b.paths],
        "methods": [asdict(one) for one in found.methods],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode(errors="replace").decode() + "\n"


def _summary(found: Diff) -> str:
    verdicts: tuple[Verdict, ...] = ("slower", "faster", "no clear difference", "not comparable")
    return "B against A: " + ", ".join(f"{found.count(one)} {one}" for one in verdicts)


def _notes(found: Diff) -> list[str]:
    named = [f"{letter} is {', '.join(map(str, one.paths))}" for letter, one in (("A", found.a), ("B", found.b))]
    return named + [f"{letter}: {words}" for letter, one in (("A", found.a), ("B", found.b)) for words in one.words()]


def _rows(found: Diff) -> list[tuple[str, ...]]:
    return [_row(one, change, index) for one in worst_first(found.methods) for index, change in enumerate(_told(one))]


def _told(one: MethodDiff) -> Sequence[Change]:
    """Return the figures to be told; one is enough of a method that only one trace has."""
    return one.changes[:1] if one.changes[0].why.startswith("only in") else one.changes


def _row(one: MethodDiff, change: Change, index: int) -> tuple[str, ...]:
    first = (shown_name(one.method), f"{one.a_count:,}", f"{one.b_count:,}") if not index else ("", "", "")
    verdict = f"{change.verdict}: {change.why}" if change.why else change.verdict
    return (*first, change.figure, _time(change.a_ns), _time(change.b_ns), _ratio(change.times), verdict)


def shown_name(name: str) -> str:
    """Return a name of one line without anything that commands a terminal, and not too long."""
    plain = " ".join(re.sub(r"\s+", " ", "".join(char if char.isprintable() else " " for char in name)).split()) or "?"
    return plain if len(plain) <= _MOST_NAME else plain[: _MOST_NAME - 1] + "…"


def _time(value_ns: float | None) -> str:
    return "–" if value_ns is None else format_duration_ns(value_ns)


def _ratio(times: Interval | None) -> str:
    if times is None:
        return "–"
    low, middle, high = (format_significant(one) for one in (times.low, times.estimate, times.high))
    return f"{middle} [{low}–{high}]"


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
