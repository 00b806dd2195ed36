"""What the contract costs: a channel of each backend beside the plainest correct script over the same library.

A round is a group of fresh processes, of which each has an endpoint of the channel and one of the plain script
(_plain.py). Channel and script take turns: the same bytes through the same loops (_common.py). The ratio of a round is
the median of its turns' ratios. `--write` puts the tables into docs/cost.md, which says how to read them.
"""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import _common
from _common import Row
from _mpi_group import run_mpi_group
from _plain import PLAIN

from ipcbench.errors import BackendUnavailable
from ipcbench.registry import get_backend
from ipcbench.spec import WAIT_STRATEGIES, ChannelSpec, WaitStrategy

BACKENDS = ("shm", "lmdb", "pipe", "zmq", "zmq-tcp-insecure", "mpi", "mpi-buffer")
SIZES = "521,5105,55039,577129"
"""The pickled dicts of the default sweep: 10 to 10,000 entries."""
DEPTH = 64
PAGE = Path(__file__).parents[2] / "docs" / "cost.md"
_BEGIN, _END = "<!-- from benchmarks/peers/contract_cost.py -->\n", "<!-- end -->"
_MPI_TIMEOUT_S = 60.0
_numbers = itertools.count()


def measure(
    name: str, size: int, readers: int, seconds: float, turns: int, wait: WaitStrategy
) -> list[tuple[float, float]]:
    """Return messages per second to each reader, and CPU time per message of all processes together in ns: of a channel
    and of the plain script, in the turn whose ratio of the two is the median.
    """
    backend = get_backend(name)()
    channel = ChannelSpec(
        f"ipcb-peers-{os.getpid()}-{next(_numbers)}", readers=readers, max_message_bytes=size, depth=DEPTH, wait=wait
    )
    address = backend.create(channel)
    try:
        with PLAIN[name].script(channel) as (plain_writer, plain_readers):
            writer = (_common.publish, ([(_common.writing, (address,)), plain_writer], size, seconds, turns))
            takers = [
                (_common.subscribe, ([(_common.reading, (address, index)), plain], turns))
                for index, plain in enumerate(plain_readers)
            ]
            if backend.capabilities.launcher == "mpiexec":
                sent, *taken = run_mpi_group([writer, *takers], _MPI_TIMEOUT_S)
            else:  # the plain writer over zmq waits for its readers when it opens
                *taken, sent = _common.run_group([*takers, writer], 2 * turns * seconds)
    finally:
        backend.destroy(address)
    streams = [
        [(figure(sent[turn][side], [each[turn][side] for each in taken])) for turn in range(turns) for side in (0, 1)]
        for figure in (_common.throughput_per_s, _common.cpu_ns)
    ]
    return [sorted(zip(each[::2], each[1::2], strict=True), key=_ratio)[turns // 2] for each in streams]


def _ratio(pair: tuple[float, float]) -> float:
    return pair[0] / pair[1]


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
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def page_part(
    rates: dict[tuple[str, int, int], Row], costs: dict[tuple[str, int, int], Row], sizes: Sequence[int]
) -> str:
    """Return both tables, what each script is, and how they were measured."""
    names = dict.fromkeys(name for name, *_ in rates)
    counts = [len(row.used) for row in rates.values()]
    how = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    others = statistics.median(each.others_cpu_ratio for row in rates.values() for each in row.used or row.rounds)
    versions = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    scripts = [f"| `{name}` | {PLAIN[name].what} | {PLAIN[name].lacks} |" for name in names]
    return "\n\n".join(
        [
            "Messages per second, channel / plain script: median (lowest–highest) of the rounds' ratios",
            table(rates, sizes),
            "CPU time per message of all processes, channel / plain script:",
            table(costs, sizes),
            f"({how} rounds; {versions}; depth {DEPTH}; other processes used {others:.0%} of the machine.)",
            "\n".join(["| backend | plain script | it also has no … |", "| :-- | :-- | :-- |", *scripts]),
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
    parser.set_defaults(rounds=7, seconds=0.15)
    parser.add_argument("--turns", type=int, default=5, help="turns of each side in a round (default: %(default)s)")
    parser.add_argument("--backends", nargs="+", choices=list(PLAIN), default=BACKENDS, help="default: %(default)s")
    parser.add_argument("--wait", choices=WAIT_STRATEGIES, default="auto", help="of the channel (default: %(default)s)")
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
        what = (name, size, readers, options.seconds, options.turns, options.wait)
        _common.fill(rows, lambda _, what=what: measure(*what), options.rounds)  # type: ignore[misc]
        rates[name, size, readers], costs[name, size, readers] = rows
    part = page_part(rates, costs, options.sizes)
    print(part)
    if options.write:
        write_page(part)
    _common.write_json(options.json, {"throughput": list(rates.values()), "cpu": list(costs.values())})
    return 0


if __name__ == "__main__":
    sys.exit(main())
