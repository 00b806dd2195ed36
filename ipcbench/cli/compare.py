"""`ipcbench compare`: run B against run A, or the variants of one run, with a gate for continuous integration."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipcbench.cli import format_option
from ipcbench.cli.output import tell
from ipcbench.errors import ConfigError

if TYPE_CHECKING:
    from ipcbench.analysis.compare.run_cells import ComparedMetric

EXIT_REGRESSED = 1
EXIT_INCONCLUSIVE = 3

_MAX_GATE_PERCENT = 1000.0


@click.command(
    "compare",
    short_help="Compare two stored runs, or the variants of one, cell by cell.",
    help="""Compare run B with the earlier run A, two folders of results, cell by cell. Without B, compare the variants
    that run A measured in turns (see `ipcbench run --variant`) with the first of them. For each figure, print the
    ratio B / A with its interval, and whether the two differ.

    Exit codes: 0 done; 2 bad input. With --gate: 0 no figure is worse by more than the gate; 1 at least one is; 3 the
    runs allow neither claim, unless --inconclusive says otherwise.""",
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option("--gate", metavar="PERCENT", help="How much worse a figure may get, such as 5%.")
@click.option(
    "--inconclusive",
    type=click.Choice(["ok", "fail"]),
    help="Exit with 0 (ok) or 1 (fail) instead of 3 if the gate is neither passed nor failed for certain.",
)
@click.option(
    "--smallest-gate",
    "gates",
    is_flag=True,
    help="Show which gate this comparison decides: the smallest that all figures pass or fail for certain.",
)
@click.option(
    "--metrics",
    metavar="NAME,…",
    help="Test only these figures: latency-p50, latency-p99, decode-p50, round-trip-p50, round-trip-p99, throughput; "
    "fewer figures make a sharper test. By default all; with --gate or --smallest-gate latency-p50, "
    "round-trip-p50 and throughput.",
)
@click.option("--across-machines", is_flag=True, help="Allow runs of different machines.")
@format_option("text", "markdown", "json")
def command(
    a: str,
    b: str | None,
    gate: str | None,
    inconclusive: str | None,
    gates: bool,
    metrics: str | None,
    across_machines: bool,
    form: str,
) -> int:
    """Compare, print, and return the gate's exit code."""
    from ipcbench.analysis.compare import render as compare_render
    from ipcbench.analysis.compare.compare import compare_runs, compare_variants
    from ipcbench.analysis.compare.run_cells import MAIN_METRICS
    from ipcbench.results.store import load_run

    gate_ratio, chosen = _gate_ratio(gate), _metrics(metrics)
    if gates and chosen is None:
        chosen = MAIN_METRICS
    if inconclusive is not None and gate is None:
        raise ConfigError("--inconclusive", inconclusive, "nothing without --gate, which it is about")
    run = load_run(Path(a))
    if b is None:
        comparison = compare_variants(run, gate_ratio=gate_ratio, metrics=chosen)
    else:
        comparison = compare_runs(
            run, load_run(Path(b)), gate_ratio=gate_ratio, across_machines=across_machines, metrics=chosen
        )
    for problem in comparison.problems:
        tell(f"warning: {problem}")
    if form == "json":
        text = compare_render.as_json(comparison)
    else:
        text = {"text": compare_render.as_text, "markdown": compare_render.as_markdown}[form](comparison, gates=gates)
    sys.stdout.write(text)
    sys.stdout.flush()  # report a closed pipe here, not after the exit
    undecided = {"ok": 0, "fail": EXIT_REGRESSED, None: EXIT_INCONCLUSIVE}[inconclusive]
    return {"regressed": EXIT_REGRESSED, "inconclusive": undecided}.get(comparison.outcome or "", 0)


def _gate_ratio(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if match is None or not 0.01 <= float(match[1]) <= _MAX_GATE_PERCENT:
        raise ConfigError("--gate", text, f"a percentage from 0.01% to {_MAX_GATE_PERCENT:g}%: 5%")
    return float(match[1]) / 100.0


def _metrics(text: str | None) -> tuple[ComparedMetric, ...] | None:
    from ipcbench.analysis.compare.run_cells import METRICS

    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METRICS:
            raise ConfigError("--metrics", name, " or ".join(METRICS))
    return tuple(metric for metric in METRICS if metric in names)
