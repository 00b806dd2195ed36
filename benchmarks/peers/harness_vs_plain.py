"""The harness's saturated trial of `shm` against a plain loop over the same calls: throughput, CPU time per message.

Both sides run in the same round, in fresh processes, over the same kind of channel. The plain writer stores one word in
each message, and its readers compare that word: the least with which a lost message would show.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import _common
from _common import Role, Row, Sent, Taken
from shm_vs_peers import DEPTH, Channel

from ipcbench.backend import Address
from ipcbench.backends.shm.backend import Shm
from ipcbench.harness.plan import Plan
from ipcbench.harness.reading import ReaderPart
from ipcbench.harness.writing import WriterPart
from ipcbench.results.model import Usage
from ipcbench.spec import SweepSpec
from ipcbench.util.clock import now_ns
from ipcbench.workload.codec import get_codec
from ipcbench.workload.message import SEQUENCE, Outgoing, message_bytes, unpack_word

_STALL_S = 30.0
_MOST_FASTER = 1.25


def write_plainly(address: Address, size: int, seconds: float) -> Role:
    """Role: write numbered messages for the time of a warm-up, number 0, then for the window, number 0."""
    with Shm().open_writer(address) as writer:
        message, write, batch = Outgoing(bytes(size)), writer.write, _common.batch_of(size)
        buffer, head = message.buffer, message.head
        yield
        sent, cpu_s = 0, 0.0
        for span_s in (_common.WARMUP_SHARE * seconds, seconds):
            sent, cpu_s, stop = 0, time.process_time(), now_ns() + int(span_s * 1e9)
            while now_ns() < stop:
                for number in range(sent + 1, sent + 1 + batch):
                    head[SEQUENCE] = number
                    write(buffer, _STALL_S)
                sent += batch
            head[SEQUENCE] = 0
            write(buffer, _STALL_S)
        yield Sent(sent + 1, time.process_time() - cpu_s)


def read_plainly(address: Address, index: int) -> Role:
    """Role: the reader of `write_plainly`."""
    with Shm().open_reader(address, index) as reader:
        yield
        _take(reader.read)
        yield _take(reader.read)


def _take(read: Callable[[float], memoryview]) -> Taken:
    view, word, number = read(_STALL_S), unpack_word, 1
    first, cpu_s = now_ns(), time.process_time()
    while word(view)[0] == number:
        number += 1
        view = read(_STALL_S)
    return Taken(number, first, now_ns(), time.process_time() - cpu_s)


def write_as_harness(address: Address, plan: Plan) -> Role:
    """Role: the writer of a saturated trial."""
    with Shm().open_writer(address) as writer:
        size = plan.trial.payload_bytes
        part = WriterPart(writer, [Outgoing(bytes([variant]) * size) for variant in (0, 1)], plan)
        yield
        written = part.run()
        yield Sent(written.messages_count, _cpu_s(written.usage))


def read_as_harness(address: Address, index: int, plan: Plan) -> Role:
    """Role: a reader of a saturated trial."""
    with Shm().open_reader(address, index) as reader:
        part = ReaderPart(reader, get_codec("raw"), plan)
        yield
        result = part.run()
        received = result.columns["received_ns"]
        yield Taken(result.messages_count, received[0], received[-1], _cpu_s(result.usage))


def _cpu_s(usage: Usage) -> float:
    return usage.user_cpu_s + usage.system_cpu_s


def plain(size: int, readers: int, seconds: float) -> tuple[float, float]:
    """Run plain loops; return messages per second and CPU time per message in ns."""
    return _figures(size, (write_plainly, size, seconds), (read_plainly,), readers, seconds)


def harness(size: int, readers: int, seconds: float) -> tuple[float, float]:
    """Run a saturated trial; return messages per second and CPU time per message in ns."""
    schedule = {"warmup_s": _common.WARMUP_SHARE * seconds, "window_s": seconds}
    sweep = SweepSpec(backends=("shm",), payload="bytes", codec="raw", readers=readers, depth=DEPTH, **schedule)
    plan = Plan.make(sweep.trial("shm", size, size, "saturate", 0), 0.0, _STALL_S)
    return _figures(size, (write_as_harness, plan), (read_as_harness, plan), readers, seconds)


def _figures(
    size: int, writer: Sequence[Any], reader: Sequence[Any], readers: int, seconds: float
) -> tuple[float, float]:
    with Channel(message_bytes(size), readers, "auto") as address:
        takers = [(reader[0], (address, index, *reader[1:])) for index in range(readers)]
        sent, *taken = _common.run_group([(writer[0], (address, *writer[1:])), *takers], seconds)
    return _common.throughput_per_s(sent, taken), _common.cpu_ns(sent, taken)


def main() -> int:
    """Compare by the options and print the tables."""
    options = _common.make_parser(__doc__.splitlines()[0], "521,5000").parse_args()
    rates, costs = [], []
    for size, readers in itertools.product(options.sizes, options.readers):
        label = _common.size_label(size, readers)
        rows = [
            Row(label, "messages/s", "plain loop", "harness", at_most=_MOST_FASTER),
            Row(label, "ns of CPU per message", "plain loop", "harness"),
        ]
        sides = [functools.partial(side, size, readers, options.seconds) for side in (plain, harness)]
        for table, row in zip((rates, costs), _common.compare_all(rows, *sides, options.rounds), strict=True):
            table.append(row)
    _common.print_rows("Throughput, saturated", rates)
    _common.print_rows("CPU time per message, writer and all readers", costs)
    _common.write_json(options.json, {"throughput": rates, "cpu": costs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
