"""`ipcbench trace`: what the calls of a traced application cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ipcbench.cli.options import Choice, Group, a_path, format_option
from ipcbench.cli.output import FORMATS, trace_paths
from ipcbench.cli.report_files import write_trace_page
from ipcbench.cli.trace_compare import check, diff
from ipcbench.cli.trace_export import export, serve_metrics, template
from ipcbench.cli.trace_live import tail, top
from ipcbench.cli.trace_run import run
from ipcbench.errors import ConfigError

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
@click.argument("paths", nargs=-1, metavar="PATH...", shell_complete=a_path("file"))
@click.option("--trace-id", metavar="ID", help="Show only the calls with this trace id, in order, of all processes.")
@click.option("--before", metavar="A", shell_complete=a_path("file"), help="With --after B: do as `trace diff A B`.")
@click.option("--after", metavar="B", shell_complete=a_path("file"), help="See --before.")
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
@click.pass_context
def report(
    context: click.Context, /, paths: tuple[str, ...], trace_id: str | None, before: str | None, after: str | None,
    form: str, lang: str, rules: str, html: str | None,
) -> None:  # fmt: skip
    """Read the traces and print the report."""
    from ipcbench.trace.report import render
    from ipcbench.trace.report.gather import gather

    if before is not None or after is not None:
        _report_change(context, paths, before, after, form)
        return
    if not paths:
        raise click.UsageError("Missing argument 'PATH...', a trace folder or a log", context)
    read = trace_paths(*paths)
    if trace_id is not None:
        _report_path(read, trace_id, form)
        return
    made = render.make_report(gather(read), rules)
    if html is not None:
        write_trace_page(made, read, cast("Language", lang), html)
        return
    forms = {"text": render.as_text, "markdown": render.as_markdown, "json": render.as_json, "csv": render.as_csv}
    sys.stdout.write(forms[form](made, cast("Language", lang)))
    sys.stdout.flush()  # report a closed pipe here, not after the exit


def _report_path(paths: list[Path], trace_id: str, form: str) -> None:
    """Print the calls of one trace id."""
    from ipcbench.trace.readers.everything import find
    from ipcbench.trace.report import paths as of_paths

    forms = {"text": of_paths.as_text, "markdown": of_paths.as_markdown, "json": of_paths.as_json,
             "csv": of_paths.as_csv}  # fmt: skip
    sys.stdout.write(forms[form](of_paths.path_of(find(paths), trace_id)))
    sys.stdout.flush()


def _report_change(
    context: click.Context, paths: tuple[str, ...], before: str | None, after: str | None, form: str
) -> None:
    """Print how the trace `after` differs from the trace `before`."""
    if before is None or after is None or paths or form == "csv":
        given = " ".join(filter(None, (before, after, *paths)))
        raise ConfigError("--before", given, "--before A --after B, without PATH, as text, markdown or json")
    context.invoke(diff, a=before, b=after, form=form)


for _command in (run, top, tail, diff, check, export, template, serve_metrics):
    command.add_command(_command)
