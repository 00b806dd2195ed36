"""`ipcbench analyze`: tables, plots and report of stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ipcbench.cli.options import a_path, format_option
from ipcbench.cli.output import (
    CSV_FILE,
    FORMATS,
    MARKDOWN_FILE,
    RESULTS_ROOT,
    make_folder,
    print_tables,
    read_run,
    tell,
    write_tables,
)
from ipcbench.cli.report_files import PLOTS_FOLDER, REPORT_FILE, write_report
from ipcbench.errors import ConfigError, StoreError


@click.command(
    "analyze",
    help=f"""Print the tables of RUN, the folder of a run; by default the latest run in {RESULTS_ROOT}/. Several runs
    are shown one after the other, and their plots show fan-out over all of them.

    Writes {MARKDOWN_FILE}, {CSV_FILE}, {PLOTS_FOLDER}/ (PNG and SVG) and {REPORT_FILE} into each run's folder, and
    changes nothing else there.""",
)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=a_path("file"))
@format_option(*FORMATS)
@click.option(
    "--out",
    metavar="DIR",
    shell_complete=a_path("file"),
    help="Write the files here instead; several runs get a folder each, by name.",
)
@click.option("--no-report", is_flag=True, help="Print only; write no files.")
def command(runs: tuple[str, ...], form: str, out: str | None, *, no_report: bool) -> None:
    """Find the runs, show them, write their files."""
    from ipcbench.results.store import latest_run

    folders = [Path(name) for name in runs] or [latest_run(RESULTS_ROOT)]
    read = [read_run(folder) for folder in folders]
    targets = [] if no_report else _targets(folders, out)
    if out is not None:
        _require_folder(Path(out))
    print_tables([tables for _, tables in read], form)
    for index, target in enumerate(targets):
        run, tables = read[index]
        others = [other for number, other in enumerate(read) if number != index]
        try:
            make_folder(target)
            write_tables(tables, target)
            write_report(run, tables, others, target)
        except StoreError as error:
            if out is not None:
                raise
            tell(f"warning: {error}; the tables above are not written there")


def _require_folder(path: Path) -> None:
    """Refuse a file in the place of a folder, before anything is printed."""
    if path.exists() and not path.is_dir():
        raise ConfigError("--out", str(path), "the path of a folder, which is made if there is none")


def _targets(folders: Sequence[Path], out: str | None) -> list[Path]:
    """Return the folder for the files of each run."""
    if out is None:
        return list(folders)
    if len(folders) == 1:
        return [Path(out)]
    names: list[str] = []
    for folder in folders:
        name = folder.resolve().name or "run"
        same = sum(earlier == name or earlier.startswith(f"{name}-again-") for earlier in names)
        names.append(f"{name}-again-{same}" if same else name)
    return [Path(out) / name for name in names]
