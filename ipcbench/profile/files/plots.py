"""The pictures of a profile, by matplotlib; each is drawn only from figures that there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from ipcbench.profile.files.tables import memory_by_module
from ipcbench.profile.records import SweepPoint
from ipcbench.profile.summary import BUCKETS, COMMUNICATION, HOST, OTHER, OWN, PhaseSummary, Summary
from ipcbench.render.figures import log_scale, new_figure
from ipcbench.render.palette import PARTS_START, series_style
from ipcbench.render.plot_panel import INK, MUTED, shortened
from ipcbench.stats.estimates import Interval
from ipcbench.util.text import printable
from ipcbench.util.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw: TypeAlias = "Callable[[Summary, Sequence[SweepPoint]], Figure | None]"
_MOST_BARS = 15
_BUCKETS: Final = {"norm": "norms"}
_KINDS: Final = {"attention": "attention", "mlp": "mlp", "layer": "rest of the layer", OWN: "whole block"}


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture: what draws it (None where there is nothing to draw), and what it needs then."""

    draw: Draw
    needs: str


def color_number(part: str, summary: Summary) -> int:
    """Return the number of a part's colour, the same in every picture of a profile; host overhead is grey."""
    names = [*BUCKETS, *summary.bucket_names]
    return -1 if part == HOST else PARTS_START + names.index(part if part in names else OTHER)


def _color(part: str, summary: Summary) -> str:
    return series_style(color_number(_BUCKETS.get(part, part), summary)).light


def _heatmap(summary: Summary, _: Sequence[SweepPoint]) -> Figure | None:
    """Draw the leaves of each layer: no part of it is within another one."""
    shown = [each for each in summary.phases if each.units][:4]
    if not shown:
        return None
    grids = [_grid(each) for each in shown]
    rows = max(len(grid[0]) for grid in grids)
    figure, panels = new_figure("Time of each layer's parts, ms a step", len(shown), max(3.6, 1.8 + 0.26 * rows))
    for axes, each, (layers, names, values) in zip(panels, shown, grids, strict=True):
        image = axes.imshow(values, aspect="auto", cmap="viridis", vmin=0)
        axes.set_xticks(range(len(names)), map(printable, names), rotation=30, ha="right")
        axes.set_yticks(range(len(layers)), map(printable, layers))
        axes.set_title(f"{each.phase}, rank {each.rank}", loc="left", fontsize=10, color=INK)
        if values.size <= 120:
            middle = values.max() / 2
            for (row, column), value in np.ndenumerate(values):
                ink = "black" if value > middle else "white"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink, fontsize=7.5)
        figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def _grid(each: PhaseSummary) -> tuple[list[str], list[str], Any]:
    """Return names of layers, names of leaves, and their times, ms, shape (layers, leaves)."""
    layers = [unit.name for unit in each.units]
    cells: dict[tuple[str, str], float] = defaultdict(float)
    covered = {operator.path for operator in each.operators}
    leaves = [(operator.path, operator.bucket, operator.ns) for operator in each.operators]
    leaves += [
        (path, _KINDS[kind], ns) for path, (kind, ns) in each.blocks.items() if kind in _KINDS and path not in covered
    ]
    for path, name, ns in leaves:
        cells[next((layer for layer in layers if f"{path}.".startswith(f"{layer}.")), ""), name] += ns
    for unit in each.units:
        if unit.communication_ns > 0:
            cells[unit.name, "communication"] = unit.communication_ns
    names = list(dict.fromkeys(name for layer, name in cells if layer))
    return layers, names, np.array([[cells.get((x, name), 0.0) / 1e6 for name in names] for x in layers])


def _panels(summary: Summary, title: str, height: float = 4.4) -> tuple[Figure, list[tuple[Axes, list[PhaseSummary]]]]:
    """Return a figure with a panel for each phase, and the panels with the ranks of their phases."""
    figure, panels = new_figure(title, len(summary.by_phase), height)
    for axes, ranks in zip(panels, summary.by_phase, strict=True):
        axes.set_title(ranks[0].phase, loc="left", fontsize=10, color=INK)
    return figure, list(zip(panels, summary.by_phase, strict=True))


