"""`ipcbench selftest`: how often the verdicts are right on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ipcbench.cli import EXIT_INTERRUPTED
from ipcbench.cli.options import backend_names, format_option, one_of, progress_options
from ipcbench.cli.output import tell
from ipcbench.cli.progress import progress_display
from ipcbench.errors import ConfigError
from ipcbench.render.document import document
from ipcbench.render.table import NOT_MEASURED, Table, make_columns
from ipcbench.render.text import aligned

if TYPE_CHECKING:
    from ipcbench.selftest import SelfTest

_MAX_PAIRS = 10_000
_MAX_ROUNDS = 1_000
_MAX_SLOWDOWN_PERCENT = 200


@click.command(
    "selftest",
    help="""Measure how often ipcbench's verdicts are right on this machine: how often two equal cells are called
    different (A/A), and how often a known slow-down is found, by each metric, after 1, 2, 3, 5, 10 and 20 rounds.
    Ten verdicts of each kind take about ten minutes.""",
)
@click.option(
    "--backend",
    default="shm",
    show_default=True,
    shell_complete=one_of(backend_names),
    metavar="NAME",
    help="Backend to measure and to slow down.",
)
@click.option("--pairs", default=10, show_default=True, metavar="N", help="Verdicts of each kind, rounded up to tens.")
@click.option("--rounds", default=20, show_default=True, metavar="N", help="Rounds of each comparison.")
@click.option(
    "--slowdowns", default="5,10,20", show_default=True, metavar="P,…", help="Slow-downs to look for, in percent."
)
@format_option("text", "json")
@progress_options
def command(backend: str, pairs: int, rounds: int, slowdowns: str, form: str, progress: bool, quiet: bool) -> int:
    """Measure, count, print."""
    from ipcbench.selftest import self_test

    if not 1 <= pairs <= _MAX_PAIRS:
        raise ConfigError("--pairs", pairs, f"1 to {_MAX_PAIRS:,}")
    if not 1 <= rounds <= _MAX_ROUNDS:
        raise ConfigError("--rounds", rounds, f"1 to {_MAX_ROUNDS:,}")
    percents = _percents(slowdowns)
    results: list[SelfTest] = []
    code = 0
    try:
        with progress_display(progress=progress, quiet=quiet) as show:
            results.extend(self_test(backend, pairs, rounds, percents, on_progress=show))
    except KeyboardInterrupt:
        if not results:
            raise
        tell("ipcbench: interrupted; these are the verdicts of the finished runs")
        code = EXIT_INTERRUPTED
    click.echo(_as_json(results[-1]) if form == "json" else _as_text(results[-1]), nl=form == "text")
    return code


def _percents(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    percents = tuple(int(word) for word in words if word.isdecimal() and 1 <= int(word) <= _MAX_SLOWDOWN_PERCENT)
    if len(percents) < len(words) or len(set(percents)) < len(percents):
        raise ConfigError("--slowdowns", text, f"whole percents from 1 to {_MAX_SLOWDOWN_PERCENT}, each once: 5,10,20")
    return percents


def _as_text(result: SelfTest) -> str:
    noise = "unknown; it takes three rounds"
    if result.noise_ratio is not None:
        noise = (
            f"two equal cells differ by about {_percent(result.noise_ratio)} in one-way latency after {result.rounds} "
            "rounds; less noise finds smaller slow-downs"
        )
    header = [f"verdicts on {result.backend}, 1 reader", f"noise: {noise}"]
    heads = ("metric", "rounds", "slow-down", "verdicts", "called different", "at most (95 %)", "called slower")
    table = Table(
        title="",
        columns=make_columns(heads, left=(0, 2)),
        rows=tuple(
            (
                one.metric,
                str(one.rounds_count),
                f"{one.percent} %" if one.percent else "none (A/A)",
                str(one.verdicts_count),
                _percent(one.different_ratio),
                _percent(one.upper_bound_ratio),
                _percent(one.found_ratio) if one.percent else NOT_MEASURED,
            )
            for one in result.counts
        ),
    )
    footer = "Called different without a slow-down is a false positive; a slow-down not called slower was missed."
    return "\n".join([*header, "", *aligned(table), "", footer])


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f} %"


def _as_json(result: SelfTest) -> str:
    counts = [
        {**asdict(one), "different_ratio": one.different_ratio, "upper_bound_ratio": one.upper_bound_ratio}
        for one in result.counts
    ]
    fields = {"backend": result.backend, "rounds": result.rounds, "noise_ratio": result.noise_ratio, "counts": counts}
    return document("self-test", fields)
