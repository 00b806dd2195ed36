"""Compare two checkouts of ipcbench: is what they print the same data, and is one of them slower?

    python benchmarks/two_checkouts.py outputs BEFORE AFTER [LOG|TRACE ...]
    python benchmarks/two_checkouts.py speed BEFORE AFTER [--rounds 15]

Each checkout needs its own environment in `.venv`. `outputs` runs the commands that read stored inputs and compares
their JSON and CSV value by value, whatever the order of rows; of sentences it compares the figures only. Of commands
that measure (`run`, `replay`) it compares the names and types of all values. `speed` times both checkouts in turn, one
process each time, and prints the median ratio after/before with its quartiles.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REFERENCE = "results/reference"
RECOMMEND = ("recommend", "--payload", "64KiB", "--readers", "3", "--format", "json")
STORED = (
    ("analyze", REFERENCE, "--format", "json"),
    ("analyze", REFERENCE, "--format", "csv"),
    (*RECOMMEND, REFERENCE),
    (*RECOMMEND, "--optimise", "throughput", "--needs", "lossless", REFERENCE),
    (*RECOMMEND, "--optimise", "cpu", "--rate", "2k/s", REFERENCE),
    ("compare", REFERENCE, "INTERRUPTED", "--format", "json"),
    ("analyze", "INTERRUPTED", "--format", "json"),
    ("export", REFERENCE, "--to", "pyperf"),
    ("export", REFERENCE, "--to", "github-latency"),
    ("export", REFERENCE, "--to", "hlog"),
    ("export", REFERENCE, "--to", "osu"),
    ("export", REFERENCE, "--to", "perfetto"),
)
TRACED = (
    ("trace", "report", "INPUT", "--format", "json"),
    ("trace", "report", "INPUT", "--format", "csv"),
    ("trace", "report", "INPUT", "--format", "json", "--rules", "seed"),
    ("trace", "diff", "INPUT", "INPUT", "--format", "json"),
    ("trace", "export", "INPUT", "--to", "csv"),
    ("trace", "export", "INPUT", "--to", "chrome"),
)
MEASURED = (
    (
        "run",
        "small",
        "--backends",
        "shm,pipe",
        "--sizes",
        "10,100",
        "--rounds",
        "2",
        "--window",
        "50ms",
        "--format",
        "json",
    ),
    ("replay", "INPUT", "--backends", "shm,pipe", "--rounds", "2", "--calls", "50", "--format", "json"),
)
SNIPPETS = {
    "import ipcbench": "import ipcbench",
    "ipcbench --help": "from ipcbench.cli import main; main(['--help'])",
    "shm at 64 B": """
from ipcbench import ChannelSpec, get_backend
backend = get_backend("shm")()
address = backend.create(ChannelSpec(f"ipcb-speed-{os.getpid()}", readers=1, max_message_bytes=64))
with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
    message = bytes(64)
    for _ in range(100_000):
        writer.write(message, 1.0)
        reader.read(1.0)
backend.destroy(address)
""",
    "a recorded call": """
from ipcbench import trace
with tempfile.TemporaryDirectory() as folder:
    trace.start(folder, service="speed")
    for _ in range(100_000):
        with trace.call("method") as call:
            call.serialized(8); call.sent(); call.received(8)
    trace.stop()
""",
    "the harness floor": """
from ipcbench.harness.floor import measure_floor
floor = measure_floor()
value = floor.writer_ns + floor.reader_ns
""",
}
TIMED = """
import os, sys, tempfile, time
value = None
out, sys.stdout = sys.stdout, open(os.devnull, "w")
began = time.perf_counter_ns()
try:
    {body}
except SystemExit:
    pass
print(value if value is not None else time.perf_counter_ns() - began, file=out)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["outputs", "speed"])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("inputs", nargs="*", type=Path, help="logs and traces to read, too")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    checkouts = (options.before.resolve(), options.after.resolve())
    if options.what == "speed":
        return speed(checkouts, options.rounds)
    return outputs(checkouts, [path.resolve() for path in options.inputs])


