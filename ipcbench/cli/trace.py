"""`ipcbench trace`: what the calls of a traced application cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from ipcbench.cli.options import Choice, Group, a_path, format_option
from ipcbench.cli.output import FORMATS, trace_paths
from ipcbench.cli.report_files import write_trace_page
from ipcbench.cli.trace_compare import check, diff
from ipcbench.cli.trace_export import export, serve_metrics, template
from ipcbench.cli.trace_live import tail, top
from ipcbench.cli.trace_run import run

if TYPE_CHECKING:
    from ipcbench.trace.report.words import Language


@click.group(
    "trace",
    cls=Group,
    invoke_without_command=True,
)
@click.pass_context
def command(context: click.Context) -> None:
    """Watch, explain, compare and export the cost of calls between processes in a real application."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command(
    "report",
    short_help="Show where the time of the calls went, and what to do.",
    help="""Report on PATH…: trace folders, zmq_performance.log, or logs with [TQ-…] lines; rotated and .gz too. The
    content of a file decides what it is.

    Figures are per segment: a process's service and role, or a client from its start to its restart. Damaged lines are
    counted and shown; reading goes on.""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=a_path("file"))
@format_option(*FORMATS)
@click.option("--lang", type=Choice(["en", "zh"]), default="en", show_default=True, help="Language of the report.")
@click.option(
    "--rules",
    type=Choice(["default", "seed"]),
    default="default",
    show_default=True,
    help="Thresholds of the findings; `seed` uses those of the older log analyzers.",
)
@click.option(
    "--html",
    metavar="FILE",
    help="Write a page with plots instead, to this file, which is created or replaced as a whole.",
)
def report(paths: tuple[str, ...], form: str, lang: str, rules: str, html: str | None) -> None:
    """Read the traces and print the report."""
    from ipcbench.trace.report import render
    from ipcbench.trace.report.gather import gather

    read = trace_paths(*paths)
    made = render.make_report(gather(read), rules)
    if html is not None:
        write_trace_page(made, read, cast("Language", lang), html)
        return
    forms = {"text": render.as_text, "markdown": render.as_markdown, "json": render.as_json, "csv": render.as_csv}
    sys.stdout.write(forms[form](made, cast("Language", lang)))
    sys.stdout.flush()  # report a closed pipe here, not after the exit


for _command in (run, top, tail, diff, check, export, template, serve_metrics):
    command.add_command(_command)
