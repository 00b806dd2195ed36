"""Is the first-ranked remedy the right one, and does its predicted total come true?

    python benchmarks/diagnose.py [--runs N] [FAULT …]

A program is run with a fault and diagnosed (tests/diagnose/faulty.py); then the fault is mended, and the program runs
again, three times. A line for each run: the remedy that ranks first, its predicted total, the median of the mended
program, and their ratio. The last line of each fault counts the runs whose first remedy is right, and those whose
prediction is within 15 %.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from ipcbench.diagnose.diagnosis import CANDIDATES, TRANSPORT, diagnose
from ipcbench.replay.clients import read_traffic
from ipcbench.replay.run import Request

ROOT = Path(__file__).parents[1]
RIGHT = {
    "relay": (f"{TRANSPORT}zmq", f"{TRANSPORT}pipe", f"{TRANSPORT}shm"),
    "msgpack": ("out of band", "rpc"),
    "tiny": ("fewer calls",),
    "slow server": ("server",),
    "slow first call": ("first call",),
    "neighbour": ("neighbours",),
}
"""Fault → the keys of its remedies; the program is mended by the first of them."""
CLOSE_RATIO = 0.15


def run(fault: str, folder: Path, *options: str) -> int:
    """Run the program; return how long its calls took, in ns."""
    command = [sys.executable, "-m", "tests.diagnose.faulty", fault, str(folder), *options]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def one(fault: str) -> tuple[str, float, float]:
    """Return the first remedy, what it predicts, and what the mended program takes, in ns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(fault, folder / "before")
        mended = median(run(fault, folder / f"after-{number}", "--mended") for number in range(3))
        source = "zmq-tcp-insecure" if fault == "relay" else "zmq"
        made = diagnose(read_traffic(folder / "before"), Request(backends=CANDIDATES, rounds=3, source=source))
    first = next(iter(made.remedies), None)
    applied = next((each for each in made.remedies if each.key == RIGHT[fault][0]), None)
    return "–" if first is None else first.key, 0.0 if applied is None else applied.predicted_ns.estimate, mended


def main() -> None:
    """Print a line for each run, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", default=list(RIGHT))
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    for fault in options.faults:
        right = close = 0
        for _ in range(options.runs):
            key, predicted, mended = one(fault)
            right += key in RIGHT[fault]
            close += abs(predicted / mended - 1) <= CLOSE_RATIO
            print(f"{fault}: {key}, predicted {predicted / 1e6:.1f} ms, measured {mended / 1e6:.1f} ms, "
                  f"ratio {predicted / mended:.3f}", flush=True)  # fmt: skip
        print(f"{fault}: right in {right} of {options.runs}, within 15 % in {close}", flush=True)


if __name__ == "__main__":
    main()
