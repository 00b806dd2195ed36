"""The ring of `shm` against iceoryx2, one process to another, zero-copy: messages a second, by turns.

    python benchmarks/peers/ring_vs_iceoryx2.py [--turns 15] [--sizes 64,1KiB,64KiB,4MiB] [--ways write in-place]

In each turn both sides send to one reader in a process of its own, in alternating order. A reader takes each message
where it lies and looks at its first byte. A writer either copies each message from bytes into the shared memory
(`write`; a loaned slice that is filled), or asks for room there and sets only the first byte (`in-place`; `reserve` and
`commit`, a loaned slice). Both poll for a while, and then yield the core between polls. A turn that lost a message
fails. The figure is the median over the turns of the ratio shm / iceoryx2, with the 95 % interval of the signs; beside
it, the share of the processors' time that was stolen, and the load average of the last minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import _common
import iceoryx2_pubsub
import psutil
import shm_vs_peers
from _common import GroupFailed

from ipcbench.backend import Address
from ipcbench.backends.shm.backend import Shm
from ipcbench.spec import WaitStrategy
from ipcbench.sync.native import NATIVE
from ipcbench.util.units import format_bytes

sys.path.append(str(Path(__file__).parents[1]))
from ring import sign_interval


@contextmanager
def in_place(address: Address) -> Iterator[Callable[[bytes], None]]:
    """Open the writer of a channel; give what sends room for a message of which only the first byte is set."""
    with Shm().open_writer(address) as writer:
        reserve, commit = writer.reserve, writer.commit

        def write(message: bytes) -> None:
            reserve(len(message))[0] = message[0]
            commit()

        yield write


WAYS: dict[str, Callable[[Address], Any]] = {"write": _common.writing, "in-place": in_place}


def ours(way: str, size_bytes: int, seconds: float, wait: WaitStrategy) -> float:
    with shm_vs_peers.Channel(size_bytes, 1, wait) as address:
        writer = (_common.publish, ([(WAYS[way], (address,))], size_bytes, seconds))
        reader = (_common.subscribe, ([(_common.reading, (address, 0))],))
        [[sent]], [[taken]] = _common.run_group([writer, reader], seconds)
    return _common.throughput_per_s(sent, [taken])


def theirs(way: str, size_bytes: int, seconds: float) -> float:
    filled = size_bytes if way == "write" else 1
    return iceoryx2_pubsub.throughput(size_bytes, shm_vs_peers.DEPTH, 1, seconds, copy=False, filled=filled)


def turns(arguments: argparse.Namespace, way: str, size_bytes: int) -> tuple[list[tuple[float, float]], int]:
    """Return both sides' figures of each turn, and how many turns failed."""
    pairs, failed = [], 0
    for turn in range(arguments.turns):
        sides = [lambda: ours(way, size_bytes, arguments.seconds, arguments.wait)]
        sides.append(lambda: theirs(way, size_bytes, arguments.seconds))
        step = -1 if turn % 2 else 1
        try:
            our_per_s, their_per_s = [side() for side in sides[::step]][::step]
        except GroupFailed as error:
            failed += 1
            print(f"turn {turn}: {error}", file=sys.stderr)
        else:
            pairs.append((our_per_s, their_per_s))
    return pairs, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--sizes", type=_common.list_of_sizes, default="64,1KiB,64KiB,4MiB")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=0.3, help="measured time per side and turn")
    parser.add_argument("--wait", default="yield", help="of shm (default: %(default)s, which polls before it yields)")
    arguments = parser.parse_args()
    if iceoryx2_pubsub.why_not():
        print(f"skipped: {iceoryx2_pubsub.why_not()}")
        return
    print(f"The ring is in {'Python' if NATIVE is None else 'C'}.")
    print(
        f"{'way':>9}{'bytes':>9}{'shm k/s':>10}{'iox k/s':>10}{'ratio':>8}   95 % interval     steal    load   failed"
    )
    for way in arguments.ways:
        for size_bytes in arguments.sizes:
            psutil.cpu_times_percent()
            pairs, failed = turns(arguments, way, size_bytes)
            steal, load = getattr(psutil.cpu_times_percent(), "steal", 0.0), psutil.getloadavg()[0]
            shown = f"{way:>9}{format_bytes(size_bytes):>9}"
            if pairs:
                ratios = [ours / theirs for ours, theirs in pairs]
                low, high = sign_interval(ratios)
                shown += "".join(f"{median(side) / 1e3:10.1f}" for side in zip(*pairs, strict=True))
                shown += f"{median(ratios):8.2f}   {f'{low:.2f} to {high:.2f}':16}{steal:5.1f} %{load:8.1f}"
            print(f"{shown}{failed:9}", flush=True)


if __name__ == "__main__":
    main()
