"""What commands share: printing and writing the tables of a run, the target of `--out`, formats in a help text."""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from ipcbench.analysis.report.tables import Tables
    from ipcbench.results.store import Run

RESULTS_ROOT = Path("results")
"""Where runs are stored and found, below the current folder."""

FORMATS = ("text", "markdown", "csv", "json")

MARKDOWN_FILE = "tables.md"
CSV_FILE = "summary.csv"


class ListsFormats(click.Command):
    """A command with `--to FORMAT` that lists the formats at the end of its help text."""

    def __init__(self, *args: Any, formats: Mapping[str, str], **kwargs: Any) -> None:
        """Take the arguments of a command, and format → summary."""
        super().__init__(*args, **kwargs)
        self._formats = formats

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Formats"):
            formatter.write_dl(list(self._formats.items()))


def tell(line: str) -> None:
    """Print a line to standard error; a command must not end because that is full, or because nobody reads it."""
    with suppress(BrokenPipeError):
        try:
            click.echo(line, err=True)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def command_line(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command as a run keeps it: without folders outside the current one, whose names are nobody's business
    when the run is published.
    """
    return ("ipcbench", *("=".join(map(_without_folders, argument.split("="))) for argument in arguments))


def _without_folders(text: str) -> str:
    path = Path(text)
    if not path.is_absolute() and ".." not in path.parts and not text.startswith("~"):
        return text
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return f"…/{path.name}"


def target_file(out: str | None) -> Path | None:
    """Return the file that `--out` names; None for stdout.

    Raises:
        ConfigError: it is a device or a folder, which no file must replace.
    """
    if out is None:
        return None
    path = Path(out)
    if path.exists() and not path.is_file():
        raise ConfigError("--out", out, "the path of a file; without --out it goes to stdout")
    return path


def show_run(folder: Path, form: str) -> bool:
    """Print the tables of a run, write them into its folder, and return whether anything was measured.

    Raises:
        StoreError: not a folder of results, or one that cannot be read.
    """
    run, shown = read_run(folder)
    print_tables([shown], form)
    try:
        write_tables(shown, folder)
    except StoreError as error:  # a folder may be readable but not writable
        tell(f"warning: {error}; {MARKDOWN_FILE} and {CSV_FILE} are not written")
    return any(trial.status == "ok" for trial in run.trials)


def read_run(folder: Path) -> tuple[Run, Tables]:
    """Return a run and its tables; problems of its folder go to stderr.

    Raises:
        StoreError: not a folder of results, or one that cannot be read.
    """
    from ipcbench.analysis.report.tables import tables
    from ipcbench.results.store import load_run

    run = load_run(folder)
    for problem in run.problems:
        tell(f"warning: {problem}")
    return run, tables(run)


def print_tables(all_tables: Sequence[Tables], form: str) -> None:
    """Print the tables of one or more runs; CSV has one head, several JSON documents are a list."""
    from ipcbench.analysis.report import render

    if form == "text":
        for index, tables in enumerate(all_tables):
            sys.stdout.write("\n\n" if index else "")
            render.show(tables, sys.stdout)
    elif form == "markdown":
        sys.stdout.write("\n".join(map(render.as_markdown, all_tables)))
    elif form == "csv":
        first, *rest = map(render.as_csv, all_tables)
        sys.stdout.write(first + "".join(text.partition("\n")[2] for text in rest))
    else:
        documents = [render.as_json(tables) for tables in all_tables]
        sys.stdout.write(documents[0] if len(documents) == 1 else f"[\n{','.join(documents)}]\n")
    sys.stdout.flush()  # so that a closed pipe is an error here, not after the exit


def write_tables(tables: Tables, folder: Path) -> None:
    """Write the tables as Markdown and as CSV.

    Raises:
        StoreError: the disk refuses.
    """
    from ipcbench.analysis.report import render

    for name, text in ((MARKDOWN_FILE, render.as_markdown(tables)), (CSV_FILE, render.as_csv(tables))):
        write_file(folder / name, text.encode())


def write_file(path: Path, data: bytes) -> None:
    """Write a file, replacing it as a whole.

    Raises:
        StoreError: the disk refuses.
    """
    from ipcbench.util.files import write_atomically

    write_atomically(path, lambda file: file.write(data))


def make_folder(path: Path) -> None:
    """Make a folder, unless it exists.

    Raises:
        StoreError: the disk refuses.
    """
    from ipcbench.util.files import as_store_errors

    with as_store_errors(path):
        path.mkdir(parents=True, exist_ok=True)
