"""`ipcbench compare`: run B against run A, or the variants of one run, with a gate for continuous integration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipcbench.cli import EXIT_INCONCLUSIVE
from ipcbench.cli.options import Choice, a_path, format_option
from ipcbench.cli.output import stored_run, tell, text_width
from ipcbench.errors import ConfigError
from ipcbench.util.units import parse_ratio

if TYPE_CHECKING:
    from ipcbench.analysis.compare.run_cells import ComparedMetric

EXIT_REGRESSED = 1

_MIN_GATE_RATIO, _MAX_GATE_RATIO = 1e-4, 10.0


@click.command(
    "compare",
    help="""Compare run B with the earlier run A, two folders of results, cell by cell. Without B, compare the variants
    that run A measured in turns (see `ipcbench run --variant`) with the first of them. For each figure, print the
    ratio B / A with its interval, and whether the two differ.

    Exit codes: 0 done; 2 bad input. With --gate: 0 no figure is worse by more than the gate; 1 at least one is; 3 the
    runs allow neither claim, unless --inconclusive says otherwise.""",
)
@click.argument("a", metavar="A", shell_complete=a_path("file"))
@click.argument("b", metavar="[B]", required=False, shell_complete=a_path("file"))
@click.option("--gate", metavar="PERCENT", help="How much worse a figure may get: 5% or 5; below 1, a share: 0.05.")
@click.option(
    "--inconclusive",
    type=Choice(["ok", "fail"]),
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

    gate_ratio, chosen = _gate_ratio(gate), _metrics(metrics)
    if gates and chosen is None:
        chosen = MAIN_METRICS
    if inconclusive is not None and gate is None:
        raise ConfigError("--inconclusive", inconclusive, "nothing without --gate, which it is about")
    run = stored_run(Path(a))
    if b is None:
        comparison = compare_variants(run, gate_ratio=gate_ratio, metrics=chosen)
    else:
        comparison = compare_runs(
            run, stored_run(Path(b)), gate_ratio=gate_ratio, across_machines=across_machines, metrics=chosen
        )
    for problem in comparison.problems:
        tell(f"warning: {problem}")
    if form == "json":
        text = compare_render.as_json(comparison)
    elif form == "markdown":
        text = compare_render.as_markdown(comparison, gates=gates)
    else:
        text = compare_render.as_text(comparison, gates=gates, width=text_width())
    sys.stdout.write(text)
    sys.stdout.flush()  # report a closed pipe here, not after the exit
    undecided = {"ok": 0, "fail": EXIT_REGRESSED, None: EXIT_INCONCLUSIVE}[inconclusive]
    return {"regressed": EXIT_REGRESSED, "inconclusive": undecided}.get(comparison.outcome or "", 0)


def _gate_ratio(text: str | None) -> float | None:
    if text is None:
        return None
    ratio = parse_ratio(text, "--gate")
    if not _MIN_GATE_RATIO <= ratio <= _MAX_GATE_RATIO:
        raise ConfigError("--gate", text, f"{_MIN_GATE_RATIO:.2%} to {_MAX_GATE_RATIO:.0%}, such as 5%")
    return ratio


def _metrics(text: str | None) -> tuple[ComparedMetric, ...] | None:
    from ipcbench.analysis.compare.run_cells import parse_metrics

    return None if text is None else parse_metrics((name.strip() for name in text.split(",")), "--metrics")
