"""The figures of a run that goes on: medians over the rounds so far, without ranks, which wait for the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from ipcbench.render.table import Column, Table, number
from ipcbench.results.model import TrialResult
from ipcbench.spec import Mode

_HEADS: Mapping[Mode, str] = {"paced": "p50 µs", "pingpong": "trip µs", "saturate": "k msg/s"}
_SHOWN: tuple[Mode, ...] = ("paced", "saturate", "pingpong")
_MOST_MODES = 2


def so_far(trials: Sequence[TrialResult], rounds_done: int) -> Table:
    """Return backend × size: one-way latency and throughput, or what there is of a run without these."""
    figures: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for trial in trials:
        spec = trial.spec
        if trial.status == "ok" and trial.main_figure and not (spec.tail or spec.twin):
            figures[spec.backend, spec.mode, spec.size].append(trial.main_figure)
    modes = [mode for mode in _SHOWN if any(of == mode for _, of, _ in figures)][:_MOST_MODES]
    sizes = sorted({size for _, _, size in figures})
    columns = [(mode, size) for mode in modes for size in sizes]
    rounds = f"{rounds_done} round{'s' * (rounds_done != 1)}"
    return Table(
        title=f"{'first look' if rounds_done == 1 else 'so far'}: {rounds}, no ranks yet",
        columns=(
            Column(("", "backend"), "left", names_row=True),
            *(Column((_HEADS[mode] if size == sizes[0] else "", f"{size:,}")) for mode, size in columns),
        ),
        rows=tuple(
            (name, *(number(_middle(figures[name, mode, size]), 1e3) for mode, size in columns))
            for name in dict.fromkeys(trial.spec.backend for trial in trials)
        ),
    )


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None
