"""`shm` against iceoryx2 and against C on this machine: throughput, half round trips, CPU while idle.

Both sides of a comparison run in the same round, in fresh processes pinned to the same cores, with equally many slots
and the same copies. Every reader looks at the first byte of every message; a run that lost a message gives no figure.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import _common
import _native
import iceoryx2_pubsub
from _common import MARKER, Role, Row

from ipcbench.backend import Address
from ipcbench.backends.shm.backend import Shm
from ipcbench.errors import TransportTimeout
from ipcbench.spec import ChannelSpec, WaitStrategy

SECTIONS = ("iceoryx2", "ring", "latency", "idle")
DEPTH = 64
_MESSAGE_BYTES = 64
_IDLE_S = 5.0
_numbers = itertools.count()


@contextmanager
def reading(address: Address, index: int, copy: str) -> Iterator[Callable[[], Any]]:
    """Open a reader; give what reads a message: its `view`, a copy as `bytes`, or a copy into one `buffer`."""
    with Shm().open_reader(address, index) as reader:
        read, mine = reader.read, memoryview(bytearray(address.channel.max_message_bytes))

        def read_into() -> memoryview:
            mine[:] = read()
            return mine

        yield {"view": read, "bytes": lambda: read().tobytes(), "buffer": read_into}[copy]


def ping(there: Address, back: Address, seconds: float) -> Role:
    """Role: the measuring side of a ping-pong; returns the median half round trip in ns."""
    with Shm().open_writer(there) as writer, Shm().open_reader(back, 0) as reader:
        write, read = writer.write, reader.read
        message = bytes(there.channel.max_message_bytes)
        yield

        def round_trips() -> None:
            for _ in range(_common.ROUND_TRIPS_PER_BLOCK):
                write(message)
                read().tobytes()

        half_ns = _common.half_round_trip_ns(round_trips, seconds)
        message = bytes([MARKER]) * len(message)
        round_trips()
        yield half_ns


def echo(there: Address, back: Address) -> Role:
    """Role: the answering side of a ping-pong (`there` is the way from here), until a block that ends with a marker."""
    with Shm().open_writer(there) as writer, Shm().open_reader(back, 0) as reader:
        write, read = writer.write, reader.read
        message, turns = b"\0", 0
        yield
        while not message[0] or turns % _common.ROUND_TRIPS_PER_BLOCK:
            message = read().tobytes()
            write(message)
            turns += 1
        yield


def silent(address: Address) -> Role:
    """Role: a writer that writes nothing while a reader waits."""
    with Shm().open_writer(address):
        yield
        yield


def wait_in_vain(address: Address) -> Role:
    """Role: a reader of a silent channel; returns its CPU time over the wall time."""
    with Shm().open_reader(address, 0) as reader:
        yield
        cpu, wall = time.process_time(), time.monotonic()
        try:
            reader.read(_IDLE_S)
            raise _common.GroupFailed("a message came from nowhere")
        except TransportTimeout:
            yield (time.process_time() - cpu) / (time.monotonic() - wall)


class Channel:
    """A channel that exists for the length of a `with` block."""

    def __init__(self, size: int, readers: int, wait: WaitStrategy) -> None:
        name = f"ipcb-peers-{os.getpid()}-{next(_numbers)}"
        self._channel = ChannelSpec(name, readers=readers, max_message_bytes=size, depth=DEPTH, wait=wait)

    def __enter__(self) -> Address:
        self._address = Shm().create(self._channel)
        return self._address

    def __exit__(self, *_: object) -> None:
        Shm().destroy(self._address)


def throughput(size: int, readers: int, seconds: float, *, copy: str, wait: WaitStrategy = "auto") -> float:
    """Return messages per second that every reader of a `shm` channel got."""
    with Channel(size, readers, wait) as address:
        takers = [(_common.subscribe, ([(reading, (address, index, copy))],)) for index in range(readers)]
        writer = (_common.publish, ([(_common.writing, (address,))], size, seconds))
        [[sent]], *received = _common.run_group([writer, *takers], seconds)
    return _common.throughput_per_s(sent, [taken for [[taken]] in received])


def half_round_trip_ns(size: int, seconds: float, wait: WaitStrategy) -> float:
    """Return the median half round trip through two `shm` channels, copied in and out on both sides."""
    with Channel(size, 1, wait) as there, Channel(size, 1, wait) as back:
        half_ns, _ = _common.run_group([(ping, (there, back, seconds)), (echo, (back, there))], seconds)
    return float(half_ns)


def beside_iceoryx2(sizes: tuple[int, ...], readers: Sequence[int], seconds: float, rounds: int) -> list[Row]:
    """Compare throughput with iceoryx2: zero-copy at every size, copied out only at sizes where copying dominates."""
    rows = []
    for size, count, copy in itertools.product(sizes, readers, ("view", "bytes")):
        large = size >= 2**20
        if copy == "bytes" and not large:
            continue
        target = 1.2 if copy == "bytes" else 1.0 if large else 3.0
        how = "view.tobytes()" if copy == "bytes" else "zero-copy"
        row = Row(f"{_common.size_label(size, count)}, {how}", "messages/s", "shm", "iceoryx2", at_least=target)
        slots = DEPTH

        def ours(size: int = size, count: int = count, copy: str = copy) -> float:
            return throughput(size, count, seconds, copy=copy)

        def theirs(size: int = size, count: int = count, slots: int = slots, copy: str = copy) -> float:
            return iceoryx2_pubsub.throughput(size, slots, count, seconds, copy=copy == "bytes")

        rows.append(_common.compare(row, ours, theirs, rounds))
    return rows


def beside_the_c_ring(sizes: tuple[int, ...], readers: Sequence[int], seconds: float, rounds: int) -> list[Row]:
    """Compare throughput with the C ring, zero-copy with zero-copy and copy with copy; targets for one reader only."""
    rows = []
    for size, count, copy in itertools.product(sizes, readers, ("view", "buffer")):
        target = None if count > 1 or size < 2**14 else 0.65 if size < 2**18 else 0.85
        how = "copied into a buffer" if copy == "buffer" else "zero-copy"
        row = Row(f"{_common.size_label(size, count)}, {how}", "messages/s", "shm", "C ring", at_least=target)
        slots = _native.ring_slots(size, DEPTH)

        def ours(size: int = size, count: int = count, copy: str = copy) -> float:
            return throughput(size, count, seconds, copy=copy)

        def theirs(size: int = size, count: int = count, slots: int = slots, copy: str = copy) -> float:
            return _native.ring_per_s(size, slots, count, seconds, copy=copy == "buffer")

        rows.append(_common.compare(row, ours, theirs, rounds))
    return rows


def half_round_trips(seconds: float, rounds: int) -> list[list[Row]]:
    """Compare half round trips of 64 bytes: spinning with iceoryx2 and with C, blocking with C's eventfd pair."""
    tables = []

    def beside(what: str, wait: WaitStrategy, name: str, at_most: float, theirs: Callable[[], float]) -> None:
        row = Row(what, "half round trip, ns", f"shm ({wait})", name, at_most=at_most)
        tables.append([_common.compare(row, lambda: half_round_trip_ns(_MESSAGE_BYTES, seconds, wait), theirs, rounds)])

    if not iceoryx2_pubsub.why_not():
        alike = f"{_MESSAGE_BYTES} B, both polling"
        other = lambda: iceoryx2_pubsub.half_round_trip_ns(_MESSAGE_BYTES, seconds)  # noqa: E731
        beside(alike, "spin", "iceoryx2", 1 / 3, other)
    if not _native.why_not():
        spin = lambda: _native.half_round_trip_ns("spin", _MESSAGE_BYTES, 100_000)  # noqa: E731
        beside("64 B, both polling", "spin", "C", 4.0, spin)
    if not _native.why_not() and sys.platform.startswith("linux"):
        event = lambda: _native.half_round_trip_ns("eventfd", _MESSAGE_BYTES, 10_000)  # noqa: E731
        beside("64 B, both sleeping", "block", "C eventfd", 2.5, event)
    return tables


