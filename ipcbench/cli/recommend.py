"""`ipcbench recommend`: which transport to use for given traffic, on the evidence of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.cli import format_option
from ipcbench.cli.output import RESULTS_ROOT, command_line, tell
from ipcbench.cli.progress import progress_display

if TYPE_CHECKING:
    from ipcbench.analysis.recommend.answer import Recommendation
    from ipcbench.analysis.recommend.question import Goal, Question
    from ipcbench.results.store import Run

EXIT_NO_ANSWER = 1


class _Recommend(click.Command):
    """The command; its help text ends with the needs."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from ipcbench.analysis.recommend.needs import NEEDS

        with formatter.section("Needs"):
            formatter.write_dl([(name, need.meaning) for name, need in NEEDS.items()])


@click.command(
    "recommend",
    cls=_Recommend,
    short_help="Say which transport to use, and why.",
    help=f"""Say which transport to use for messages of a given size to a given number of readers.

    RUN is the folder of a run with the evidence. Without it, every backend that meets the needs is measured for exactly
    this question, in a minute or two, and the new run is kept in {RESULTS_ROOT}/.

    Exit codes: 0 a transport is named (also for a tie); 1 none is; 2 bad input, or no transport can do it.""",
)
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--payload", required=True, metavar="SIZE", help="Size of one encoded payload: 64, 4KiB, 1MiB.")
@click.option("--readers", type=int, default=1, show_default=True, metavar="N", help="Number of reading processes.")
@click.option("--rate", metavar="RATE", help="Messages per second that it must sustain: 500/s, 2k/s.")
@click.option("--needs", default="", metavar="NEED,…", help="What it must offer, see below: lossless,no-deps.")
@click.option(
    "--optimise",
    type=click.Choice(["latency", "throughput", "cpu"]),
    default="latency",
    show_default=True,
    help="What decides among the transports that meet the needs.",
)
@format_option("text", "json", "markdown")
@click.pass_context
def command(
    context: click.Context,
    /,
    run: str | None,
    payload: str,
    readers: int,
    rate: str | None,
    needs: str,
    optimise: Goal,
    form: str,
) -> int:
    """Load or measure the evidence, decide, print."""
    from ipcbench.analysis.recommend.question import ask
    from ipcbench.analysis.recommend.recommend import recommend, require_candidates
    from ipcbench.results.store import load_run

    question = ask(payload, readers, rate, needs, optimise, prefix="--")
    able = require_candidates(question)
    stored = load_run(Path(run)) if run is not None else _measure(question, able, command_line(context.obj))
    for problem in stored.problems:
        tell(f"warning: {problem}")
    answer = recommend(stored, question)
    sys.stdout.write(_shown(answer, form))
    sys.stdout.flush()  # report a closed pipe here, not after the exit
    return 0 if answer.backend is not None else EXIT_NO_ANSWER


def _measure(question: Question, backends: tuple[str, ...], command_line: tuple[str, ...]) -> Run:
    from ipcbench.analysis.recommend.question import question_sweep
    from ipcbench.harness.sweep import run_sweep
    from ipcbench.results.store import load_run

    sweep = question_sweep(question, backends)
    tell(f"no RUN given: measuring {', '.join(sweep.backends)} for this question")
    with progress_display() as show:
        folder = run_sweep(sweep, RESULTS_ROOT, command=command_line, on_progress=show)
    tell(f"results in {folder}; pass that folder as RUN to ask again without measuring")
    return load_run(folder)


def _shown(answer: Recommendation, form: str) -> str:
    if form == "json":
        import json

        plain: dict[str, Any] = answer.as_dict()
        return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return answer.markdown() if form == "markdown" else answer.text()
