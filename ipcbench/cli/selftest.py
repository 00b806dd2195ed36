"""`ipcbench selftest`: how often the verdicts are right on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ipcbench.cli import format_option
from ipcbench.cli.progress import progress_display
from ipcbench.errors import ConfigError

if TYPE_CHECKING:
    from ipcbench.selftest import SelfTest

_MAX_PAIRS = 10_000
_MAX_ROUNDS = 1_000
_MAX_SLOWDOWN_PERCENT = 200


@click.command(
    "selftest",
    short_help="Measure how often the verdicts are right here.",
    help="""Measure how often ipcbench's verdicts are right on this machine: how often two equal cells are called
    different (A/A), and how often a known slow-down is found. Ten verdicts of each kind, on 20 rounds each, take about
    four minutes.""",
)
@click.option(
    "--backend", default="shm", show_default=True, metavar="NAME", help="Backend to measure and to slow down."
)
@click.option("--pairs", default=10, show_default=True, metavar="N", help="Verdicts of each kind.")
@click.option("--rounds", default=20, show_default=True, metavar="N", help="Rounds of each comparison.")
@click.option(
    "--slowdowns", default="5,10,20", show_default=True, metavar="P,…", help="Slow-downs to look for, in percent."
)
@format_option("text", "json")
def command(backend: str, pairs: int, rounds: int, slowdowns: str, form: str) -> int:
    """Measure, count, print."""
    from ipcbench.selftest import self_test

    if not 1 <= pairs <= _MAX_PAIRS:
        raise ConfigError("--pairs", pairs, f"1 to {_MAX_PAIRS:,}")
    if not 1 <= rounds <= _MAX_ROUNDS:
        raise ConfigError("--rounds", rounds, f"1 to {_MAX_ROUNDS:,}")
    percents = _percents(slowdowns)
    with progress_display() as show:
        result = self_test(backend, pairs, rounds, percents, on_progress=show)
    click.echo(_as_json(result) if form == "json" else _as_text(result))
    return 0


def _percents(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    percents = tuple(int(word) for word in words if word.isdecimal() and 1 <= int(word) <= _MAX_SLOWDOWN_PERCENT)
    if len(percents) < len(words) or len(set(percents)) < len(percents):
        raise ConfigError("--slowdowns", text, f"whole percents from 1 to {_MAX_SLOWDOWN_PERCENT}, each once: 5,10,20")
    return percents


def _as_text(result: SelfTest) -> str:
    lines = [
        f"verdicts on the one-way latency of {result.backend}, 1 reader, {result.rounds} rounds",
        f"noise: a cell measured twice differs by {_percent(result.noise_ratio)}; less noise finds smaller slow-downs",
        "",
    ]
    lines.append("slow-down  verdicts  called different  upper bound (95 %)  called slower")
    for one in result.counts:
        kind = "none (A/A)" if one.percent == 0 else f"{one.percent} %"
        lines.append(
            f"{kind:<10} {one.verdicts_count:>8} {_percent(one.different_ratio):>17} "
            f"{_percent(one.upper_bound_ratio):>19} {_percent(one.found_ratio):>14}"
        )
    lines += ["", "Called different without a slow-down is a false positive; a slow-down not called slower was missed."]
    return "\n".join(lines)


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f} %"


def _as_json(result: SelfTest) -> str:
    counts = [
        {**asdict(one), "different_ratio": one.different_ratio, "upper_bound_ratio": one.upper_bound_ratio}
        for one in result.counts
        if one.verdicts_count
    ]
    return json.dumps(
        {"backend": result.backend, "rounds": result.rounds, "noise_ratio": result.noise_ratio, "tallies": counts},
        indent=2,
    )