def _distribution(summary: Summary, _: Sequence[SweepPoint]) -> Figure | None:
    if not summary.phases:
        return None
    phases = {step.number: step.phase for step in summary.profile.steps}
    figure, panels = _panels(summary, "Own time of a call, by kind of block")
    for axes, ranks in panels:
        groups: dict[str, list[float]] = defaultdict(list)
        for span in summary.profile.spans:
            if phases.get(span.step) == ranks[0].phase:
                groups[span.path if span.kind == OWN else span.kind].append(max(1, span.exclusive_ns) / 1e3)
        names = sorted(groups, key=lambda name: float(np.median(groups[name])))[-_MOST_BARS:]
        for row, name in enumerate(names, 1):
            color, values = _color(name, summary), groups[name]
            heights = row + np.random.default_rng(0).uniform(-0.25, 0.25, len(values))
            axes.plot(values, heights, ".", markersize=4, alpha=0.45, color=color)
            axes.plot([float(np.median(values))] * 2, [row - 0.35, row + 0.35], linewidth=2.2, color=INK)
        axes.set_yticks(
            range(1, len(names) + 1), [f"{shortened(printable(name), 26)} ({len(groups[name])})" for name in names]
        )
        log_scale(axes, "x", min(map(min, groups.values())), max(map(max, groups.values())))
        axes.set_xlabel("own time of a call (line: median), with communication in it, µs", color=MUTED)
    return figure


