"""`ipcbench trace`: what a traced application's calls cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ipcbench.cli.output import FORMATS
from ipcbench.cli.report_files import write_trace_page
from ipcbench.cli.trace_compare import check, diff
from ipcbench.cli.trace_export import export, serve_metrics
from ipcbench.cli.trace_live import tail, top

if TYPE_CHECKING:
    from ipcbench.trace.report.words import Language


@click.group("trace", short_help="Watch, explain, compare and export traces and logs of real applications.")
def command() -> None:
    """Watch, explain, compare and export what calls between processes cost in a real application."""


@command.command(
    "report",
    short_help="Where the time of the calls went, and what to do.",
    help="""Report on PATH…: folders of a trace, zmq_performance.log, logs with [TQ-…] lines; rotated and .gz too.
    What each is shows in its content.

    Figures are by segment: a process's service and role, or a client from its start to its restart. A damaged line is
    counted and shown, and ends nothing.""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="Form of the report."
)
@click.option(
    "--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the report."
)
@click.option(
    "--rules",
    type=click.Choice(["default", "seed"]),
    default="default",
    show_default=True,
    help="Thresholds of the findings; `seed` are those of the older analyzers of such logs.",
)
@click.option("--html", metavar="FILE", help="Write one page with plots instead; made or replaced as a whole.")
def report(paths: tuple[str, ...], form: str, lang: str, rules: str, html: str | None) -> None:
    """Read, report."""
    from ipcbench.trace.report import render
    from ipcbench.trace.report.gather import gather

    made = render.make_report(gather([Path(one) for one in paths]), rules)
    if html is not None:
        write_trace_page(made, [Path(one) for one in paths], cast("Language", lang), html)
        return
    forms = {"text": render.as_text, "markdown": render.as_markdown, "json": render.as_json, "csv": render.as_csv}
    sys.stdout.write(forms[form](made, cast("Language", lang)))
    sys.stdout.flush()  # a pipe that was closed is an error here, and not after the exit


for _command in (top, tail, diff, check, export, serve_metrics):
    command.add_command(_command)
