"""How often a gate decides, and decides right: two runs of one version, or two variants in one run; prints Markdown.

`runs` measures a sweep again and again and compares each run with the one before: all should pass. `variants` measures
the default sweep for variants: with `--slower 0` base and head are the same and should pass, with `--slower 10` head is
10 % slower by every metric (`ipcbench.testing.faults.slowed`) and should fail a gate of 5 %. Every comparison is
appended to the log; a script that is started again continues there, and with `--more 0` only prints the tables.

    python benchmarks/verdicts/gates.py runs --more 10 [--gate 10%] [--log gates.jsonl] [-- default]
    python benchmarks/verdicts/gates.py variants --more 20 [--slower 10] [--backends shm] [--gate 5%] [-- --budget 60s]

What follows `--` goes to `ipcbench run`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from _options import at_least, carry_out

ROOT = Path(__file__).parents[2]
SLOWED = "from ipcbench.testing.faults.slowed import slowed\n\nTransport = slowed({backend!r}, {percent})\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("runs", "variants"))
    parser.add_argument("--more", type=at_least(0), default=1, help="comparisons to add to the log")
    parser.add_argument("--gate", help="by default 10%% of runs, 5%% of variants")
    parser.add_argument("--slower", type=int, default=0, help="percent by which head is slower")
    parser.add_argument("--backends", default="shm", help="of variants")
    parser.add_argument("--log", type=Path, default=Path("gates.jsonl"))
    own, _, for_run = " ".join(sys.argv[1:]).partition(" -- ")
    options = parser.parse_args(own.split(), argparse.Namespace(run=for_run.split()))
    gate = options.gate or {"runs": "10%", "variants": "5%"}[options.what]
    with tempfile.TemporaryDirectory(prefix="ipcb-gates-") as scratch:
        compared = runs if options.what == "runs" else variants
        for number, (document, seconds) in enumerate(compared(options, gate, Path(scratch)), 1):
            entry = {
                "what": options.what,
                "gate": gate,
                "slower_percent": options.slower,
                "backends": options.backends if options.what == "variants" else "",
                "run": " ".join(options.run),
                "seconds": round(seconds, 1),
                "load_1min": os.getloadavg()[0],
                "unix_s": round(time.time()),
                **{name: document[name] for name in ("outcome", "smallest_gate_ratio", "changes")},
            }
            with options.log.open("a") as log:
                log.write(json.dumps(entry) + "\n")
            print(f"{number} of {options.more}: {entry['outcome']} in {seconds:.0f} s", file=sys.stderr, flush=True)
    show([json.loads(line) for line in options.log.read_text().splitlines()] if options.log.exists() else [])
    return 0


def runs(options: argparse.Namespace, gate: str, scratch: Path) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield the comparison of each run with the one before, and how long the run took."""
    before = scratch / "0"
    if options.more:
        run(before, options.run)
    for number in range(1, options.more + 1):
        after = scratch / str(number)
        began = time.monotonic()
        run(after, options.run)
        yield compared(before, after, gate=gate), time.monotonic() - began
        shutil.rmtree(before)
        before = after


def variants(options: argparse.Namespace, gate: str, scratch: Path) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield the comparison of the variants of one run after the other, and how long the run took."""
    names = options.backends.split(",")
    pythons = [interpreter(scratch / name, names, percent) for name, percent in (("base", 0), ("head", options.slower))]
    measured = [module_of(name) + ":Transport" for name in names] if options.slower else names
    for number in range(options.more):
        folder = scratch / str(number)
        began = time.monotonic()
        chosen = [f"--variant=base={pythons[0]}", f"--variant=head={pythons[1]}", "--backends", ",".join(measured)]
        run(folder, [*chosen, "--seed", str(number + 1), *options.run])
        yield compared(folder, gate=gate), time.monotonic() - began
        shutil.rmtree(folder)


def interpreter(folder: Path, backends: Sequence[str], percent: int) -> Path:
    """Make a program that is this interpreter and finds slowed copies of the backends; return its path."""
    folder.mkdir()
    for backend in backends:
        (folder / f"{module_of(backend)}.py").write_text(SLOWED.format(backend=backend, percent=percent))
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:{ROOT}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


def module_of(backend: str) -> str:
    return f"copy_of_{backend.replace('-', '_')}"


def run(folder: Path, arguments: Sequence[str]) -> None:
    """Measure a run into `folder`."""
    command = [sys.executable, "-m", "ipcbench", "run", *arguments, "--out", str(folder), "--format", "json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def compared(*folders: Path, gate: str) -> dict[str, Any]:
    """Return what `ipcbench compare` says."""
    command = [sys.executable, "-m", "ipcbench", "compare", *map(str, folders), "--gate", gate, "--format", "json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def show(entries: Sequence[dict[str, Any]]) -> None:
    """Print how often the gates of each kind decided, and by which figures."""
    fields = ("what", "gate", "slower_percent", "backends", "run")
    kinds = list(dict.fromkeys(tuple(entry[field] for field in fields) for entry in entries))
    heads = ("comparisons", "passed", "regressed", "inconclusive", "smallest gate, median", "s, median", "load, median")
    print(f"| {' | '.join((*fields, *heads))} |\n|{'---|' * (len(fields) + len(heads))}")
    for kind in kinds:
        chosen = [entry for entry in entries if tuple(entry[field] for field in fields) == kind]
        outcomes = Counter(entry["outcome"] for entry in chosen)
        gates = [entry["smallest_gate_ratio"] or float("inf") for entry in chosen]
        cells = [*kind, len(chosen), *(outcomes[word] for word in ("passed", "regressed", "inconclusive"))]
        cells += [f"{100 * median(gates):.2f} %", f"{median(entry['seconds'] for entry in chosen):.0f}"]
        cells += [f"{median(entry['load_1min'] for entry in chosen):.1f}"]
        print(f"| {' | '.join(map(str, cells))} |")
    for kind in kinds:
        print(f"\n{' '.join(map(str, kind)).strip()}, by figure:\n")
        print("| figure | passed | regressed | inconclusive | smallest gate, median |\n|---|---:|---:|---:|---:|")
        changes = [
            change
            for entry in entries
            if tuple(entry[field] for field in fields) == kind
            for change in entry["changes"]
        ]
        for name in dict.fromkeys(map(figure, changes)):
            own = [change for change in changes if figure(change) == name]
            outcomes = Counter(change["gate"] for change in own)
            gates = [change["smallest_gate_ratio"] or float("inf") for change in own]
            counts = " | ".join(str(outcomes[word]) for word in ("passed", "regressed", "inconclusive"))
            print(f"| {name} | {counts} | {100 * median(gates):.2f} % |")


def figure(change: dict[str, Any]) -> str:
    cell = change["cell"]
    return f"{cell['backend']} {cell['payload']} {cell['size']:,} {change['metric']}"


if __name__ == "__main__":
    carry_out(main)
