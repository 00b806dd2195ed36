"""Figures of matplotlib in the style of the project: what plots of any kind begin and end with."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Literal

from ipcbench.render.plot_panel import INK, MUTED
from ipcbench.render.scales import AxisRange, round_ticks, tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(title: str, panels: int = 1, height: float = 4.4) -> tuple[Figure, list[Axes]]:
    """Return a figure with a title and so many panels, two side by side, styled as the project's other plots.

    Args:
        title: with the unit, if it is not at an axis.
        panels: how many.
        height: of a row of panels, inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns, rows = min(panels, 2), -(-panels // 2)
    figure = Figure(figsize=(8.2 if columns == 1 else 12.0, height * rows), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14, fontweight="bold", color=INK, x=0.01, ha="left")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(panels)]
    for each in axes:
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
        each.tick_params(length=0, colors=MUTED, labelsize=9)
    return figure, axes


def log_scale(axes: Axes, side: Literal["x", "y"], low: float, high: float) -> None:
    """Make an axis logarithmic, from below `low` to above `high`, with round numbers at it."""
    from matplotlib.ticker import NullLocator

    shown = AxisRange(low / 1.25, high * 1.25, log=True)
    ticks = round_ticks(shown)
    set_limits, ruler = (axes.set_xlim, axes.xaxis) if side == "x" else (axes.set_ylim, axes.yaxis)
    axes.set(**{f"{side}scale": "log"})
    set_limits(shown.low, shown.high)
    ruler.set_ticks(ticks, [tick_text(tick) for tick in ticks])
    ruler.set_minor_locator(NullLocator())


def saved(figure: Figure, form: Literal["png", "svg"] = "png", dpi: int = 130) -> bytes:
    """Return a figure as a file; the same figure gives the same bytes."""
    file = BytesIO()
    metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": "ipcbench"}
    figure.savefig(file, format=form, dpi=dpi, metadata=metadata)
    return file.getvalue()
