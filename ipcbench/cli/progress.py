"""The progress of a run: a bar on a terminal, in a pipe a line every few seconds; always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ipcbench.cli.output import tell
from ipcbench.render.text import WIDTH, aligned

if TYPE_CHECKING:
    from ipcbench.harness.sweep import Progress

Show = Callable[["Progress"], None]

_REDRAW_S = 0.5
_EVERY_S = 5.0


@contextmanager
def progress_display(*, progress: bool = True, quiet: bool = False) -> Iterator[Show]:
    """Yield a function that shows a run's progress until the block ends.

    Args:
        progress: show it; without, only its warnings.
        quiet: show nothing.
    """
    if quiet or not progress:
        yield (lambda _: None) if quiet else _warn
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _lines()


def _warn(progress: Progress) -> None:
    if progress.warning:
        tell(f"warning: {progress.warning}")


def _lines() -> Show:
    """Return what prints the first step, then one every few seconds, and each warning."""
    last_s = -_EVERY_S

    def show(progress: Progress) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= _EVERY_S:
            last_s = now_s
            tell(_line(progress))
        _warn(progress)

    return show


def _line(progress: Progress) -> str:
    """Return what is done, trial, figure."""
    width = len(str(progress.total))
    where = f"[{progress.done:{width}}/{progress.total}] round {progress.round_index + 1}/{progress.rounds}"
    return "  ".join(filter(None, (where, progress.label, progress.estimate)))


@contextmanager
def _bar() -> Iterator[Show]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    bar = Bar(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.description}", markup=False),
        console=console,
    )
    task = bar.add_task("starting", total=None)
    # It draws only when told: then the endpoints are opening, and nothing is measured.
    with Live(bar, console=console, transient=True, auto_refresh=False) as live:
        last_s = -_REDRAW_S

        def show(progress: Progress) -> None:
            nonlocal last_s
            text = "  ".join(filter(None, (f"round {progress.round_index + 1}", progress.label, progress.estimate)))
            bar.update(task, completed=progress.done, total=progress.total, description=text)
            if progress.warning:
                console.print(f"warning: {progress.warning}", style="yellow", markup=False)
            if progress.trials:
                live.update(Group(Text("\n".join(_so_far(progress))), bar))
            now_s = time.monotonic()
            if progress.trials or now_s - last_s >= _REDRAW_S:
                last_s = now_s
                live.refresh()

        yield show


def _so_far(progress: Progress) -> list[str]:
    from ipcbench.analysis.report.so_far import so_far

    table = so_far(progress.trials, progress.round_index + 1)
    return [table.title, *aligned(table, WIDTH), ""]
