"""Are latencies between hosts right whose clocks are wrong by a known time, over links of known delay?

    python benchmarks/host_clocks.py [--rounds N]

Two emulated hosts for each pair of a clock's offset and a link. A trial's one-way latency has to be, within its printed
error, the link's delay and what a message takes without any link; or it is refused. A paced round trip has to be the
link's two delays and what a round trip takes without any, whatever the clocks say.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from ipcbench.hosts.launchers import SHELL_VARIABLE
from ipcbench.hosts.simulated.cluster import simulated_hosts
from ipcbench.hosts.simulated.links import Link

MS = 10**6
OFFSETS_NS = (0, 3 * MS, -3 * MS, 100_000 * MS)
LINKS_NS = ((0, 0), (5 * MS, 5 * MS), (5 * MS, 1 * MS))
"""Delay from a to b, and from b to a."""


def trials_of(delays_ns: tuple[int, int], offset_ns: int, rounds: int) -> list[dict[str, Any]]:
    """Return the trials of a run between two hosts, of which the second's clock is wrong."""
    links = [*(Link(delay_s=delay_ns / 1e9) for delay_ns in delays_ns), Link()]
    with simulated_hosts(2, links, clock_offsets_ns=(0, offset_ns)) as cluster, tempfile.TemporaryDirectory() as folder:
        options = ["--backends", "tcp", "--payload", "bytes", "--sizes", "521", "--readers", "1", "--look", "no"]
        options += ["--mode", "paced,pingpong", "--rate", "200/s", "--rounds", str(rounds), "--window", "500ms", "-q"]
        command = [sys.executable, "-m", "ipcbench", "run", "--hosts", "a,b", *options, "--out", f"{folder}/run"]
        variables = {**os.environ, SHELL_VARIABLE: str(cluster.remote_shell)}
        done = subprocess.run(cluster.command(command), env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return [json.loads(line) for line in Path(folder, "run", "trials.jsonl").read_text().splitlines()]


def main() -> None:
    """Print a line for each clock and link, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    bare: dict[str, float] = {}
    right = wrong = refused = 0
    errors = []
    for delays_ns in LINKS_NS:
        for offset_ns in OFFSETS_NS:
            trials = trials_of(delays_ns, offset_ns, options.rounds)
            paced = [trial for trial in trials if trial["spec"]["mode"] == "paced" and not trial["spec"]["twin"]]
            trips = [trial["endpoints"][0]["round_trip"]["p50_ns"] for trial in trials
                     if trial["spec"]["mode"] == "pingpong" and not trial["spec"]["twin"]]  # fmt: skip
            if not bare:
                bare = {
                    "way": median(trial["endpoints"][1]["latency"]["p50_ns"] for trial in paced),
                    "trip": median(trips),
                }
            said = []
            for trial in paced:
                latency, error_ns = trial["endpoints"][1]["latency"], trial["conditions"]["clock_error_ns"]
                if latency is None:
                    refused += 1
                    said.append("refused")
                    continue
                off_ns = latency["p50_ns"] - delays_ns[0] - bare["way"]
                is_right = abs(off_ns) <= error_ns + 0.03 * latency["p50_ns"]
                right, wrong = right + is_right, wrong + (not is_right)
                said.append(f"{off_ns / 1e3:+.0f} µs of ± {error_ns / 1e3:.0f}")
            truth_ns = sum(delays_ns) + bare["trip"]
            errors.append(abs(median(trips) / truth_ns - 1))
            there, back = (delay_ns / MS for delay_ns in delays_ns)
            print(
                f"link {there:g} + {back:g} ms, clock {offset_ns / MS:+g} ms: one-way off by {', '.join(said)};",
                end=" ",
            )
            off = f"{100 * (median(trips) / truth_ns - 1):+.1f} %"
            print(f"paced round trip {median(trips) / MS:.3f} ms, {off}", flush=True)
    print(f"one-way: {right} right, {wrong} wrong, {refused} refused;", end=" ")
    print(f"paced round trips: at most {100 * max(errors):.1f} % off")


if __name__ == "__main__":
    main()
