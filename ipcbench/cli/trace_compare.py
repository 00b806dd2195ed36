"""`ipcbench trace diff` and `ipcbench trace check`: a trace against another trace, and against limits."""

from __future__ import annotations

import sys

import click

from ipcbench.cli import EXIT_FAILED
from ipcbench.cli.options import a_path, format_option
from ipcbench.cli.output import tell, trace_paths


@click.command(
    "diff",
    short_help="Compare two traces, method by method.",
    help="""Compare trace B with the earlier trace A: mean, p50 and p99 of each method, the ratio B / A with its
    interval, and whether the two differ. Each is a trace folder or a log.""",
)
@click.argument("a", metavar="A", shell_complete=a_path("file"))
@click.argument("b", metavar="B", shell_complete=a_path("file"))
@format_option("text", "markdown", "json")
def diff(a: str, b: str, form: str) -> None:
    """Compare, print."""
    from ipcbench.trace.compare import render
    from ipcbench.trace.compare.diff import diff as compared
    from ipcbench.trace.compare.methods import read_methods

    compared_methods = compared(*(read_methods([path], keep_times=True) for path in trace_paths(a, b)))
    forms = {"text": render.as_text, "markdown": render.as_markdown, "json": render.as_json}
    sys.stdout.write(forms[form](compared_methods))
    sys.stdout.flush()  # report a closed pipe here, not after the exit


@click.command(
    "check",
    short_help="Fail if a figure of a trace exceeds a limit.",
    help="""Check PATH…, trace folders or logs, against conditions that must not hold: METHOD.QUANTITY OP NUMBER, such
    as 'Matmul.p99_ms>5'; * stands for every method.

    Quantities: p50, p90, p99, mean, max, each with _us, _ms or _s; calls, errors, share_percent (of the time),
    MiB_per_s, STAGE_percent (wait_percent), unaccounted_percent. OP: > >= < <= == !=

    Exit codes: 0 no condition holds; 1 at least one does; 2 bad input, such as a method that is not in the trace.""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=a_path("file"))
@click.option("--fail-if", "conditions", multiple=True, required=True, metavar="CONDITION", help="May be repeated.")
def check(paths: tuple[str, ...], conditions: tuple[str, ...]) -> int:
    """Check all conditions, and print a line for each."""
    from ipcbench.trace.compare.check import check as checked
    from ipcbench.trace.compare.check import parse_condition
    from ipcbench.trace.compare.methods import read_methods

    parsed = [parse_condition(condition) for condition in conditions]
    methods = read_methods(trace_paths(*paths), keep_times=False)
    outcomes = [outcome for condition in parsed for outcome in checked(methods, condition)]
    for outcome in outcomes:
        click.echo(outcome.line)
    for words in methods.words():
        tell(f"warning: {words}")
    return EXIT_FAILED if any(outcome.holds for outcome in outcomes) else 0
