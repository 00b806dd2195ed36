"""How long `ipcbench --help` takes, as a ratio to `import click`, which it cannot do without.

    python benchmarks/start_up.py [--pairs 40]

The two run alternately, each as a process of its own, with compiled bytecode.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median

PROGRAMS = {"ipcbench --help": ["-m", "ipcbench", "--help"], "import click": ["-c", "import click"]}


def taken_s(arguments: list[str]) -> float:
    """Run Python with these arguments and return how long it took."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    """Print both medians and the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    for arguments in PROGRAMS.values():  # compile
        taken_s(arguments)
    rows = [[taken_s(arguments) for arguments in PROGRAMS.values()] for _ in range(pairs)]
    for name, column in zip(PROGRAMS, zip(*rows, strict=True), strict=True):
        print(f"{1e3 * median(column):6.0f} ms  {name}")
    print(f"{median(first / second for first, second in rows):6.2f}     ratio, the median of {pairs} pairs")


if __name__ == "__main__":
    main()