def _computing(summary: Summary, _: Sequence[SweepPoint]) -> Figure | None:
    if not any(each.ns(*COMMUNICATION) for each in summary.phases):
        return None
    figure, panels = _panels(summary, "Computing and communication, by rank")
    for axes, ranks in panels:
        parts = {"computing": [each.wall_ns - each.ns(*COMMUNICATION, HOST) for each in ranks]}
        parts |= {name: [each.ns(name) for each in ranks] for name in (*COMMUNICATION, HOST)}
        _stacked(axes, [f"rank {each.rank}" for each in ranks], parts, summary)
        axes.set_ylabel("ms a step", color=MUTED)
    panels[-1][0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    return figure


def _stacked(axes: Axes, names: Sequence[str], parts: Mapping[str, Sequence[float]], summary: Summary) -> None:
    """Draw a bar for each name, of values in millionths of the axis's unit."""
    below = np.zeros(len(names))
    for number, (part, values) in enumerate(parts.items()):
        heights = np.array(values) / 1e6
        if heights.any():
            color = _color(part, summary) if part in BUCKETS else series_style(PARTS_START + number).light
            axes.bar(names, heights, bottom=below, label=part, color=color, width=0.6)
            below += heights


def _memory(summary: Summary, _: Sequence[SweepPoint]) -> Figure | None:
    ranks = summary.profile.memory
    if not ranks:
        return None
    figure, panels = new_figure("Memory of each rank, and of each module", 2, 5.2)
    known = {
        "parameters": [each.parameters_bytes for each in ranks],
        "KV cache": [each.kv_cache_bytes or 0 for each in ranks],
        "activations, most": [each.activations_bytes or 0 for each in ranks],
    }
    rest = [max(0, each.peak_rss_bytes - sum(column)) for each, *column in zip(ranks, *known.values(), strict=True)]
    _stacked(panels[0], [f"rank {each.rank}" for each in ranks], known | {"rest of the peak RSS": rest}, summary)
    panels[0].set_ylabel("MB", color=MUTED)
    panels[0].legend(loc="upper left", bbox_to_anchor=(0.0, -0.08), ncols=2, frameon=False, fontsize=9)
    leaves = sorted(memory_by_module(summary).items(), key=lambda item: max(size or 0 for size in item[1]))[
        -_MOST_BARS:
    ]
    for place, each in enumerate(ranks):
        known_mb = [(row, size / 1e6) for row, (_, sizes) in enumerate(leaves) if (size := sizes[place]) is not None]
        rows = [row + 0.6 * (place + 0.5) / len(ranks) - 0.3 for row, _ in known_mb]
        height, color = 0.6 / len(ranks), series_style(place).light
        panels[1].barh(rows, [size for _, size in known_mb], height, label=f"rank {each.rank}", color=color)
    panels[1].set_yticks(range(len(leaves)), [shortened(printable(path), 26) for path, _ in leaves])
    panels[1].set_xlabel("MB while it ran", color=MUTED)
    panels[1].legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def _bottlenecks(summary: Summary, _: Sequence[SweepPoint]) -> Figure | None:
    if not summary.phases:
        return None
    figure, panels = _panels(summary, "What takes longest, own time, at the rank that computes longest", 5.2)
    for axes, ranks in panels:
        each = max(ranks, key=lambda each: each.wall_ns - each.ns(*COMMUNICATION))
        bars = [(path or "model", path if kind == OWN else kind, ns) for path, (kind, ns) in each.blocks.items()]
        bars += [(name, name, each.ns(name)) for name in (*COMMUNICATION, HOST) if each.ns(name)]
        bars = sorted(bars, key=lambda bar: bar[2])[-_MOST_BARS:]
        names, parts, times = zip(*bars, strict=True)
        colors = [_color(part, summary) for part in parts]
        axes.barh(
            [shortened(printable(name), 26) for name in names],
            [ns / 1e6 for ns in times],
            color=colors,
        )
        for row, ns in enumerate(times):
            share = f" {100 * ns / each.wall_ns:.1f} %"
            axes.text(ns / 1e6, row, share, va="center", fontsize=8, color=MUTED)
        axes.set_xlabel("ms a step, and share of the step", color=MUTED)
        axes.margins(x=0.14)
        axes.set_title(f"{each.phase}, rank {each.rank}", loc="left", fontsize=10, color=INK)
    return figure


def _bandwidth(summary: Summary, points: Sequence[SweepPoint]) -> Figure | None:
    lines: dict[str, dict[int, Interval]] = defaultdict(dict)
    for phase, found in summary.call_totals:
        for each in found.ops if found else ():
            if each.bytes and each.bus_bytes_per_s:
                lines[", ".join(filter(None, (each.op, phase)))][each.bytes] = Interval(*[each.bus_bytes_per_s] * 3)
    return bandwidth_figure({**lines, **bandwidth_lines(points)})


def bandwidth_lines(points: Sequence[SweepPoint]) -> dict[str, dict[int, Interval]]:
    """Return what was sent and over what → size, bytes → rate, bytes/s, of the points of a bandwidth sweep; of
    collective operations, their bus bandwidth.
    """
    lines: dict[str, dict[int, Interval]] = defaultdict(dict)
    for point in points:
        rate = point.figures.get("bus_bytes_per_s") or point.figures.get("bytes_per_s")
        if point.sweep == "bandwidth" and rate is not None:
            name = f"{point.values['what']} {point.values['transport']}".removesuffix(" cuda")
            if point.values.get("direction") == "both ways" and "bus_bytes_per_s" not in point.figures:
                name += " both ways (sum)"
            lines[name][int(point.values["bytes"])] = rate
    return lines


def bandwidth_figure(lines: Mapping[str, Mapping[int, Interval]]) -> Figure | None:
    """Return rates over sizes, a line each; None without any."""
    if not lines:
        return None
    figure, (axes,) = new_figure("Bandwidth by size of the message, without waiting", 1, 4.8)
    for number, (name, values) in enumerate(
        sorted(lines.items(), key=lambda item: -max(rate.estimate for rate in item[1].values()))
    ):
        style, sizes = series_style(number), sorted(values)
        axes.plot(sizes, [values[size].estimate / 1e9 for size in sizes], marker="o", label=name, color=style.light,
                  linestyle={"solid": "-", "dash": "--", "dot": ":"}[style.dash])  # fmt: skip
    sizes = sorted({size for values in lines.values() for size in values})
    rates = [rate.estimate / 1e9 for values in lines.values() for rate in values.values()]
    log_scale(axes, "y", min(rates), max(rates))
    axes.set_xscale("log")
    axes.set_xticks(sizes[:: -(-len(sizes) // 8)], [format_bytes(size) for size in sizes[:: -(-len(sizes) // 8)]])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("bytes of the message", color=MUTED)
    axes.set_ylabel("GB/s (collective operations: bus bandwidth)", color=MUTED)
    axes.grid(visible=True, color="#e4e8ee")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    return figure


PLOTS: dict[str, Plot] = {
    "layer_performance_heatmap": Plot(_heatmap, "steps with spans of layers"),
    "operation_time_distribution": Plot(_distribution, "steps with spans"),
    "compute_vs_communication": Plot(_computing, "steps with spans of two ranks"),
    "memory_usage_analysis": Plot(_memory, "memory figures"),
    "performance_bottlenecks": Plot(_bottlenecks, "steps with spans"),
    "bandwidth_analysis": Plot(_bandwidth, "calls with waits of two ranks, or a bandwidth sweep"),
}
"""Base name of a picture → what draws it."""
