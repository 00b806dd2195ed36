"""A comparison of two runs as aligned text, as Markdown for a pull request and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ipcbench.analysis.compare.compare import MAX_GATE_RATIO, MIN_GATE_RATIO, Change, Comparison
from ipcbench.analysis.compare.rules import Verdict
from ipcbench.analysis.compare.run_cells import CellKey, ComparedMetric
from ipcbench.analysis.summary.cells import RESOLVED_RATIO
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.wording import (
    NOT_KNOWN,
    joined,
    neighbours_words,
    p99_words,
    plural,
    ratio_words,
    size_text,
)
from ipcbench.render.document import document
from ipcbench.render.page import fragment_html
from ipcbench.render.table import NOT_MEASURED, Table, footnote_letters, make_columns
from ipcbench.render.text import WIDTH, aligned, bullets, escape, markdown_table, paragraphs, shortened
from ipcbench.stats.decisions import LEAST_RATIO
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_duration_ns, format_significant

_METRIC_WORDS: Mapping[ComparedMetric, str] = {
    "latency-p50": "one-way p50",
    "latency-p99": "one-way p99",
    "round-trip-p50": "round trip p50",
    "round-trip-p99": "round trip p99",
    "throughput": "throughput",
    "decode-p50": "decode p50",
}
_FIELD_WORDS: Mapping[str, Callable[[CellKey], str]] = {
    "delivery": lambda key: key.delivery,
    "payload": lambda key: key.payload,
    "size": lambda key: size_text(key.payload, key.size),
    "codec": lambda key: key.codec,
    "readers": lambda key: plural(key.readers, "reader", "readers"),
    "rate_per_s": lambda key: f"{key.rate_per_s:g}/s" if key.rate_per_s else NOT_MEASURED,
    "depth": lambda key: f"depth {key.depth:,}",
    "wait": lambda key: f"wait {key.wait}",
    "pin": lambda key: f"pin {key.pin}",
    "touch": lambda key: f"touch {key.touch}",
    "neighbours": lambda key: neighbours_words(key.neighbours),
}
_SECTIONS: tuple[tuple[str, tuple[Verdict, ...]], ...] = (
    ("Changed", ("slower", "faster")),
    ("No clear difference", ("no clear difference",)),
    ("Not comparable", ("not comparable",)),
)
_DECIDED = (
    "slower and faster: all of the 95 % interval of B / A is more than "
    f"{format_significant(100 * LEAST_RATIO, 1)} % from 1, and the p-value, adjusted "
    "by Holm's method for all figures tested, is below 5 %. With fewer than three rounds nothing is claimed. For a "
    "throughput, B / A below 1 is slower."
)
_DECIDES = "decides: the gates that a figure passes or fails for certain; a slower one fails those below its interval."


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The content of a comparison, the same for text and Markdown."""

    summary: str
    header: tuple[str, ...]
    tables: tuple[Table, ...]
    """What changed, what did not, and what is not comparable; any of them may have no rows."""
    notes: tuple[str, ...]
    """The footnotes of the tables, and how verdicts are decided."""


def as_json(comparison: Comparison) -> str:
    """Return all figures unrounded, times in ns, throughput in messages per second."""
    return document("comparison", comparison.as_dict())


def as_html(comparison: Comparison) -> str | None:
    """Return a part of a page for a notebook; None without jinja2."""
    sheet = _sheet(comparison, gates=False)
    tables = [table.without_empty_columns() for table in sheet.tables]
    return fragment_html(sheet.summary, tables, [("Runs, notes and how it was decided", [*sheet.header, *sheet.notes])])


def as_text(comparison: Comparison, *, gates: bool = False, width: int = WIDTH) -> str:
    """Return plain text: the summary, what changed, what did not, and what is not comparable and why.

    Args:
        comparison: what to show.
        gates: show the smallest gate that is decided, of each figure and of all.
        width: of the lines, in characters.
    """
    sheet = _sheet(comparison, gates=gates)
    parts = [paragraphs((sheet.summary, *sheet.header), width)]
    parts += [[f"{table.title}:", *aligned(table.without_empty_columns())] for table in sheet.tables if table.rows]
    parts.append(paragraphs(sheet.notes, width))
    return "\n\n".join(map("\n".join, parts)) + "\n"


