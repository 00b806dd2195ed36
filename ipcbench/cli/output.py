"""What commands share: printing and writing the tables of a run, the target of `--out`, formats in a help text."""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.errors import ConfigError, StoreError
from ipcbench.util.files import without_folders
from ipcbench.util.shell import shell_command

if TYPE_CHECKING:
    from ipcbench.analysis.report.tables import Tables
    from ipcbench.results.store import Run

RESULTS_ROOT = Path("results")
"""Where runs are stored and found, below the current folder."""

FORMATS = ("text", "markdown", "csv", "json")

MARKDOWN_FILE = "tables.md"
CSV_FILE = "summary.csv"


class ListsFormats(click.Command):
    """A command that lists its formats, or whatever else it writes, at the end of its help text."""

    def __init__(self, *args: Any, formats: Mapping[str, str], title: str = "Formats", **kwargs: Any) -> None:
        """Take the arguments of a command, format → summary, and what they are called."""
        super().__init__(*args, **kwargs)
        self._formats, self._title = formats, title

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self._title):
            formatter.write_dl(list(self._formats.items()))


def tell(line: str) -> None:
    """Print a line to standard error; a command must not end because that is full, or because nobody reads it."""
    with suppress(BrokenPipeError):
        try:
            click.echo(line, err=True)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise


def warn_of_code(sample: str) -> None:
    """Say that loading a sample runs code in it, if it does."""
    from ipcbench.workload.payload import RUNS_CODE

    if sample.lower().endswith(RUNS_CODE):
        tell(f"warning: loading {sample} runs the code that is in it: take pickles only from those whom you trust")


def command_line(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command as a run keeps it: without folders outside the current one, whose names are nobody's business
    when the run is published.
    """
    return ("ipcbench", *("=".join(map(without_folders, argument.split("="))) for argument in arguments))


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


def stored_run(folder: Path) -> Run:
    """Return a run.

    Raises:
        StoreError: not a folder of results, or one that cannot be read.
    """
    from ipcbench.results.store import load_run
    from ipcbench.trace.format import SEGMENT_SUFFIX

    if folder.is_dir() and any(folder.glob(f"*{SEGMENT_SUFFIX}")):
        report = shell_command("ipcbench", "trace", "report", folder)
        raise StoreError(f"{folder}: a trace, not a folder of results; `{report}` reads it")
    return load_run(folder)


def trace_paths(*paths: str) -> list[Path]:
    """Return the paths of traces and logs.

    Raises:
        StoreError: one is a folder of results.
    """
    from ipcbench.results.store import INFO_FILE

    for path in map(Path, paths):
        if (path / INFO_FILE).is_file():
            analyze = shell_command("ipcbench", "analyze", path)
            raise StoreError(f"{path}: a folder of results, not a trace; `{analyze}` reads it")
    return [*map(Path, paths)]


def show_run(folder: Path, form: str, *, full: bool = True) -> bool:
    """Print the tables of a run, or as text one screen unless `full`, write the tables into its folder, and return
    whether anything was measured.

    Raises:
        StoreError: not a folder of results, or one that cannot be read.
    """
    run, shown = read_run(folder)
    if form == "text" and not full:
        _print_screen(run, shown, folder)
    else:
        print_tables([shown], form)
    try:
        write_tables(shown, folder)
    except StoreError as error:  # a folder may be readable but not writable
        tell(f"warning: {error}; {MARKDOWN_FILE} and {CSV_FILE} are not written")
    return any(trial.status == "ok" for trial in (*run.trials, *run.pattern_trials))


def read_run(folder: Path) -> tuple[Run, Tables]:
    """Return a run and its tables; problems of its folder go to stderr.

    Raises:
        StoreError: not a folder of results, or one that cannot be read.
    """
    from ipcbench.analysis.report.tables import tables

    run = stored_run(folder)
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
        heads = {text.partition("\n")[0] for text in (first, *rest)}
        if len(heads) > 1:
            raise ConfigError("--format", "csv", "runs of one kind, whose rows have the same columns; or json")
        sys.stdout.write(first + "".join(text.partition("\n")[2] for text in rest))
    else:
        documents = [render.as_json(tables) for tables in all_tables]
        sys.stdout.write(one_or_list(documents))
    sys.stdout.flush()  # so that a closed pipe is an error here, not after the exit


def one_or_list(documents: Sequence[str]) -> str:
    """Return a JSON document, or several as a list of them."""
    return documents[0] if len(documents) == 1 else f"[\n{','.join(documents)}]\n"


def text_width() -> int:
    """Return how many columns text on stdout may take: those of a narrow terminal, else as many as it is made for."""
    from ipcbench.render.text import WIDTH

    return min(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH


def _print_screen(run: Run, tables: Tables, folder: Path) -> None:
    from ipcbench.analysis.report.render import show_lines
    from ipcbench.analysis.report.screen import screen

    show_lines(screen(run, tables, str(folder), text_width()), sys.stdout)
    sys.stdout.flush()


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
