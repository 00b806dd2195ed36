"""What is written of a profile: JSON, CSV, README.md, pictures, a timeline and a page; and other tools' formats.

- `tables`: sentences and tables; `screen` is what a terminal shows
- `documents`: CSV, JSON and README.md
- `plots`: the pictures
- `page`: report.html
- `timeline`: slices and arrows, as Perfetto's and Chrome's traces
- `exchange`: calls from kineto, Chakra and PARAM, and to them
- `sweeps`: the files of a sweep
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ipcbench.errors import ConfigError
from ipcbench.profile.advice import Advice, advise
from ipcbench.profile.files import documents
from ipcbench.profile.files.page import profile_html
from ipcbench.profile.files.plots import PLOTS, Draw, Plot
from ipcbench.profile.files.timeline import perfetto
from ipcbench.profile.records import FILE, Profile, SweepPoint, Unavailable, write_profile
from ipcbench.profile.summary import Summary, summarize
from ipcbench.render.figures import saved
from ipcbench.util.files import write_bytes

Metric = Callable[[Summary], Any]
_METRICS: dict[str, Metric] = {}
_EXTRA = "pip install 'ipcbench[report]'"


@dataclass(frozen=True, slots=True)
class Written:
    """The names of the files, and what could not be written or measured."""

    names: tuple[str, ...]
    unavailable: tuple[Unavailable, ...]


def register_metric(name: str, metric: Metric) -> None:
    """Add a figure to analysis_report.json, under `metrics`: what `metric` returns for a summary, as plain JSON.

    Raises:
        ConfigError: the name is taken.
    """
    if name in _METRICS:
        raise ConfigError("metric", name, "a name that no metric has")
    _METRICS[name] = metric


def register_plot(name: str, draw: Draw, needs: str) -> None:
    """Add a picture, `name`.png.

    Args:
        name: of the file, without its ending.
        draw: called with a summary and the points of sweeps, returns a figure of matplotlib, or None.
        needs: what there must be for one, to be listed where there is none.

    Raises:
        ConfigError: the name is taken.
    """
    if name in PLOTS:
        raise ConfigError("plot", name, "a name that no plot has")
    PLOTS[name] = Plot(draw, needs)


def analysis_of(summary: Summary, advice: Sequence[Advice]) -> dict[str, Any]:
    """Return what analysis_report.json holds, with the registered metrics."""
    return documents.analysis(summary, advice, _METRICS)


def write_files(
    profile: Profile, folder: Path, points: Sequence[SweepPoint] = (), command: str = "ipcbench profile report ."
) -> Written:
    """Write all files of a profile into a folder, which is made if need be.

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
    analysis = analysis_of(summary, advice)

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
    return Written(tuple(names), tuple(missing))


def as_json(values: object) -> bytes:
    """Return JSON in lines; what is no number is null."""
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"
