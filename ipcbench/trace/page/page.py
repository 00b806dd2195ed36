"""The page of a trace: its report and its plots; nothing is fetched, and nothing from data is executed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ipcbench.render.charts import shown_name
from ipcbench.render.page import Badge, Headline, render_page
from ipcbench.render.table import Table
from ipcbench.trace.page.charts import chart_groups, stage_times
from ipcbench.trace.page.sample import MethodSample, Sample, callers, draw
from ipcbench.trace.page.words import word
from ipcbench.trace.readers.everything import find
from ipcbench.trace.report import render
from ipcbench.trace.report.phrases import localized
from ipcbench.trace.report.render import Report
from ipcbench.trace.report.shares import is_known
from ipcbench.trace.report.sums import MethodSums
from ipcbench.trace.report.words import Language
from ipcbench.trace.report.words import word as report_word
from ipcbench.util.shell import shell_command
from ipcbench.util.units import format_duration_ns, format_percent

_TEMPLATE = files("ipcbench.trace.page") / "assets" / "trace.html.j2"
LABELS = ("skip", "theme", "state", "sections", "reproduce", "command", "copy", "copied", "selected", "scroll",
          "choice", "series", "figures", "as_table", "answer", "noscript", "footer")  # fmt: skip
"""What the templates say themselves, by the keys of the words."""


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
    sample = draw(find(paths))
    groups = chart_groups(sample, language)
    segments = report.gathered.sums.groups
    return render_page(
        _TEMPLATE.read_text(encoding="utf-8"),
        [verdict(report, sample, language)],
        groups,
        language=language,
        brand=word("brand", language),
        labels={key: word(key, language) for key in LABELS},
        sections=[
            ("findings", report_word("findings", language)),
            *([("plots", word("plots", language))] if groups[1:] else []),
            ("figures", word("figures", language)),
            ("audit", report_word("audit", language)),
            ("reproduce", word("reproduce", language)),
        ],
        title=", ".join(path.name or str(path) for path in paths),
        subtitle=", ".join(map(str, paths)),
        badges=list(_badges(report, sample, language)),
        findings=[render.sentence(finding, report.total_ns, language) for finding in report.findings],
        objections=[render.objection_text(objection, language) for objection in report.objections],
        segments=[
            PageGroup(
                title,
                render.overall(group, language),
                tuple(render.tables(group, language)),
            )
            for group, title in zip(segments, render.titles_of(segments, language), strict=True)
        ],
        command=shell_command("ipcbench", "trace", "report", *paths, "--html", "trace.html"),
        word=lambda key: word(key, language),
        said=lambda key: report_word(key, language),
    )


def verdict(report: Report, sample: Sample, language: Language) -> Headline:
    """Return where the time of the calls goes, and what saves most of it. A call known from both sides counts once."""
    methods = callers(sample.methods)
    times_ns = _times_ns(report, methods)
    total_ns = sum(times_ns.values())
    calls = f"{_calls_count(sample):,}"
    if total_ns <= 0:
        return Headline(word("verdict untimed", language, calls=calls))
    longest = max(methods, key=lambda method: times_ns[method.role, method.name])
    if not all(is_known(sums) for _, sums in _all_sums(report, methods)):
        return Headline(word("verdict few", language, calls=calls))
    is_estimate = any(method.sums.untimed_count for method in methods)
    share = format_percent(times_ns[longest.role, longest.name] / total_ns)
    total = format_duration_ns(total_ns)
    if is_estimate:
        errors_ns = (sums.total_error_ratio * sums.total_ns for _, sums in _all_sums(report, methods))
        total = f"≈ {total} ± {format_duration_ns(math.hypot(*errors_ns))}"
    name = shown_name(localized(longest.name, language))
    lead = word("verdict", language, calls=calls, total=total, share=share, method=name)
    times = stage_times(longest, language)
    stage = max(times, key=lambda name: times[name])
    parts = [word("verdict stage", language, stage=stage, share=format_percent(times[stage] / sum(times.values())))]
    saving = next((finding for finding in report.findings if finding.gain_ns), None)
    if saving is not None:
        said = render.sentence(saving, report.total_ns, language)
        parts.append(word("verdict save", language, finding=said))
    elif not report.findings:
        parts.append(word("verdict none", language))
    tells_stage = len(longest.sums.stage_ns) > 1 and not is_estimate  # these are of the timed calls
    return Headline(lead + ("" if language == "zh" else " ") + " ".join(parts[0 if tells_stage else 1 :]))


def _times_ns(report: Report, methods: Sequence[MethodSample]) -> dict[tuple[int, str], float]:
    """Return the time of all calls of each method, those that were only counted included."""
    times_ns = {(method.role, method.name): 0.0 for method in methods}
    for key, sums in _all_sums(report, methods):
        times_ns[key] += sums.total_ns
    return times_ns


def _all_sums(report: Report, methods: Sequence[MethodSample]) -> Iterator[tuple[tuple[int, str], MethodSums]]:
    """Yield role, name and sums of these methods, of each segment."""
    keys = {(method.role, method.name) for method in methods}
    for group in report.gathered.sums.groups:
        for name, sums in group.methods.items():
            if (group.segment.role, name) in keys:
                yield (group.segment.role, name), sums


def _calls_count(sample: Sample) -> int:
    return sum(method.sums.calls_count for method in callers(sample.methods))


def _badges(report: Report, sample: Sample, language: Language) -> Iterator[Badge]:
    groups = report.gathered.sums.groups
    calls = _calls_count(sample)
    failed = sum(sums.failed_count for group in groups for sums in group.methods.values())
    least = "≥ " if any(group.calls_count > group.timed_count for group in groups) else ""
    damaged = report.gathered.notes.damaged_count
    yield Badge(word("calls", language, count=f"{calls:,}"), "plain", "figures")
    if failed:
        yield Badge(word("failed", language, count=f"{least}{failed:,}"), "bad", "figures")
    if damaged:
        yield Badge(word("damaged", language, count=f"{damaged:,}"), "warn", "audit")
    if report.objections:
        yield Badge(word("objections", language, count=len(report.objections)), "warn", "audit")
    elif not damaged:
        yield Badge(word("sound", language), "good", "audit")
