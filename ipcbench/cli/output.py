"""A stored run on stdout and as files: what `run` ends with and `analyze` does.

What does not live here: figures, sentences and forms (ipcbench/analysis).
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ipcbench.errors import StoreError

if TYPE_CHECKING:
    from ipcbench.analysis.layout import Tables

RESULTS_ROOT = Path("results")
"""Where runs are stored and looked for, below the current folder."""

FORMATS = ("text", "markdown", "csv", "json")

MARKDOWN_FILE = "tables.md"
CSV_FILE = "summary.csv"


def show_run(folder: Path, form: str) -> bool:
    """Print the tables of a run, write them into its folder, and return whether anything was measured.

    Raises:
        StoreError: not a folder of results, or one that cannot be read.
    """
    from ipcbench.analysis.tables import tables
    from ipcbench.store import load_run

    run = load_run(folder)
    for problem in run.problems:
        click.echo(f"warning: {problem}", err=True)
    found = tables(run)
    _print(found, form)
    try:
        _write_files(found, folder)
    except StoreError as error:  # somebody else's folder can be read all the same
        click.echo(f"warning: {error}; {MARKDOWN_FILE} and {CSV_FILE} are not written", err=True)
    return any(trial.status == "ok" for trial in run.trials)


def _print(found: Tables, form: str) -> None:
    from ipcbench.analysis import export, render

    if form == "text":
        render.show(found, sys.stdout)
    else:
        forms = {"markdown": render.as_markdown, "csv": export.as_csv, "json": export.as_json}
        sys.stdout.write(forms[form](found))
    sys.stdout.flush()  # a pipe that was closed is an error here, and not after the exit


def _write_files(found: Tables, folder: Path) -> None:
    from ipcbench.analysis import export, render
    from ipcbench.files import write_atomically

    for name, text in ((MARKDOWN_FILE, render.as_markdown(found)), (CSV_FILE, export.as_csv(found))):
        write_atomically(folder / name, partial(_write, text))


def _write(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())
