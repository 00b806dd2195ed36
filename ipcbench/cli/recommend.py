"""`ipcbench recommend`: which transport to use for given traffic, on the evidence of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ipcbench.cli import EXIT_INTERRUPTED
from ipcbench.cli.options import Choice, a_path, format_option, one_of, progress_options, some_of
from ipcbench.cli.output import RESULTS_ROOT, command_line, stored_run, tell, text_width, warn_of_code
from ipcbench.cli.progress import progress_display
from ipcbench.errors import ConfigError, IpcbenchError, StoreError
from ipcbench.render.document import document
from ipcbench.spec import CODEC_NAMES, PATTERNS, PAYLOAD_KINDS
from ipcbench.util.shell import shell_command

if TYPE_CHECKING:
    from ipcbench.analysis.recommend.answer import Recommendation
    from ipcbench.analysis.recommend.patterns import PatternQuestion, PatternRecommendation
    from ipcbench.analysis.recommend.question import Goal, Question
    from ipcbench.results.store import Run
    from ipcbench.spec import Pattern

EXIT_NO_ANSWER = 1


def _need_names() -> Iterable[str]:
    from ipcbench.analysis.recommend.needs import NEEDS

    return NEEDS


class _Recommend(click.Command):
    """The command; its help text ends with the needs."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from ipcbench.analysis.recommend.needs import NEEDS

        with formatter.section("Needs"):
            formatter.write_dl([(name, need.meaning) for name, need in NEEDS.items()])


@click.command(
    "recommend",
    cls=_Recommend,
    help=f"""Say which transport to use for messages of a given size to a given number of readers.

    RUN is the folder of a run with the evidence. Without it, every backend that meets the needs is measured for exactly
    this question, in two or three minutes, and the new run is kept in {RESULTS_ROOT}/.

    Exit codes: 0 a transport is named (also for a tie); 1 none is, or there is no verdict; 2 bad input, or no transport
    can do it.""",
)
@click.argument("run", required=False, metavar="[RUN]", shell_complete=a_path("dir"))
@click.option(
    "--size",
    metavar="SIZE",
    show_default="required, but for a sample",
    help="Size of one payload: 64, 4KiB, 1MiB; entries of a dict or of records.",
)
@click.option(
    "--payload",
    metavar="KIND",
    default="bytes",
    show_default=True,
    shell_complete=one_of(PAYLOAD_KINDS),
    help="What a message carries, as in `ipcbench run`; its encoded size is what is asked for.",
)
@click.option(
    "--sample", metavar="FILE", shell_complete=a_path("file"), help="Ask for what is in a file, as in `ipcbench run`."
)
@click.option(
    "--codec",
    metavar="NAME",
    show_default="raw for bytes, else pickle",
    shell_complete=one_of(CODEC_NAMES),
    help="How it is encoded, as in `ipcbench run`.",
)
@click.option(
    "--readers",
    type=int,
    default=None,
    show_default="as many as RUN has; 1 without RUN",
    metavar="N",
    help="Number of reading processes.",
)
@click.option(
    "--pattern",
    type=Choice([pattern.replace("_", "-") for pattern in PATTERNS]),
    default=None,
    show_default="that of RUN",
    help="Who gets a message; a queue or fan-in takes RUN, or the latest such run in results/, and measures nothing.",
)
@click.option("--writers", type=int, default=None, metavar="N", help="Number of writers of a fan-in.")
@click.option(
    "--rate", metavar="RATE", show_default="any", help="Messages per second that it must sustain: 500/s, 2k/s."
)
@click.option(
    "--needs",
    default="",
    show_default="nothing",
    shell_complete=some_of(_need_names),
    metavar="NEED,…",
    help="What it must offer, see below: lossless,no-deps.",
)
@click.option(
    "--optimise",
    type=Choice(["latency", "throughput", "cpu"]),
    default="latency",
    show_default=True,
    help="What decides among the transports that meet the needs.",
)
@format_option("text", "json", "markdown")
@progress_options
@click.pass_context
def command(
    context: click.Context,
    /,
    run: str | None,
    size: str | None,
    payload: str,
    sample: str | None,
    codec: str | None,
    readers: int | None,
    pattern: str | None,
    writers: int | None,
    rate: str | None,
    needs: str,
    optimise: Goal,
    form: str,
    progress: bool,
    quiet: bool,
) -> int:
    """Load or measure the evidence, decide, print."""
    from ipcbench.analysis.recommend.question import ask
    from ipcbench.analysis.recommend.recommend import recommend, require_candidates
    from ipcbench.harness.prepare import encoded_bytes

    if size is None and sample is None:
        raise click.UsageError("Missing option '--size', the size of one payload, such as 4KiB", context)
    warn_of_code(sample or "")
    stored = None if run is None else stored_run(Path(run))
    size_bytes = encoded_bytes(size, payload, sample, codec, prefix="--")
    pattern = _checked_pattern(context, pattern, stored, writers, optimise)
    if pattern != "broadcast":
        return _answer_pattern(_pattern_question(pattern, size_bytes, readers, writers, rate, needs), stored, form)
    question = ask(size_bytes, readers, rate, needs, optimise, stored, prefix="--")
    able, is_interrupted = require_candidates(question), False
    if stored is None:
        stored, is_interrupted = _measure(question, able, command_line(context.obj), progress=progress, quiet=quiet)
    for problem in stored.problems:
        tell(f"warning: {problem}")
    code = _show(recommend(stored, question), form)
    return EXIT_INTERRUPTED if is_interrupted else code


