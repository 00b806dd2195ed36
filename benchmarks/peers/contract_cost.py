"""What the contract costs: a channel of each backend beside the plainest correct script over the same library.

Both sides send the same bytes through the same loops (_common.py), in alternating rounds of fresh processes; the plain
scripts are in _plain.py. `--write` puts the tables into docs/cost.md, which says how to read them.
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import _common
from _common import Row, Sent, Taken
from _mpi_group import run_mpi_group
from _plain import PLAIN, Script

from ipcbench.errors import BackendUnavailable
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec

BACKENDS = ("shm", "lmdb", "pipe", "zmq", "zmq-tcp", "mpi", "mpi-buffer")
SIZES = "521,5105,55039,577129"
"""The pickled dicts of the default sweep: 10 to 10,000 entries."""
DEPTH = 64
PAGE = Path(__file__).parents[2] / "docs" / "cost.md"
_BEGIN, _END = "<!-- from benchmarks/peers/contract_cost.py -->\n", "<!-- end -->"
_MPI_TIMEOUT_S = 60.0
_numbers = itertools.count()

Figures = tuple[float, float]
"""Messages per second to each reader; CPU time per message of all processes together, in ns."""


def ours(name: str, size: int, readers: int, seconds: float) -> Figures:
    """Run a channel of that backend."""
    backend = get_backend(name)()
    address = backend.create(_channel(size, readers))
    try:
        takers = [(_common.reading, (address, index)) for index in range(readers)]
        return _figures(name, ((_common.writing, (address,)), takers), size, seconds)
    finally:
        backend.destroy(address)


def plain(name: str, size: int, readers: int, seconds: float) -> Figures:
    """Run the plain script beside that backend."""
    with PLAIN[name].script(_channel(size, readers)) as script:
        return _figures(name, script, size, seconds)


def _channel(size: int, readers: int) -> ChannelSpec:
    name = f"ipcb-peers-{os.getpid()}-{next(_numbers)}"
    return ChannelSpec(name, readers=readers, max_message_bytes=size, depth=DEPTH)


def _figures(name: str, script: Script, size: int, seconds: float) -> Figures:
    (opening, arguments), readers = script
    writer = (_common.publish, (opening, *arguments, size, seconds))
    takers = [(_common.subscribe, (opening, *arguments)) for opening, arguments in readers]
    sent: Sent
    taken: Sequence[Taken]
    if get_backend(name).capabilities.launcher == "mpiexec":
        sent, *taken = run_mpi_group([writer, *takers], _MPI_TIMEOUT_S)
    else:
        *taken, sent = _common.run_group([*takers, writer], seconds)
    return _common.throughput_per_s(sent, taken), _common.cpu_ns(sent, taken)


def table(rows: dict[tuple[str, int, int], Row], sizes: Sequence[int]) -> str:
    """Return a Markdown table: a line for each backend and number of readers, a column for each size."""
    head = ["backend", "readers", *(f"{size:,} B" for size in sizes)]
    lines = [f"| {' | '.join(head)} |", "| :-- | --: |" + " --: |" * len(sizes)]
    for name, readers in dict.fromkeys((name, readers) for name, _, readers in rows):
        cells = [_cell(rows[name, size, readers]) for size in sizes]
        lines.append(f"| `{name}` | {readers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    ratios = [each.ratio for each in row.used]
    if not ratios:
        return "unknown"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"  # noqa: RUF001 - a range


def page_part(
    rates: dict[tuple[str, int, int], Row], costs: dict[tuple[str, int, int], Row], sizes: Sequence[int]
) -> str:
    """Return both tables, what each script is, and how they were measured."""
    names = dict.fromkeys(name for name, *_ in rates)
    counts = [len(row.used) for row in rates.values()]
    how = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    versions = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    scripts = [f"| `{name}` | {PLAIN[name].what} | {PLAIN[name].lacks} |" for name in names]
    return "\n\n".join(
        [
            "Messages per second, channel / plain script: median (lowest–highest) of the rounds' ratios",  # noqa: RUF001
            table(rates, sizes),
            "CPU time per message of all processes, channel / plain script:",
            table(costs, sizes),
            f"({how} rounds; {versions}; depth {DEPTH}.)",
            "\n".join(["| backend | plain script | it also lacks |", "| :-- | :-- | :-- |", *scripts]),
        ]
    )


def write_page(part: str) -> None:
    """Replace the marked part of the page."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    PAGE.write_text(f"{before}{begin}\n{part}\n\n{end}{after}", encoding="utf-8")


def main() -> int:
    """Compare by the options; print the tables, and write them into the page if asked to."""
    parser = _common.make_parser(__doc__.splitlines()[0], SIZES)
    parser.set_defaults(rounds=7)
    parser.add_argument("--backends", nargs="+", choices=list(PLAIN), default=BACKENDS, help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help=f"write the tables into docs/{PAGE.name}")
    options = parser.parse_args()
    rates: dict[tuple[str, int, int], Row] = {}
    costs: dict[tuple[str, int, int], Row] = {}
    for name, readers, size in itertools.product(options.backends, options.readers, options.sizes):
        try:
            get_backend(name).probe()
        except BackendUnavailable as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        label = f"{name}, {_common.size_label(size, readers)}"
        rows = [Row(label, unit, name, "plain script") for unit in ("messages/s", "ns of CPU per message")]
        sides = [functools.partial(side, name, size, readers, options.seconds) for side in (ours, plain)]
        rates[name, size, readers], costs[name, size, readers] = _common.compare_all(rows, *sides, options.rounds)
    part = page_part(rates, costs, options.sizes)
    print(part)
    if options.write:
        write_page(part)
    _common.write_json(options.json, {"throughput": list(rates.values()), "cpu": list(costs.values())})
    return 0


if __name__ == "__main__":
    sys.exit(main())