def idle_shares() -> dict[str, float]:
    """Return, by wait strategy, the share of a core that a reader uses while it waits 5 s in vain."""
    shares = {}
    for wait in ("block", "auto"):
        with Channel(_MESSAGE_BYTES, 1, wait) as address:
            shares[wait] = _common.run_group([(silent, (address,)), (wait_in_vain, (address,))], _IDLE_S)[1]
    return shares


def main() -> int:
    """Run the requested sections and print their tables."""
    parser = _common.make_parser(__doc__.splitlines()[0], None)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections (default: all)")
    options = parser.parse_args()
    tables: dict[str, object] = {}
    for name, missing in (("iceoryx2", iceoryx2_pubsub.why_not()), ("C", _native.why_not())):
        if missing:
            print(f"Without {name}: {missing}.")
    how = (options.readers, options.seconds, options.rounds)
    if "iceoryx2" in options.only and not iceoryx2_pubsub.why_not():
        rows = beside_iceoryx2(options.sizes or (64, 2**10, 2**22), *how)
        tables["iceoryx2"] = rows
        _common.print_rows("Throughput beside iceoryx2", rows)
    if "ring" in options.only and not _native.why_not():
        rows = beside_the_c_ring(options.sizes or (2**14, 2**18, 2**20, 2**22), *how)
        tables["ring"] = rows
        _common.print_rows("Throughput beside a C ring", rows)
    if "latency" in options.only:
        for index, table in enumerate(half_round_trips(options.seconds, options.rounds)):
            tables[f"latency-{index}"] = table
            _common.print_rows("Half round trip", table)
    if "idle" in options.only:
        tables["idle"] = shares = idle_shares()
        print("\n### CPU of a reader that waits 5 s for nothing\n\n| wait | share of a core | wanted |\n|---|---:|---|")
        for wait, share in shares.items():
            print(f"| {wait} | {share:.2%} | < 2 % {'yes' if share < 0.02 else 'no'} |")
    _common.write_json(options.json, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
