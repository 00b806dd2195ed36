"""report.html: one file that holds everything, opens offline, asks nobody for anything and executes nothing from data.

What does not live here: the sentences (page_words.py), the charts (charts.py), the layout (assets/).
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from ipcbench.analysis.cells import Summary
from ipcbench.analysis.charts import ChartGroup
from ipcbench.analysis.layout import Tables
from ipcbench.analysis.notes import one_line
from ipcbench.analysis.page_data import groups_json
from ipcbench.analysis.page_words import PageWords, badges, failure_rows, noise_rows
from ipcbench.units import format_duration_ns, format_significant

_ASSETS = files("ipcbench.analysis") / "assets"
_SCRIPTS = ("plotly-basic.min.js", "report.js")
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
        _asset("report.html.j2"),
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


def render_page(template: str, groups: Sequence[ChartGroup], **values: Any) -> str:
    """Return a page of one file: a template with its charts, the style, the scripts and a policy that lets in no other.

    Args:
        template: in which all values are escaped; it may include other files of assets/.
        groups: of charts, in the template too.
        values: what the template needs besides.

    Raises:
        ImportError: there is no jinja2.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    scripts = [_asset(name) for name in _SCRIPTS]
    page = environment.from_string(template).render(
        policy=_policy(scripts),
        style=Markup(_asset("report.css")),  # noqa: S704 # ours, as are the scripts
        scripts=[Markup(one) for one in scripts],  # noqa: S704
        charts=Markup(groups_json(groups)),  # noqa: S704 # JSON without a single `<`
        groups=groups,
        **values,
    )
    return page.lstrip().encode(errors="replace").decode()  # half a surrogate pair in a name cannot be written


def reproduce(summary: Summary) -> str:
    """Return the command that reproduces the run; of a run made by a program, the call."""
    info = summary.info
    if info.command:
        return shlex.join(info.command)
    sweep = json.dumps(json.dumps(info.sweep, ensure_ascii=True, default=str))
    return f"import json\nfrom ipcbench import SweepSpec, run\n\nrun(SweepSpec.from_dict(json.loads({sweep})))"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy under which only these scripts run and nothing is fetched."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    rules = {
        "default-src": "'none'",
        "script-src": hashes,
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


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
