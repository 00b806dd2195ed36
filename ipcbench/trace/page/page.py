"""The page of a trace: its report and its plots; nothing is fetched, and nothing from data is executed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ipcbench.render.page import Badge, render_page
from ipcbench.render.table import Table
from ipcbench.trace.page.charts import chart_groups
from ipcbench.trace.page.sample import draw
from ipcbench.trace.page.words import word
from ipcbench.trace.readers.everything import find
from ipcbench.trace.report import render
from ipcbench.trace.report.render import Report
from ipcbench.trace.report.words import Language
from ipcbench.trace.report.words import word as report_word

_TEMPLATE = files("ipcbench.trace.page") / "assets" / "trace.html.j2"
_LABELS = ("skip", "theme", "state", "sections", "reproduce", "command", "copy", "footer")


@dataclass(frozen=True, slots=True)
class PageGroup:
    """A segment of a trace: its totals in a line, and its tables."""

    title: str
    overall: str
    tables: tuple[Table, ...]


def trace_html(report: Report, paths: Sequence[Path], language: Language = "en") -> str:
    """Return the page of a report.

    Args:
        report: the content.
        paths: of the trace; they are read again for the plots.
        language: of everything but names.

    Raises:
        ImportError: jinja2 is not installed.
        StoreError: the paths cannot be read.
    """
    groups = chart_groups(draw(find(paths)), language)
    several = len({group.segment.source for group in report.gathered.sums.groups}) > 1
    return render_page(
        _TEMPLATE.read_text(encoding="utf-8"),
        groups,
        language=language,
        brand=word("brand", language),
        labels={key: word(key, language) for key in _LABELS},
        sections=[
            ("findings", report_word("findings", language)),
            *([("plots", word("plots", language))] if groups else []),
            ("figures", word("figures", language)),
            ("audit", report_word("audit", language)),
            ("reproduce", word("reproduce", language)),
        ],
        title=", ".join(path.name or str(path) for path in paths),
        subtitle=", ".join(map(str, paths)),
        badges=list(_badges(report, language)),
        findings=[render.sentence(finding, report.total_ns, language) for finding in report.findings],
        objections=[render.objection_text(objection, language) for objection in report.objections],
        segments=[
            PageGroup(
                f"{group.segment.source}: {group.segment.name}" if several else group.segment.name,
                render.overall(group, language),
                tuple(render.tables(group, language)),
            )
            for group in report.gathered.sums.groups
        ],
        command=shlex.join(["ipcbench", "trace", "report", *map(str, paths), "--html", "trace.html"]),
        word=lambda key: word(key, language),
        said=lambda key: report_word(key, language),
    )


def _badges(report: Report, language: Language) -> Iterator[Badge]:
    groups = report.gathered.sums.groups
    calls = sum(group.calls_count for group in groups)
    failed = sum(sums.failed_count for group in groups for sums in group.methods.values())
    damaged = report.gathered.notes.damaged_count
    yield Badge(word("calls", language, count=f"{calls:,}"), "plain", "figures")
    if failed:
        yield Badge(word("failed", language, count=f"{failed:,}"), "bad", "figures")
    if damaged:
        yield Badge(word("damaged", language, count=f"{damaged:,}"), "warn", "audit")
    if report.objections:
        yield Badge(word("objections", language, count=len(report.objections)), "warn", "audit")
    elif not damaged:
        yield Badge(word("sound", language), "good", "audit")
