"""`lmdb` against the simplest correct use of the LMDB library on this machine: throughput, with ratios and a target.

The plain side is what a careful author writes in an afternoon: a ring of keys, one write transaction per message, one
read transaction per message with `buffers=True`, and counters in shared memory that say how far each process is. All
processes poll them and yield the core between polls. Both sides have the same environment options and equally many
messages in flight, and run in the same round, in fresh processes pinned to the same cores. Every reader looks at the
first byte of every message; a run that lost a message gives no figure.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from multiprocessing import get_context
from typing import Any

import _common
import lmdb
from _common import BODY, MARKER, Role, Row

from ipcbench.backend import Address
from ipcbench.backends.lmdb.backend import Lmdb
from ipcbench.backends.lmdb.database import Layout
from ipcbench.spec import ChannelSpec
from ipcbench.util.clock import now_ns

DEPTH = 64
AT_LEAST_RATIO = 0.9
_LINE_WORDS = 8
_SPARE_BYTES = 2**24
_numbers = itertools.count()


def publish(address: Address, size: int, seconds: float) -> Role:
    """Role: our writer; returns the messages of the window."""
    with Lmdb().open_writer(address) as writer:
        body, marker = bytes([BODY]) * size, bytes([MARKER]) + bytes(size - 1)
        write, batch = writer.write, _common.batch_of(size)
        yield

        def send(last: bool) -> None:
            if last:
                write(marker)
                return
            for _ in range(batch):
                write(body)

        yield _common.send_for(send, seconds, size)


def subscribe(address: Address, index: int) -> Role:
    """Role: our reader; returns (messages, first receipt ns, last receipt ns) of the window."""
    with Lmdb().open_reader(address, index) as reader:
        read = reader.read
        yield
        while not read()[0]:
            pass
        view = read()
        first, count = now_ns(), 1
        while not view[0]:
            view = read()
            count += 1
        yield count, first, now_ns()


def _open(path: str, map_bytes: int) -> lmdb.Environment:
    return lmdb.open(path, map_size=map_bytes, writemap=True, sync=False, max_spare_txns=1)


def plain_publish(path: str, map_bytes: int, words: Any, readers: int, slots: int, size: int, seconds: float) -> Role:
    """Role: the plain writer; word 0 counts messages written, word 8 + 8i those that reader i is done with."""
    body, marker = bytes([BODY]) * size, bytes([MARKER]) + bytes(size - 1)
    batch = _common.batch_of(size)
    counters = memoryview(words).cast("B").cast("Q")
    keys = [number.to_bytes(4, "big") for number in range(slots)]
    done = [_LINE_WORDS * (index + 1) for index in range(readers)]
    sequence = room = 0
    with _open(path, map_bytes) as env:
        yield

        def write(message: bytes) -> None:
            nonlocal sequence, room
            while sequence >= room:
                room = min([counters[word] for word in done]) + slots
                if sequence >= room:
                    os.sched_yield()
            with env.begin(write=True) as txn:
                txn.put(keys[sequence % slots], message)
            sequence += 1
            counters[0] = sequence

        def send(last: bool) -> None:
            if last:
                write(marker)
                return
            for _ in range(batch):
                write(body)

        yield _common.send_for(send, seconds, size)


def plain_subscribe(path: str, map_bytes: int, words: Any, index: int, slots: int) -> Role:
    """Role: a plain reader; returns (messages, first receipt ns, last receipt ns) of the window."""
    counters = memoryview(words).cast("B").cast("Q")
    keys = [number.to_bytes(4, "big") for number in range(slots)]
    mine = _LINE_WORDS * (index + 1)
    sequence = 0
    with _open(path, map_bytes) as env:

        def read() -> int:
            nonlocal sequence
            while counters[0] <= sequence:
                os.sched_yield()
            with env.begin(buffers=True) as txn:
                kind: int = txn.get(keys[sequence % slots])[0]
            sequence += 1
            counters[mine] = sequence
            return kind

        yield
        while not read():
            pass
        kind = read()
        first, count = now_ns(), 1
        while not kind:
            kind = read()
            count += 1
        yield count, first, now_ns()


def ours_per_s(size: int, readers: int, seconds: float) -> float:
    """Return messages per second that every reader of an `lmdb` channel got."""
    name = f"ipcb-peers-{os.getpid()}-{next(_numbers)}"
    address = Lmdb().create(ChannelSpec(name, readers=readers, max_message_bytes=size, depth=DEPTH))
    try:
        takers = [(subscribe, (address, index)) for index in range(readers)]
        sent, *received = _common.run_group([(publish, (address, size, seconds)), *takers], seconds)
    finally:
        Lmdb().destroy(address)
    return _common.throughput_per_s(sent, received)


def plain_per_s(size: int, readers: int, seconds: float) -> float:
    """Return messages per second that every plain reader got."""
    layout = Layout(ChannelSpec("plain", readers=readers, max_message_bytes=size, depth=DEPTH))
    slots = DEPTH if size <= layout.small_bytes else layout.large_count
    map_bytes = layout.map_bytes + _SPARE_BYTES
    words = get_context("spawn").RawArray("B", 8 * _LINE_WORDS * (readers + 1))
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as path:
        _open(path, map_bytes).close()
        takers = [(plain_subscribe, (path, map_bytes, words, index, slots)) for index in range(readers)]
        writer = (plain_publish, (path, map_bytes, words, readers, slots, size, seconds))
        sent, *received = _common.run_group([writer, *takers], seconds)
    return _common.throughput_per_s(sent, received)


def main() -> int:
    """Compare every size and number of readers; print the table."""
    options = _common.make_parser(__doc__.splitlines()[0], "64,1KiB,16KiB,256KiB,4MiB").parse_args()
    rows = []
    for size, readers in itertools.product(options.sizes, options.readers):
        row = Row(_common.size_label(size, readers), "messages/s", "lmdb", "plain LMDB", AT_LEAST_RATIO, None)

        def ours(size: int = size, readers: int = readers) -> float:
            return ours_per_s(size, readers, options.seconds)

        def theirs(size: int = size, readers: int = readers) -> float:
            return plain_per_s(size, readers, options.seconds)

        rows.append(_common.compare(row, ours, theirs, options.rounds))
    _common.print_rows("Throughput beside plain LMDB", rows)
    _common.write_json(options.json, {"throughput": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
