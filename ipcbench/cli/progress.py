"""The progress of a run: a bar on a terminal, plain lines in a pipe, always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ipcbench.cli.output import tell

if TYPE_CHECKING:
    from ipcbench.harness.sweep import Progress

Show = Callable[["Progress"], None]


@contextmanager
def progress_display() -> Iterator[Show]:
    """Yield a function that shows a run's progress until the block ends."""
    if not sys.stderr.isatty():
        yield show_line
        return
    with _bar() as show:
        yield show


def show_line(progress: Progress) -> None:
    """Print one line: progress, trial, figure."""
    width = len(str(progress.total))
    where = f"[{progress.done:{width}}/{progress.total}] round {progress.round_index + 1}/{progress.rounds}"
    tell("  ".join(filter(None, (where, progress.label, progress.estimate))))
    if progress.warning:
        tell(f"warning: {progress.warning}")


@contextmanager
def _bar() -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False)
    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.description}", markup=False),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: Progress) -> None:
            text = "  ".join(filter(None, (f"round {progress.round_index + 1}", progress.label, progress.estimate)))
            bar.update(task, completed=progress.done, total=progress.total, description=text)
            if progress.warning:
                console.print(f"warning: {progress.warning}", style="yellow", markup=False)

        yield show
