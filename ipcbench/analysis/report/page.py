"""report.html: one file that opens offline, fetches nothing and executes nothing from data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from ipcbench.analysis.report.page_words import PageWords, badges, failure_rows, noise_rows
from ipcbench.analysis.report.tables import Tables
from ipcbench.analysis.summary.cells import Summary
from ipcbench.analysis.summary.notes import one_line
from ipcbench.render.charts import ChartGroup
from ipcbench.render.page import render_page
from ipcbench.util.units import format_duration_ns, format_significant

_TEMPLATE = files("ipcbench.analysis.report") / "assets" / "report.html.j2"
_MAX_YEAR_S = 2e11


def report_html(tables: Tables, groups: Sequence[ChartGroup], words: PageWords) -> str:
    """Return the page.

    Args:
        tables: of the run, shown as they are printed.
        groups: of charts.
        words: what stands first.

    Raises:
        ImportError: there is no jinja2.
    """
    summary = tables.summary
    return render_page(
        _TEMPLATE.read_text(encoding="utf-8"),
        groups,
        info=summary.info,
        started=_date(summary.info.started_unix_s),
        words=words,
        badges=badges(summary),
        tables=tables,
        facts=_facts(summary),
        noise=_noise(summary),
        noise_rows=noise_rows(summary),
        failures=failure_rows(summary),
        problems=[one_line(one) for one in summary.problems],
        command=reproduce(summary),
        sweep=json.dumps(summary.info.sweep, indent=2, ensure_ascii=False, default=str),
    )


def reproduce(summary: Summary) -> str:
    """Return the command that reproduces the run; of a run made by a program, the call."""
    info = summary.info
    if info.command:
        return shlex.join(info.command)
    sweep = json.dumps(json.dumps(info.sweep, ensure_ascii=True, default=str))
    return f"import json\nfrom ipcbench import SweepSpec, run\n\nrun(SweepSpec.from_dict(json.loads({sweep})))"


def _date(unix_s: float) -> str:
    if not 0 <= unix_s < _MAX_YEAR_S:
        return "at an unknown time"
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def _facts(summary: Summary) -> Mapping[str, Mapping[str, str]]:
    """Return what is known of machine, versions and harness, each as name → text."""
    info = summary.info
    facts = {
        "Machine": {_name(key): _fact(key, value) for key, value in info.machine.items() if value not in (None, [])},
        "Versions": {key: one_line(str(value)) for key, value in info.versions.items()},
    }
    if info.floor is not None:
        floor = info.floor
        facts["Harness floor"] = {
            "writer's loop": f"{format_duration_ns(floor.writer_ns)} per message",
            "reader's loop": f"{format_duration_ns(floor.reader_ns)} per message",
            "reading the clock": format_duration_ns(floor.clock_ns),
            "clock step": format_duration_ns(floor.clock_resolution_ns),
            **{
                f"memory copy of {size} B": f"{format_significant(rate / 1e6)} MB/s"
                for size, rate in floor.memcpy_bytes_per_s.items()
            },
        }
    return facts


def _name(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _fact(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{format_significant(value / 2**30)} GiB"
    if isinstance(value, list | tuple):
        return one_line(", ".join(map(str, value)))
    return one_line(str(value))


def _noise(summary: Summary) -> Mapping[str, str]:
    found = {
        f"A/A noise floor, {metric}": f"{format_significant(100 * ratio)} %"
        for metric, ratio in summary.noise_ratios.items()
    }
    if summary.placement_ns is not None:
        low, high = summary.placement_ns
        found["placement probe"] = f"{format_duration_ns(low)} to {format_duration_ns(high)}"
    return found
