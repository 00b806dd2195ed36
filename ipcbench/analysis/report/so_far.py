"""The figures of a run that goes on: those that its end would give, without intervals and without ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import inf

from ipcbench.analysis.patterns.cells import pattern_cells
from ipcbench.analysis.summary.figures import figure_of
from ipcbench.analysis.summary.wording import neighbours_words, plural
from ipcbench.render.table import Column, Table, number
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import Mode

_HEADS: Mapping[Mode, str] = {"paced": "p50 µs", "pingpong": "trip µs", "saturate": "k msg/s"}
_SHOWN: tuple[Mode, ...] = ("paced", "saturate", "pingpong")
_MOST_MODES = 2


def so_far(run: Run, rounds_done: int) -> Table:
    """Return backend × size: one-way latency and throughput, or what there is of a run without these; beside the fewest
    neighbours.
    """
    if run.pattern_trials:
        return _patterns_so_far(run, rounds_done)
    trials: dict[tuple[str, Mode, int], list[TrialResult]] = defaultdict(list)
    fewest, *more = sorted({trial.spec.neighbours for trial in run.trials}) or [0]
    for trial in run.trials:
        if trial.status == "ok" and trial.spec.neighbours == fewest:
            trials[trial.spec.backend, trial.spec.mode, trial.spec.size].append(trial)
    figures = {key: figure for key, those in trials.items() if (figure := figure_of(run, those, key[1]))}
    modes = [mode for mode in _SHOWN if any(of == mode for _, of, _ in figures)][:_MOST_MODES]
    sizes = sorted({size for _, _, size in figures})
    columns = [(mode, size) for mode in modes for size in sizes]
    names = list(dict.fromkeys(trial.spec.backend for trial in run.trials))
    if columns:
        mode, middle = modes[0], sizes[len(sizes) // 2]
        worst = 0.0 if mode == "saturate" else inf
        names = sorted(names, key=lambda name: figures.get((name, mode, middle), worst), reverse=mode == "saturate")
    rounds = plural(rounds_done, "round", "rounds") + f", {neighbours_words(fewest)}" * bool(more)
    return Table(
        title=f"{'first look' if rounds_done == 1 else 'so far'}: {rounds}, no ranks yet",
        columns=(
            Column(("", "backend"), "left", names_row=True),
            *(Column((_HEADS[mode] if size == sizes[0] else "", f"{size:,}")) for mode, size in columns),
        ),
        rows=tuple((name, *(number(figures.get((name, mode, size)), 1e3) for mode, size in columns)) for name in names),
    )


def _patterns_so_far(run: Run, rounds_done: int) -> Table:
    """Return backend × number of peers: what a queue or fan-in carries flat out, with the smallest batch."""
    cells = {
        (cell.backend, cell.setting.peers): cell
        for cell in sorted(pattern_cells(run), key=lambda cell: (cell.setting.payload_bytes, -cell.setting.batch))
        if cell.rate_per_s is not None
    }
    peers = sorted({count for _, count in cells})
    names = list(dict.fromkeys(trial.spec.backend for trial in run.pattern_trials))
    rates = {place: cell.rate_per_s.estimate for place, cell in cells.items() if cell.rate_per_s is not None}
    return Table(
        title=f"so far: {plural(rounds_done, 'round', 'rounds')}, no ranks yet",
        columns=(
            Column(("", "backend"), "left", names_row=True),
            *(Column((_HEADS["saturate"] if count == peers[0] else "", f"{count}")) for count in peers),
        ),
        rows=tuple((name, *(number(rates.get((name, count)), 1e3) for count in peers)) for name in names),
    )
