"""`ipcbench analyze`: the tables of a stored run.

What does not live here: the tables (ipcbench/analysis).
"""

from __future__ import annotations

from pathlib import Path

import click

from ipcbench.cli.output import CSV_FILE, FORMATS, MARKDOWN_FILE, RESULTS_ROOT, show_run


@click.command(
    "analyze",
    short_help="Print the tables of a stored run.",
    help=f"""Print the tables of RUN, the folder of a run; without it, of the latest under {RESULTS_ROOT}/.

    Writes {MARKDOWN_FILE} and {CSV_FILE} into that folder, and changes nothing else there.""",
)
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--format", "form", type=click.Choice(FORMATS), default=FORMATS[0], help="Form of the output.")
def command(run: str | None, form: str) -> None:
    """Find the run and show it."""
    from ipcbench.store import latest_run

    show_run(latest_run(RESULTS_ROOT) if run is None else Path(run), form)
