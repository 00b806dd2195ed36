"""A model of one's own, with a bucket of operators, a metric and a plot of one's own:

ipcbench profile run --model own:model --phase prefill --import own
"""

from __future__ import annotations

from typing import Any

from ipcbench.profile.files import register_metric, register_plot
from ipcbench.profile.summary import Summary
from ipcbench.profile.timing.buckets import register_bucket


def model() -> tuple[Any, tuple[Any, ...]]:
    """Return a model, and the inputs that it is called with."""
    import torch
    from torch import nn

    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), (torch.ones(64, 256),)


def forward_ms(summary: Summary) -> dict[str, float]:
    """Return the metric: the time of a step, by phase."""
    return {total.phase: total.latency.value / 1e6 for total in summary.totals if total.latency}


def steps(summary: Summary, _points: object) -> Any:
    """Return the plot: each step's time."""
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.plot([step.wall_ns / 1e6 for step in summary.profile.steps if step.source == "plain"], "o")
    axes.set(title="Every step without instruments", xlabel="step", ylabel="time, ms")
    return figure


register_metric("forward_ms", forward_ms)
register_plot("every_step", steps, needs="a run")
register_bucket("gelu", lambda use: use.operator == "aten::gelu")
