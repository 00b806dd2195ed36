"""What is written of a profile: JSON, CSV, README.md, pictures, a timeline and a page.

- `tables`: sentences and tables; `screen` is what a terminal shows
- `documents`: CSV, JSON and README.md
- `plots`: the pictures
- `page`: report.html
- `timeline`: slices and arrows, as Perfetto's and Chrome's traces
- `sweeps`: the files of a sweep
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from ipcbench.errors import ConfigError
from ipcbench.profile.advice import advise
from ipcbench.profile.files import documents
from ipcbench.profile.files.page import profile_html
from ipcbench.profile.files.plots import PLOTS, Draw, Plot
from ipcbench.profile.files.timeline import perfetto
from ipcbench.profile.records import FILE, NO_FAILURE, Profile, SweepPoint, Unavailable, write_profile
from ipcbench.profile.summary import Summary, summarize
from ipcbench.render.figures import saved
from ipcbench.util.files import write_bytes
from ipcbench.util.reference import require_new_name, users_own

Metric = Callable[[Summary], Any]
_METRICS: dict[str, Metric] = {}
_EXTRA = "pip install 'ipcbench[report]'"


@dataclass(frozen=True, slots=True)
class Written:
    """The names of the files, what could not be written or measured, and what analysis_report.json holds."""

    names: tuple[str, ...]
    unavailable: tuple[Unavailable, ...]
    analysis: dict[str, Any]


def _own(kind: str, name: str, function: Callable[..., Any], save: Callable[[Any], bytes]) -> Callable[..., Any]:
    """Return the user's function as one that raises ConfigError where it fails, or returns what cannot be saved."""
    line = traceback.extract_stack(limit=3)[0]  # where it is registered

    def called(*arguments: Any) -> Any:
        if save is saved:
            import_module("matplotlib")  # without it, our own raise ImportError, too
        with users_own(kind, name, NO_FAILURE, f"{Path(line.filename).name}:{line.lineno}"):
            result = function(*arguments)
            if result is not None:
                save(result)
        return result

    return called


def register_metric(name: str, metric: Metric) -> None:
    """Add a figure to analysis_report.json, under `metrics`: what `metric` returns for a summary, as plain JSON.

    Raises:
        ConfigError: the name is taken, or has other characters than letters, digits, `_`, `-`, `.` and spaces.
    """
    require_new_name("metric", name, _METRICS)
    _METRICS[name] = _own("metric", name, metric, as_json)


def register_plot(name: str, draw: Draw, needs: str) -> None:
    """Add a picture, `name`.png.

    Args:
        name: of the file, without its ending.
        draw: called with a summary and the points of sweeps, returns a figure of matplotlib, or None.
        needs: what there must be for one, to be listed where there is none.

    Raises:
        ConfigError: as of `register_metric`.
    """
    require_new_name("plot", name, PLOTS)
    PLOTS[name] = Plot(_own("plot", name, draw, saved), needs)


def write_files(
    profile: Profile, folder: Path, points: Sequence[SweepPoint] = (), command: str = "ipcbench profile report ."
) -> Written:
    """Write all files of a profile into a folder, which is made if need be; where a function of the user's own fails,
    all others.

    Args:
        profile: the content.
        folder: where.
        points: of sweeps beside it.
        command: that makes them again.

    Raises:
        StoreError: one cannot be written.
    """
    summary = summarize(profile)
    advice = advise(summary, points)
    write_profile(folder, profile)
    names, missing = [FILE], list(profile.unavailable)
    analysis = documents.analysis(summary, advice, _metrics(summary, missing))

    def write(name: str, data: bytes) -> None:
        write_bytes(folder / name, data)
        names.append(name)

    write("detailed_timings.csv", documents.timings_csv(summary).encode())
    write("analysis_report.json", as_json(analysis))
    write("comm_analysis.json", as_json(documents.communication(summary)))
    write("comm_records.json", as_json(documents.records(summary)))
    write("trace.perfetto", perfetto(profile))
    for name, plot in PLOTS.items():
        try:
            figure = plot.draw(summary, points)
        except ConfigError as error:
            missing.append(Unavailable(f"plot {name!r}", str(error.allowed)))
            continue
        except ImportError:
            missing.append(Unavailable(f"{name}.png", _EXTRA))
            continue
        if figure is None:
            missing.append(Unavailable(f"{name}.png", plot.needs))
        else:
            write(f"{name}.png", saved(figure))
    try:
        write("report.html", profile_html(summary, advice, missing, command).encode())
    except ImportError:
        missing.append(Unavailable("report.html", _EXTRA))
    write("comprehensive_report.json", as_json(documents.comprehensive(summary, advice, points, missing, analysis)))
    write("README.md", documents.readme(summary, advice, names, missing).encode())
    return Written(tuple(names), tuple(missing), analysis)


def _metrics(summary: Summary, missing: list[Unavailable]) -> dict[str, Any]:
    """Return what the registered metrics are, and add those that fail to what is missing."""
    found = {}
    for name, metric in _METRICS.items():
        try:
            found[name] = metric(summary)
        except ConfigError as error:
            missing.append(Unavailable(f"metric {name!r}", str(error.allowed)))
    return found


def as_json(values: object) -> bytes:
    """Return JSON in lines; what is no number is null."""
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"
