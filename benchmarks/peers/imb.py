"""`mpi-buffer` against the Bcast of the Intel MPI Benchmarks, over the same MPI library; prints Markdown.

IMB-MPI1 is a C program that calls MPI_Bcast in a loop: fixed size, no flow control, no time-outs, no Python. Install it
with `pip install impi-rt`, best in a separate environment, because that package brings its own MPI. Here it runs over
the library and the launcher of this Python's mpi4py, through MPICH's common binary interface. IMB asks MPI for no
threads, mpi4py for `multiple`, which costs MPICH locks and yields; `--thread-level serialized` makes the two alike.
Rounds alternate. Our rate is from the first receipt to the last; IMB's is the inverse of its largest time.

    python benchmarks/peers/imb.py --imb /path/to/IMB-MPI1 [--rounds 5] [--sizes 16KiB,256KiB,4MiB] [--readers 1]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import _common
from _mpi_group import run_mpi_group

from ipcbench.backends.mpi.backend import MpiBuffer
from ipcbench.spec import ChannelSpec
from ipcbench.util.units import format_bytes, format_significant, parse_bytes

SIZES = "16KiB,64KiB,256KiB,1MiB,4MiB"
AT_LEAST_RATIO = 0.8
DEPTH = 64
_SECONDS, _TIMEOUT_S = 0.3, 60.0


def ours_per_s(sizes: list[int], readers: int) -> dict[int, float]:
    """Return messages per second by size."""
    rates = {}
    for size in sizes:
        name = f"ipcb-peers-{os.getpid()}-{size}"
        address = MpiBuffer().create(ChannelSpec(name, readers=readers, max_message_bytes=size, depth=DEPTH))
        writer = (_common.publish, ([(_common.writing, (address,))], size, _SECONDS))
        takers = [(_common.subscribe, ([(_common.reading, (address, index))],)) for index in range(readers)]
        try:
            [[sent]], *taken = run_mpi_group([writer, *takers], _TIMEOUT_S)
        finally:
            MpiBuffer().destroy(address)
        rates[size] = _common.throughput_per_s(sent, [one for [[one]] in taken])
    return rates


def imb_per_s(launch: list[str], environment: dict[str, str], sizes: list[int], imb: str) -> dict[int, float]:
    """Return broadcasts per second by size."""
    with tempfile.NamedTemporaryFile("w", suffix=".sizes") as lengths:
        lengths.write("\n".join(map(str, sizes)) + "\n")
        lengths.flush()
        options = ["-npmin", launch[-1], "-msglen", lengths.name, "-time", str(_SECONDS), "-iter", "100000"]
        command = [*launch, imb, "Bcast", *options]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^ +(\d+) +\d+ +[\d.]+ +([\d.]+) +[\d.]+ *$", said, re.MULTILINE)
    return {int(size): 1e6 / float(time_us) for size, time_us in rows if int(size)}


def compare(arguments: argparse.Namespace, imb: str, readers: int) -> None:
    """Measure in rounds; print a row for each size."""
    beside = Path(sys.executable).parent
    launch = [str(beside / "mpiexec"), "-n", str(readers + 1)]
    os.environ["MPI4PY_RC_THREAD_LEVEL"] = arguments.thread_level
    environment = {**os.environ, "LD_LIBRARY_PATH": str(beside.parent / "lib")}
    sizes = [parse_bytes(text, "--sizes") for text in arguments.sizes.split(",")]
    ours: dict[int, list[float]] = {size: [] for size in sizes}
    theirs: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(arguments.rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            found = imb_per_s(launch, environment, sizes, imb) if side else ours_per_s(sizes, readers)
            for size, rate in found.items():
                (ours, theirs)[side][size].append(rate)
    for size in sizes:
        ratios = [mine / other for mine, other in zip(ours[size], theirs[size], strict=True)]
        ratio = statistics.median(ratios)
        shown = [format_significant(statistics.median(each)) for each in (ours[size], theirs[size])]
        verdict = "yes" if ratio >= AT_LEAST_RATIO else "no"
        shown.append(f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        print(f"| {format_bytes(size)} | {readers} | {' | '.join(shown)} | ≥ {AT_LEAST_RATIO}: {verdict} |")


def main() -> int:
    """Parse, find IMB-MPI1, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--imb", help="the program IMB-MPI1 (default: beside this Python or in PATH)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default=SIZES, help=f"message sizes, with commas (default {SIZES})")
    parser.add_argument("--readers", default="1", help="numbers of readers, with commas (default 1)")
    parser.add_argument(
        "--thread-level", default="multiple", help="thread level of our side: multiple (default) or serialized"
    )
    arguments = parser.parse_args()
    beside = str(Path(sys.executable).parent)
    imb = arguments.imb or shutil.which("IMB-MPI1", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if imb is None or not (Path(beside) / "mpiexec").exists():
        print("skipped: this needs mpiexec beside this Python, and IMB-MPI1 (pip install impi-rt; --imb PATH)")
        return 0
    print("| size | readers | mpi-buffer msg/s | IMB Bcast 1/s | ratio (min-max) | wanted |")
    print("|---|---|---|---|---|---|")
    for readers in arguments.readers.split(","):
        compare(arguments, imb, int(readers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