def outputs(checkouts: tuple[Path, Path], inputs: Sequence[Path]) -> int:
    """Print one line a command; return how many differ."""
    different_count = 0
    with tempfile.TemporaryDirectory() as folder:
        interrupted = Path(folder) / "interrupted"
        interrupt(checkouts[0] / REFERENCE, interrupted)
        for command, exact in commands(inputs):
            words = [str(interrupted) if word == "INTERRUPTED" else word for word in command]
            before, after = (printed(checkout, words) for checkout in checkouts)
            difference = next(differences(before, after, exact), "")
            different_count += bool(difference)
            word = "DIFFERENT" if difference else "same" if before[0] == 0 else f"exit {before[0]}"
            print(f"{word:10}{' '.join(command)}  {difference}", flush=True)
    return different_count


def commands(inputs: Sequence[Path]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield (command, whether its values must be equal)."""
    for command in STORED:
        yield command, True
    for path in inputs:
        for command in TRACED:
            yield tuple(str(path) if word == "INPUT" else word for word in command), True
    for command in MEASURED:
        if "INPUT" not in command:
            yield command, False
        elif inputs:
            yield tuple(str(inputs[0]) if word == "INPUT" else word for word in command), False


def interrupt(run: Path, target: Path) -> None:
    """Copy a run as Ctrl-C would have left it after a third of its trials."""
    shutil.copytree(run, target)
    lines = (run / "trials.jsonl").read_text().splitlines(keepends=True)
    (target / "trials.jsonl").write_text("".join(lines[: len(lines) // 3]))


def printed(checkout: Path, words: Sequence[str]) -> Any:
    """Return what a command prints on stdout as plain values: JSON, JSON lines, CSV rows, or lines."""
    with tempfile.TemporaryDirectory() as folder:
        out = ["--out", f"{folder}/run"] if words[0] == "run" else []
        done = subprocess.run(
            [checkout / ".venv/bin/ipcbench", *words, *out], cwd=checkout, capture_output=True, text=True, check=False
        )
    try:
        return [done.returncode, json.loads(done.stdout)]
    except ValueError:
        return [done.returncode, list(csv.reader(io.StringIO(done.stdout)))]


def differences(before: Any, after: Any, exact: bool, place: str = "") -> Iterator[str]:
    """Yield where two values differ; if not `exact`, only in names and types."""
    if isinstance(before, dict) and isinstance(after, dict):
        if before.keys() != after.keys():
            yield f"{place}: names {sorted(before.keys() ^ after.keys())}"
        for name in before.keys() & after.keys():
            yield from differences(before[name], after[name], exact, f"{place}.{name}")
    elif isinstance(before, list) and isinstance(after, list):
        if exact and len(before) != len(after):
            yield f"{place}: {len(before)} and {len(after)} items"
        if exact and all(isinstance(item, dict | list) for item in (*before, *after)):  # rows
            before, after = (sorted(items, key=without_prose) for items in (before, after))
        for index, (a, b) in enumerate(zip(before, after, strict=False)):
            yield from differences(a, b, exact, f"{place}[{index}]")
    elif (comparable(before) != comparable(after)) if exact else not same_type(before, after):
        yield f"{place}: {before!r} and {after!r}"


def comparable(value: Any) -> Any:
    """Return what must be equal: of a sentence its figures, of anything else its text (so that NaN equals NaN)."""
    if isinstance(value, str) and value.count(" ") > 1:
        return re.findall(r"\d[\d,.]*\d|\d", value)
    return repr(value)


def without_prose(row: dict[str, Any] | list[Any]) -> str:
    """Return what rows are sorted by."""
    values = row.values() if isinstance(row, dict) else row
    return repr([comparable(value) for value in values])


def same_type(before: Any, after: Any) -> bool:
    return before is None or after is None or type(before) is type(after)


def speed(checkouts: tuple[Path, Path], rounds: int) -> int:
    """Print the ratio after/before of each snippet: median [quartiles] of `rounds` pairs."""
    for name, body in SNIPPETS.items():
        program = TIMED.format(body=body.strip().replace("\n", "\n    "))
        times: list[list[float]] = [[], []]
        for index in range(rounds + 1):
            for which in (0, 1) if index % 2 else (1, 0):
                environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
                done = subprocess.run(
                    [checkouts[which] / ".venv/bin/python", "-c", program],
                    cwd=checkouts[which],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                if index:  # the first pair compiles bytecode
                    times[which].append(float(done.stdout))
        ratios = [after / before for before, after in zip(*times, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        shown = " → ".join(f"{statistics.median(found) / 1e6:.4g}" for found in times)
        print(f"{name:18}{middle:.3f} [{low:.3f}–{high:.3f}]   median ms {shown}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
