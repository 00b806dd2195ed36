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

import _common
from _common import Role, Row
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

Sent = tuple[int, float]
"""What a writer returns: messages of the window, CPU seconds."""
Taken = tuple[int, int, int, float]
"""What a reader returns: messages of the window, first and last receipt in ns, CPU seconds."""
Side = Callable[[], tuple[Sent, Sequence[Taken]]]


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
        yield sent + 1, time.process_time() - cpu_s


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
    return number, first, now_ns(), time.process_time() - cpu_s


def write_as_harness(address: Address, plan: Plan) -> Role:
    """Role: the writer of a saturated trial."""
    with Shm().open_writer(address) as writer:
        size = plan.trial.payload_bytes
        part = WriterPart(writer, [Outgoing(bytes([variant]) * size) for variant in (0, 1)], plan)
        yield
        written = part.run()
        yield written.messages_count, _cpu_s(written.usage)


def read_as_harness(address: Address, index: int, plan: Plan) -> Role:
    """Role: a reader of a saturated trial."""
    with Shm().open_reader(address, index) as reader:
        part = ReaderPart(reader, get_codec("raw"), plan)
        yield
        result = part.run()
        received = result.columns["received_ns"]
        yield result.messages_count, received[0], received[-1], _cpu_s(result.usage)


def _cpu_s(usage: Usage) -> float:
    return usage.user_cpu_s + usage.system_cpu_s


def plain(size: int, readers: int, seconds: float) -> tuple[Sent, Sequence[Taken]]:
    """Run plain loops; return what the writer and the readers return."""
    with Channel(message_bytes(size), readers, "auto") as address:
        takers = [(read_plainly, (address, index)) for index in range(readers)]
        sent, *taken = _common.run_group([(write_plainly, (address, size, seconds)), *takers], seconds)
    return sent, taken


def harness(size: int, readers: int, seconds: float) -> tuple[Sent, Sequence[Taken]]:
    """Run a saturated trial; return what the writer and the readers return."""
    schedule = {"warmup_s": _common.WARMUP_SHARE * seconds, "window_s": seconds}
    sweep = SweepSpec(backends=("shm",), payload="bytes", codec="raw", readers=readers, depth=DEPTH, **schedule)
    plan = Plan.make(sweep.trial("shm", size, size, "saturate", 0), 0.0, _STALL_S)
    with Channel(message_bytes(size), readers, "auto") as address:
        takers = [(read_as_harness, (address, index, plan)) for index in range(readers)]
        sent, *taken = _common.run_group([(write_as_harness, (address, plan)), *takers], seconds)
    return sent, taken


def rate_per_s(side: Side) -> float:
    """Return messages per second to each reader."""
    sent, taken = side()
    return _common.throughput_per_s(sent[0], [reader[:3] for reader in taken])


def cpu_ns(side: Side) -> float:
    """Return the CPU time per message of all processes together."""
    sent, taken = side()
    return 1e9 * (sent[1] + sum(reader[3] for reader in taken)) / sent[0]


def main() -> int:
    """Compare by the options and print the tables."""
    options = _common.make_parser(__doc__.splitlines()[0], "521,5000").parse_args()
    settings = list(itertools.product(options.sizes, options.readers))
    rates, costs = [], []
    for size, readers in settings:
        label, seconds, rounds = _common.size_label(size, readers), options.seconds, options.rounds
        sides = [functools.partial(side, size, readers, seconds) for side in (plain, harness)]
        row = Row(label, "messages/s", "plain loop", "harness", at_most=_MOST_FASTER)
        rates.append(_common.compare(row, *(functools.partial(rate_per_s, side) for side in sides), rounds))
        row = Row(label, "ns of CPU per message", "plain loop", "harness")
        costs.append(_common.compare(row, *(functools.partial(cpu_ns, side) for side in sides), rounds))
    _common.print_rows("Throughput, saturated", rates)
    _common.print_rows("CPU time per message, writer and all readers", costs)
    _common.write_json(options.json, {"throughput": rates, "cpu": costs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