def as_markdown(comparison: Comparison, *, gates: bool = False) -> str:
    """Return Markdown for a pull request: the summary, a table of what changed, the rest folded; see `as_text`."""
    sheet = _sheet(comparison, gates=gates)
    changed, *others = sheet.tables
    parts = [f"**{escape(sheet.summary)}**"]
    parts += [_markdown_table(changed)] if changed.rows else []
    parts += [_folded(f"{table.title} ({len(table.rows)})", _markdown_table(table)) for table in others if table.rows]
    parts.append(_folded("Runs, notes and how it was decided", bullets((*sheet.header, *sheet.notes))))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    return markdown_table(table.without_empty_columns(), names_as_code=True)


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def _sheet(comparison: Comparison, *, gates: bool) -> _Sheet:
    varying = _varying([change.cell for change in comparison.changes])
    common = _common_notes(comparison)
    remarks = {id(change): _remarks(change, common) for change in comparison.changes}
    letters = footnote_letters(text for texts in remarks.values() for text in texts)
    gated = comparison.gate_ratio is not None
    heads = ("backend", *(name.removesuffix("_per_s") for name in varying), "figure", "A", "B", "B / A [95 %]")
    heads += ("verdict", *(("gate",) if gated else ()), *(("decides",) if gates else ()), "notes")
    columns = make_columns(heads, left=range(len(heads)))
    where = " (other machine)" if comparison.machine_differences else ""
    tables = []
    for title, verdicts in _SECTIONS:
        changes = [change for verdict in verdicts for change in comparison.changes if change.verdict == verdict]
        rows = (
            _row(change, varying, [letters[text] for text in remarks[id(change)]], gated=gated, gates=gates)
            for change in changes
        )
        tables.append(Table(f"{title}{where}", columns, tuple(rows)))
    return _Sheet(
        summary=_summary(comparison) + (_smallest_gate_words(comparison) if gates else ""),
        header=tuple(_header(comparison, varying, common)),
        tables=tuple(tables),
        notes=(
            *(f"{letter}: {text}" for text, letter in letters.items()),
            _DECIDED,
            *((_DECIDES,) if gates else ()),
        ),
    )


def _summary(comparison: Comparison) -> str:
    verdicts: tuple[Verdict, ...] = ("slower", "faster", "no clear difference", "not comparable")
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in verdicts)
    gate = ""
    if comparison.gate_ratio is not None:
        gate = f"; gate {100 * comparison.gate_ratio:g} %: {comparison.outcome}"
    where = " (different machines)" if comparison.machine_differences else ""
    return f"ipcbench: B against A{where}: {counts}{gate}"


def _header(comparison: Comparison, varying: Sequence[str], common: Sequence[str]) -> Iterator[str]:
    yield f"A is {comparison.run_a}, B is {comparison.run_b}"
    if comparison.run_a == comparison.run_b:
        yield "A and B are the same run"
    if comparison.by_rounds:
        yield "A and B are compared round by round of one run; B / A may differ from the quotient of the two figures"
    if comparison.machine_differences:
        yield f"different machines, so verdicts compare these too: {'; '.join(comparison.machine_differences)}"
    if comparison.version_differences:
        yield f"versions that differ, A / B: {'; '.join(comparison.version_differences)}"
    if comparison.backend_differences:
        unlike = ", ".join(map(one_line, comparison.backend_differences))
        yield f"not the same backends took turns: {unlike}; that alone may change the figures of the others"
    if comparison.changes:
        first = comparison.changes[0].cell
        same = [words(first) for name, words in _FIELD_WORDS.items() if name not in {*varying, "rate_per_s"}]
        yield f"all cells: {', '.join(same)}"
    both = sum(change.ratio is not None for change in comparison.changes)
    untested = f" of {both}; the others have fewer than three rounds" if comparison.tests_count < both else ""
    if comparison.absent_metrics:
        words = joined([_METRIC_WORDS[metric] for metric in comparison.absent_metrics])
        yield f"measured in neither: {words}"
    yield f"tested: {plural(comparison.tests_count, 'figure', 'figures')}{untested}"
    yield from (f"all: {note}" for note in common)
    yield from (f"problem: {one_line(problem)}" for problem in comparison.problems)


