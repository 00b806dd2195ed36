"""report.html: the verdict first, then parts, layers, operators, communication, memory, advice, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from itertools import chain

from ipcbench.profile.advice import Advice, percent
from ipcbench.profile.files import tables
from ipcbench.profile.files.documents import method
from ipcbench.profile.files.plots import color_number
from ipcbench.profile.records import Setting, Unavailable
from ipcbench.profile.summary import WAIT, Summary
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, shown_name
from ipcbench.render.page import Badge, Headline, render_page
from ipcbench.render.table import Table
from ipcbench.trace.page.page import LABELS
from ipcbench.trace.page.words import word
from ipcbench.util.text import printable
from ipcbench.util.units import format_duration_ns

_TEMPLATE = files("ipcbench.profile.files") / "assets" / "profile.html.j2"


def profile_html(summary: Summary, advice: Sequence[Advice], missing: Sequence[Unavailable], command: str) -> str:
    """Return the page of a profile.

    Args:
        summary: the content.
        advice: what rules found.
        missing: what could not be had.
        command: that makes the page.

    Raises:
        ImportError: jinja2 is not installed.
    """
    setting = summary.profile.setting
    facts = [f"{name}: {printable(str(value))}" for name, value in summary.profile.machine.items() if value is not None]
    parts: list[tuple[str, str, Table | None, Sequence[str]]] = [
        ("advice", "What would help", None, tables.advice_lines(advice)),
        *((key, table.title, table, ()) for key, table in tables.tables_of(summary).items()),
        ("remarks", "Remarks", None, list(tables.sentences(summary))),
        ("missing", "Not available here", tables.unavailable_table(missing), ()),
        ("method", "How it was measured", None, [*chain(*method(summary))]),
        ("machine", "Machine", None, facts),
    ]
    shown = [part for part in parts if part[3] or (part[2] and part[2].rows)]
    return render_page(
        _TEMPLATE.read_text(encoding="utf-8"),
        [Headline(tables.verdict(summary, advice))],
        _charts(summary),
        language="en",
        brand="ipcbench profile",
        labels={key: word(key, "en") for key in LABELS} | {"footer": "Made by ipcbench from profile.json."},
        sections=[*((key, key.capitalize()) for key, *_ in shown), ("reproduce", word("reproduce", "en"))],
        title=printable(setting.model) if setting else "Calls of another tool",
        subtitle=setting and f"{_ranks_words(setting)}, batch {setting.batch}, {setting.dtype}",
        badges=_badges(summary, missing),
        parts=shown,
        command=command,
    )


def _ranks_words(setting: Setting) -> str:
    return "one process" if setting.parallel == "none" else f"{setting.parallel} over {setting.transport}"


def _badges(summary: Summary, missing: Sequence[Unavailable]) -> list[Badge]:
    profile = summary.profile
    badges = []
    if profile.agreement:
        good = profile.agreement.holds
        badges.append(Badge("logits agree" if good else "logits differ", "good" if good else "bad", "remarks"))
    if summary.totals:
        resolved = all(total.overhead.is_resolved for total in summary.totals)
        text = "own cost known" if resolved else "own cost not resolvable"
        badges.append(Badge(text, "good" if resolved else "warn", "remarks"))
    waits = max((each.share(WAIT) for each in summary.phases), default=0.0)
    if waits:
        badges.append(Badge(f"waiting up to {percent(waits)}", "plain", "parts"))
    if missing:
        badges.append(Badge(f"{len(missing)} not available", "plain", "missing"))
    return badges


def _charts(summary: Summary) -> list[ChartGroup]:
    """Return the parts of a step by phase and rank, stacked, if there are any."""
    bars = [f"{each.phase}, rank {each.rank}" for each in summary.phases]
    series = []
    for name in summary.bucket_names:
        points = tuple(
            Point(float(place), 100 * each.share(name), (bar, f"{shown_name(name)}: {percent(each.share(name))}",
                                                         format_duration_ns(each.ns(name))))
            for place, (bar, each) in enumerate(zip(bars, summary.phases, strict=True), 1)
            if each.ns(name) > 0
        )  # fmt: skip
        if points:
            series.append(Series(shown_name(name), color_number(name, summary), "stack", points))
    if not series:
        return []
    ticks = tuple((float(place), shown_name(bar)) for place, bar in enumerate(bars, 1))
    title = "Where a step goes"
    axes = Axis("step", "of a rank", log=False, ticks=ticks), Axis("share of the step", "%", log=False)
    chart = Chart(title, printable(summary.setting.model), "", *axes, tuple(series))
    return [ChartGroup("parts", title, "Each bar is a step; its parts add up to its wall time.", (chart,))]
