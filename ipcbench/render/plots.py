"""Charts as PNG and SVG files, drawn by matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipcbench.render.charts import Chart, ChartGroup
from ipcbench.render.figures import saved
from ipcbench.render.plot_panel import INK, MUTED, draw_panel, turned_names, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_PER_FIGURE = 4
_DPI = 144
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.parse_math": False,  # a dollar sign in a backend's name is a dollar sign
    "svg.fonttype": "none",
    "svg.hashsalt": "ipcbench",
    "path.simplify": True,
    "axes.unicode_minus": True,
}
_MAX_NOTES = 4


@dataclass(frozen=True, slots=True)
class PlotFile:
    """One file to write."""

    name: str
    """`latency.png`, `percentiles-2.svg` …"""
    data: bytes


def plot_files(groups: tuple[ChartGroup, ...], source: str) -> Iterator[PlotFile]:
    """Yield each figure as PNG and as SVG; only one figure is in memory at a time.

    Args:
        groups: the charts; up to four of a group are panels of one figure.
        source: run and machine in one line, for the foot of each figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    for group in groups:
        parts = [
            group.charts[start : start + PANELS_PER_FIGURE] for start in range(0, len(group.charts), PANELS_PER_FIGURE)
        ]
        for number, charts in enumerate(parts, 1):
            name = group.key if len(parts) == 1 else f"{group.key}-{number}"
            with mpl.rc_context(_STYLE), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font lacks
                figure = _figure(group, charts, source)
                yield PlotFile(f"{name}.png", saved(figure, "png", _DPI))
                yield PlotFile(f"{name}.svg", saved(figure, "svg", _DPI))


def _figure(group: ChartGroup, charts: tuple[Chart, ...], source: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    alone = len(charts) == 1
    columns = 1 if alone else 2
    rows = -(-len(charts) // columns)
    foot = _foot(charts, source)
    width, panel_height = (8.4, 4.6) if alone else (11.6, 3.7)
    subtitle = _subtitle(group, charts, width)
    head_height, foot_height = 0.53 + 0.2 * len(subtitle), 0.32 + 0.17 * len(foot)
    if turned_names(charts[0]):
        foot_height, panel_height = foot_height + 0.5, panel_height + 0.3
    height = head_height + rows * panel_height + foot_height
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    left = 0.25 / width
    title = charts[0].title if alone else group.title
    figure.text(left, 1 - 0.38 / height, title, fontsize=15, fontweight="bold", color=INK)
    for index, line in enumerate(subtitle):
        figure.text(left, 1 - (0.62 + 0.2 * index) / height, line, fontsize=9.5, color=MUTED)
    axes_left = 0.72 / width
    figure.subplots_adjust(
        left=axes_left,
        right=1 - (1.25 / width),
        top=1 - (head_height + (0.1 if alone else 0.36)) / height,
        bottom=(foot_height + 0.5) / height,
        wspace=0.42,
        hspace=0.42,
    )
    for index, chart in enumerate(charts):
        draw_panel(figure.add_subplot(rows, columns, index + 1), chart, titled=not alone)
    if (cut_inches := -figure.get_tightbbox().x0) > 0:  # of the title of an axis with long numbers
        figure.subplots_adjust(left=axes_left + cut_inches / width)
    for index, line in enumerate(foot):
        figure.text(left, (0.02 + 0.17 * (len(foot) - index)) / height, line, fontsize=7.8, color=MUTED)
    return figure


def _subtitle(group: ChartGroup, charts: tuple[Chart, ...], width: float) -> list[str]:
    """Return what all panels have in common, and for several panels how to read them."""
    if len(charts) == 1:
        return wrapped(charts[0].setting, int(width * 14))[:2]
    common = charts[0].common
    return [*([common] if common else []), *wrapped(group.reading, int(width * 14))][:3]


def _foot(charts: tuple[Chart, ...], source: str) -> list[str]:
    notes = list(dict.fromkeys(note for chart in charts for note in chart.notes))
    if len(notes) > _MAX_NOTES:
        notes = [*notes[: _MAX_NOTES - 1], f"{len(notes) - _MAX_NOTES + 1} more notes: see the tables."]
    legend = []
    points = [point for chart in charts for series in chart.series for point in series.points]
    if any(point.low != point.high or point.x_low for point in points):
        legend.append("Bands and bars: 95 % intervals of each cell by itself; cells of different rank may overlap.")
    if any(point.noisy for point in points):
        legend.append("Hollow: a trial was noisy or failed.")
    width = 128 if len(charts) == 1 else 180
    return [line for text in (" ".join([*legend, source]), *notes) for line in wrapped(text, width)]
