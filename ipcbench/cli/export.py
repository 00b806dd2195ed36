"""`ipcbench export`: a stored run in the format of another tool."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.cli.options import Choice, a_path
from ipcbench.cli.output import RESULTS_ROOT, ListsFormats, stored_run, target_file, tell


@click.command(
    "export",
    cls=ListsFormats,
    formats={name: exporter.summary for name, exporter in EXPORTERS.items()},
    help=f"""Write RUN, a folder of results, in the format of another tool; by default the latest in {RESULTS_ROOT}/.

    Writes only trials that are ok; stderr names everything that is left out.""",
)
@click.argument("run", required=False, metavar="[RUN]", shell_complete=a_path("file"))
@click.option("--to", "form", type=Choice(list(EXPORTERS)), required=True, help="Format, see below.")
@click.option(
    "--out",
    metavar="FILE",
    shell_complete=a_path("file"),
    help="File to create or replace as a whole; by default stdout.",
)
def command(run: str | None, form: str, out: str | None) -> None:
    """Read the run, write it, name what is left out."""
    from ipcbench.results.store import latest_run

    target = target_file(out)
    stored = stored_run(latest_run(RESULTS_ROOT) if run is None else Path(run))
    exported = EXPORTERS[form](stored)
    _write(exported.text, target)
    for problem in stored.problems:
        tell(f"warning: {problem}")
    for line in exported.left_out:
        tell(f"left out: {line}")
    for line in exported.fewer_rounds:
        tell(f"fewer rounds: {line}")


def _write(text: str, target: Path | None) -> None:
    from ipcbench.util.files import write_atomically

    if target is not None:
        write_atomically(target, lambda file: file.write(text.encode()))
        return
    sys.stdout.write(text)
    sys.stdout.flush()  # report a closed pipe here, not after the exit
