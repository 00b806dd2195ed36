"""A model divided over two ranks: shared memory beside gloo, in turns.

    python benchmarks/profile_tp2.py [--model qwen3-tiny] [--transport shm] [--runs 7]

A line for each pair of runs: what the prompt and a decoded token took over each. The last lines have the ratio, the
transport's over gloo's, with its 95 % interval over the pairs. torch is needed.
"""

from __future__ import annotations

import argparse

from ipcbench.profile.records import Setting
from ipcbench.profile.run import profile
from ipcbench.profile.summary import summarize
from ipcbench.stats.figures import figure_of


def latencies_ms(model: str, transport: str) -> dict[str, float]:
    """Return what each phase of a run takes, from the first rank's start to the last one's end."""
    made = profile(Setting(model=model, parallel="tp2", transport=transport, tokens=16), sources=("plain",))
    assert made is not None
    return {each.phase: each.latency.value / 1e6 for each in summarize(made).totals if each.latency}


def main() -> None:
    """Print a line for each pair, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-tiny")
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--runs", type=int, default=7)
    asked = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    for number in range(asked.runs):
        order = ("gloo", asked.transport) if number % 2 else (asked.transport, "gloo")
        took = {name: latencies_ms(asked.model, name) for name in order}
        for phase, gloo_ms in took["gloo"].items():
            ours_ms = took[asked.transport][phase]
            ratios.setdefault(phase, []).append(ours_ms / gloo_ms)
            print(f"{phase}: gloo {gloo_ms:.2f} ms, {asked.transport} {ours_ms:.2f} ms", flush=True)
    for phase, each in ratios.items():
        found = figure_of(each)
        interval = f" [{found.interval.low:.3f}, {found.interval.high:.3f}]" if found.interval else ""
        print(f"{phase}: {asked.transport} / gloo {found.value:.3f}{interval}")


if __name__ == "__main__":
    main()