def _varying(keys: Sequence[CellKey]) -> tuple[str, ...]:
    """Return the fields besides the backend in which the cells differ; the metric tells the mode."""
    varying = [name for name in _FIELD_WORDS if len({getattr(key, name) for key in keys}) > 1]
    # The rate follows from size and mode; it is shown only if some cells differ in nothing else.
    without_rate = {replace(key, rate_per_s=0.0) for key in keys}
    return tuple(name for name in varying if name != "rate_per_s" or len(without_rate) < len(set(keys)))


def _common_notes(comparison: Comparison) -> tuple[str, ...]:
    compared = [change.notes for change in comparison.changes if change.ratio is not None]
    if len(compared) < 2:
        return ()
    return tuple(text for text in compared[0] if all(text in notes for notes in compared))


def _remarks(change: Change, common: Sequence[str]) -> tuple[str, ...]:
    texts = (change.reason, *(text for text in change.notes if text not in common))
    return tuple(one_line(text) for text in texts if text)


def _smallest_gate_words(comparison: Comparison) -> str:
    smallest = comparison.smallest_gate_ratio
    if smallest is None:
        return "; no gate is decided by all figures"
    return f"; the smallest gate that all figures decide: {_percent(smallest)}"


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.2f} %"


def _step_below(gate_ratio: float) -> float:
    """Return the largest gate below it that can be given: gates have steps of 0.01 %."""
    return MIN_GATE_RATIO * (math.ceil(gate_ratio / MIN_GATE_RATIO) - 1)


def _step_above(gate_ratio: float) -> float:
    return MIN_GATE_RATIO * (math.floor(gate_ratio / MIN_GATE_RATIO) + 1)


def _row(
    change: Change, varying: Sequence[str], letters: Sequence[str], *, gated: bool, gates: bool
) -> tuple[str, ...]:
    verdict: str = (
        change.verdict if change.verdict in _SECTIONS[0][1] else ""
    )  # the titles of the other sections say it
    if verdict and change.across_machines:
        verdict += " (other machine)"
    figures = [
        _figure(figure, change.metric, p50) for figure, p50 in zip((change.a, change.b), change.medians, strict=True)
    ]
    ratio = "" if change.ratio is None else ratio_words(change.ratio, None if change.p_value is not None else 0)
    return (
        shortened(one_line(change.cell.backend)),
        *(_FIELD_WORDS[field](change.cell) for field in varying),
        _METRIC_WORDS[change.metric],
        *figures,
        NOT_KNOWN if NOT_KNOWN in figures else ratio,
        verdict,
        *((change.gate or "",) if gated else ()),
        *((_decides(change),) if gates else ()),
        " ".join(letters),
    )


def _decides(change: Change) -> str:
    smallest, times = change.smallest_gate_ratio, change.time_ratio
    if smallest is None or times is None:
        return "none"
    if change.verdict != "slower":
        return f"≥ {_percent(smallest)}"
    failed, passed = min(_step_below(times.low - 1.0), MAX_GATE_RATIO), _step_above(times.high - 1.0)
    passes = passed <= MAX_GATE_RATIO and change.at_gate(passed) == "passed"  # not with new failures
    return f"≤ {_percent(failed)}" + (f", ≥ {_percent(passed)}" if passes else "")


def _figure(interval: Interval | None, metric: ComparedMetric, p50: Interval | None) -> str:
    if metric.endswith("p99") and (interval is None or interval.high > RESOLVED_RATIO * interval.low):
        words = p99_words(p50, interval)
        return f"{words} µs" if words[-1].isdigit() else words
    if interval is None:
        return NOT_MEASURED
    if metric == "throughput":
        return f"{format_significant(interval.estimate / 1e3)} k/s"
    return format_duration_ns(interval.estimate)
