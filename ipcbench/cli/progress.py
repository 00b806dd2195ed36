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
    """Return what is done, how much longer it takes, trial, figure."""
    where = f"round {progress.round_index + 1}/{progress.rounds}, trial {progress.done}, {_left(progress)}"
    return "  ".join(filter(None, (where, progress.label, progress.estimate)))


def _left(progress: Progress) -> str:
    minutes, seconds = divmod(round(progress.left_s), 60)
    return f"{minutes}:{seconds:02} left"


@contextmanager
def _bar() -> Iterator[Show]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    from ipcbench.analysis.report.so_far import so_far

    console = Console(stderr=True, highlight=False)
    bar = Bar(
        BarColumn(bar_width=24),
        TextColumn("{task.description}", markup=False),
        console=console,
    )
    task = bar.add_task("starting", total=None)
    # It draws only when told: then the endpoints are opening, and nothing is measured.
    with Live(bar, console=console, transient=True, auto_refresh=False) as live:
        last_s = -_REDRAW_S

        def show(progress: Progress) -> None:
            nonlocal last_s
            whole_s = progress.elapsed_s + progress.left_s
            bar.update(task, completed=progress.elapsed_s, total=whole_s, description=_line(progress))
            if progress.warning:
                console.print(f"warning: {progress.warning}", style="yellow", markup=False)
            if progress.so_far is not None:
                table = so_far(progress.so_far, progress.round_index + 1)
                live.update(Group(Text("\n".join((table.title, *aligned(table, WIDTH), ""))), bar))
            now_s = time.monotonic()
            if progress.so_far is not None or now_s - last_s >= _REDRAW_S:
                last_s = now_s
                live.refresh()

        yield show
