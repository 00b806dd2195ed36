"""`ipcbench trace diff` and `ipcbench trace check`: a trace against another one, and against limits."""

from __future__ import annotations

import sys
from pathlib import Path

import click

EXIT_FAILED = 1


@click.command(
    "diff",
    short_help="Compare two traces, method by method.",
    help="""Compare trace B with the earlier trace A: mean, p50 and p99 of each method, the ratio B / A with its
    interval, and whether that is a difference. Both may be folders of a trace or logs.""",
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", help="Form.")
def diff(a: str, b: str, form: str) -> None:
    """Compare, show."""
    from ipcbench.trace.compare import render
    from ipcbench.trace.compare.diff import diff as compared
    from ipcbench.trace.compare.methods import read_methods

    found = compared(*(read_methods([Path(one)], keep_times=True) for one in (a, b)))
    forms = {"text": render.as_text, "markdown": render.as_markdown, "json": render.as_json}
    sys.stdout.write(forms[form](found))
    sys.stdout.flush()  # a pipe that was closed is an error here, and not after the exit


@click.command(
    "check",
    short_help="Fail if a figure of a trace is beyond a limit.",
    help="""Check PATH…, folders of a trace or logs, against conditions that must not hold: METHOD.QUANTITY OP NUMBER,
    such as 'Matmul.p99_ms>5'; * stands for every method.

    Quantities: p50, p90, p99, mean, max, each with _us, _ms or _s; calls, errors, share_percent (of the time),
    MiB_per_s, STAGE_percent (wait_percent), unaccounted_percent. OP: > >= < <= == !=

    Exit codes: 0 no condition holds; 1 one does; 2 bad input, a method that is not in the trace among it.""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--fail-if", "conditions", multiple=True, required=True, metavar="CONDITION", help="May be repeated.")
def check(paths: tuple[str, ...], conditions: tuple[str, ...]) -> int:
    """Check all conditions, a line each."""
    from ipcbench.trace.compare.check import check as checked
    from ipcbench.trace.compare.check import parse_condition
    from ipcbench.trace.compare.methods import read_methods

    parsed = [parse_condition(one) for one in conditions]
    found = read_methods([Path(one) for one in paths], keep_times=False)
    outcomes = [outcome for condition in parsed for outcome in checked(found, condition)]
    for outcome in outcomes:
        click.echo(outcome.line)
    for words in found.words():
        click.echo(f"warning: {words}", err=True)
    return EXIT_FAILED if any(outcome.holds for outcome in outcomes) else 0