def _show(answer: Recommendation, form: str) -> int:
    """Print an answer; return the exit code."""
    sys.stdout.write(_shown(answer, form))
    sys.stdout.flush()  # report a closed pipe here, not after the exit
    return 0 if answer.is_verdict else EXIT_NO_ANSWER


def _checked_pattern(
    context: click.Context, pattern: str | None, run: Run | None, writers: int | None, optimise: Goal
) -> str:
    """Return the pattern asked for, by default that of the run; refuse options that it does not have."""
    if pattern is None:
        trials = run.pattern_trials if run is not None else ()
        pattern = next((trial.spec.pattern for trial in trials), "broadcast").replace("_", "-")
    if pattern == "rpc":
        raise ConfigError("RUN", "a run of rpc", "one of messages: the tables of `ipcbench analyze` rank calls")
    is_chosen = context.get_parameter_source("optimise") is not ParameterSource.DEFAULT
    if pattern == "broadcast" and writers is not None:
        raise ConfigError("--writers", writers, "nothing without --pattern fan-in")
    if pattern != "broadcast" and is_chosen and optimise != "throughput":
        raise ConfigError("--optimise", optimise, f"throughput for a {pattern}, by which it is ranked")
    return pattern


def _pattern_question(
    pattern: str, size: int | str | None, readers: int | None, writers: int | None, rate: str | None, needs: str
) -> PatternQuestion:
    """Return the question; refuse what belongs to another pattern.

    Raises:
        ConfigError: naming the option.
    """
    from ipcbench.analysis.recommend.patterns import PatternQuestion
    from ipcbench.analysis.recommend.question import ask

    is_queue = pattern == "queue"
    peers, other, option = (readers, writers, "--writers") if is_queue else (writers, readers, "--readers")
    if other not in (None, 1):
        raise ConfigError(option, other, f"1 for a {pattern}")
    checked = ask(size or 0, 1 if peers is None else peers, rate, needs, "throughput", prefix="--")
    if checked.delivery != "every_message":
        raise ConfigError("--needs", needs, f"nothing about latest values: a {pattern} has none")
    kind: Pattern = "queue" if is_queue else "fan_in"
    return PatternQuestion(kind, checked.payload_bytes, peers, checked.rate_per_s, checked.needs)


def _answer_pattern(question: PatternQuestion, run: Run | None, form: str) -> int:
    """Print the answer from a run, or from the latest one of that pattern.

    Raises:
        StoreError: there is none.
    """
    from ipcbench.analysis.recommend.patterns import recommend_pattern
    from ipcbench.results.store import latest_pattern_run

    if run is None:
        folder = latest_pattern_run(RESULTS_ROOT, question.pattern)
        if folder is None:
            raise StoreError(f"{RESULTS_ROOT}: holds no run of that pattern; measure it: {question.command()}")
        tell(f"on the evidence of {folder}")
        run = stored_run(folder)
    for problem in run.problems:
        tell(f"warning: {problem}")
    answer = recommend_pattern(run, question)
    sys.stdout.write(_shown(answer, form))
    sys.stdout.flush()
    return 0 if answer.is_verdict else EXIT_NO_ANSWER


def _measure(
    question: Question, backends: tuple[str, ...], command_line: tuple[str, ...], *, progress: bool, quiet: bool
) -> tuple[Run, bool]:
    """Return a run for the question, and whether it was interrupted; what was measured till then is an answer too.

    Raises:
        KeyboardInterrupt: before the first trial.
    """
    from ipcbench.analysis.recommend.question import question_sweep
    from ipcbench.harness.sweep import run_sweep
    from ipcbench.results.store import load_run, new_run_id

    sweep, folder = question_sweep(question, backends), RESULTS_ROOT / new_run_id()
    say = (lambda _: None) if quiet else tell
    say(f"no RUN given: measuring {', '.join(sweep.backends)} for this question")
    try:
        with progress_display(progress=progress, quiet=quiet) as show:
            run_sweep(sweep, RESULTS_ROOT, results_dir=folder, command=command_line, on_progress=show)
    except KeyboardInterrupt:
        with suppress(IpcbenchError):
            run = load_run(folder)
            if run.trials:
                tell(f"ipcbench: interrupted; the finished trials are kept in {folder}")
                tell(f"  continue it:  {shell_command('ipcbench', 'run', '--resume', folder)}")
                tell("  then ask again, with that folder as RUN")
                return run, True
        raise
    say(f"results in {folder}; pass that folder as RUN to ask again without measuring")
    return load_run(folder), False


def _shown(answer: Recommendation | PatternRecommendation, form: str) -> str:
    if form == "json":
        values = answer.as_dict()
        return document(values["format"].removeprefix("ipcbench "), values)
    if form == "markdown":
        return answer.markdown()
    return answer.text(text_width() if sys.stdout.isatty() else None)
