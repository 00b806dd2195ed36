"""The transports of multiprocessing against the plainest script over the same Queue, Manager or Pipe.

Both streams of a round are in the same processes, which take turns. This program has no threads, makes what the plain
script uses and the channel, and forks the writer and the readers, as `multiprocessing` does by its start method `fork`.
The plain script has no time-outs, no end of the stream and does not notice a death; beside its Pipe is a semaphore, by
which a reader may be `depth` messages behind, as the Queue has one.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import Any

import _common
from _common import End, GroupFailed, Role, Row

from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.sync.parent import Parent

DEPTH = 16
_CONTEXT = get_context("fork")


@contextmanager
def putting(queues: Sequence[Any]) -> Iterator[Callable[[bytes], object]]:
    """Give what puts a message into every queue."""
    if len(queues) == 1:
        yield queues[0].put
        return

    def write(message: bytes) -> None:
        for queue in queues:
            queue.put(message)

    yield write


@contextmanager
def sending(connections: Sequence[Any], rooms: Sequence[Any]) -> Iterator[Callable[[bytes], object]]:
    """Give what sends a message by every connection, once its reader has room."""

    def write(message: bytes) -> None:
        for connection, room in zip(connections, rooms, strict=True):
            room.acquire()
            connection.send_bytes(message)

    yield write


@contextmanager
def receiving(connection: Any, room: Any) -> Iterator[Callable[[], bytes]]:
    """Give what receives a message and makes room."""

    def read() -> bytes:
        message: bytes = connection.recv_bytes()
        room.release()
        return message

    yield read


@contextmanager
def calling(method: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Give what reads."""
    yield method


@contextmanager
def plain(name: str, readers: int) -> Iterator[tuple[End, list[End]]]:
    """Make the plain script's writer and readers."""
    if name == "mp-pipe":
        pairs = [_CONTEXT.Pipe(duplex=False) for _ in range(readers)]
        rooms = [_CONTEXT.Semaphore(DEPTH) for _ in range(readers)]
        takers = [(receiving, (here, room)) for (here, _), room in zip(pairs, rooms, strict=True)]
        yield (sending, ([there for _, there in pairs], rooms)), takers
        for pair in pairs:
            for connection in pair:
                connection.close()
    elif name == "mp-queue":
        queues = [_CONTEXT.Queue(DEPTH) for _ in range(readers)]
        yield (putting, (queues,)), [(calling, (queue.get,)) for queue in queues]
    else:
        with _CONTEXT.Manager() as manager:
            proxies = [manager.Queue(DEPTH) for _ in range(readers)]
            yield (putting, (proxies,)), [(calling, (proxy.get,)) for proxy in proxies]


def run_forked(roles: Sequence[tuple[Callable[..., Role], tuple[Any, ...]]], parent: Parent) -> list[Any]:
    """Run each role in a child, all at the same time once all are open; return their figures.

    Raises:
        GroupFailed: a child failed; all have ended when this is raised.
    """
    barrier, pids, pipes = _CONTEXT.Barrier(len(roles)), dict[int, int](), []
    for index, (role, arguments) in enumerate(roles):
        here, there = _CONTEXT.Pipe(duplex=False)
        if not (pid := parent.fork()):
            code = 1
            try:
                work = role(*arguments)
                next(work)
                barrier.wait()
                there.send(next(work))
                barrier.wait()
                next(work, None)
                code = 0
            except Exception:  # whatever it is, the parent fails the group
                traceback.print_exc()
            finally:
                os._exit(code)
        there.close()
        pipes.append(here)
        pids[pid] = index
    failed = None
    while pids:
        pid = parent.serve(pids)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) and failed is None:
            failed = pids[pid]
            for other in pids:
                with suppress(ProcessLookupError):
                    os.kill(other, 9)
        pids.pop(pid)
    if failed is not None:
        raise GroupFailed(f"process {failed} failed")
    return [pipe.recv() for pipe in pipes]


def measure(name: str, size: int, readers: int, seconds: float, turns: int) -> list[tuple[float, float]]:
    """Return ours and the plain script's messages per second, and CPU time per message in ns."""
    backend, parent = get_backend(name)(), Parent()
    channel = ChannelSpec(f"ipcb-peers-{os.getpid()}", readers, max_message_bytes=size, depth=DEPTH)
    address = type(backend).create.__wrapped__(backend, channel)  # not by a thread, with which the manager would end
    try:
        with plain(name, readers) as (writer, takers):
            roles = [(_common.publish, ([(_common.writing, (address,)), writer], size, seconds, turns))]
            for index, taker in enumerate(takers):
                roles.append((_common.subscribe, ([(_common.reading, (address, index)), taker], turns)))
            sent, *taken = run_forked(roles, parent)
    finally:
        backend.destroy(address)
    rates, costs = [], []
    for side in range(2):
        by_turn = [(sent[turn][side], [each[turn][side] for each in taken]) for turn in range(turns)]
        rates.append(statistics.median(_common.throughput_per_s(*figures) for figures in by_turn))
        costs.append(statistics.median(_common.cpu_ns(*figures) for figures in by_turn))
    return [(rates[0], rates[1]), (costs[0], costs[1])]


def main() -> int:
    """Compare by the options and print the tables."""
    parser = _common.make_parser(__doc__.splitlines()[0], "521,55039,4MiB")
    parser.add_argument("--backends", nargs="+", default=["mp-queue", "mp-manager", "mp-pipe"])
    parser.add_argument("--turns", type=int, default=2, help="turns of each stream in a round (default: %(default)s)")
    options = parser.parse_args()
    tables = {"throughput": [], "cpu": []}
    for name, size, readers in itertools.product(options.backends, options.sizes, options.readers):
        label = f"{name}, {_common.size_label(size, readers)}"
        rows = [
            Row(label, "messages/s", "channel", "plain", at_least=0.9),
            Row(label, "ns of CPU per message", "channel", "plain", at_most=1.2),
        ]
        _common.fill(
            rows,
            lambda _, name=name, size=size, readers=readers: measure(
                name, size, readers, options.seconds, options.turns
            ),
            options.rounds,
        )
        for table, row in zip(tables.values(), rows, strict=True):
            table.append(row)
    _common.print_rows("Throughput, saturated", tables["throughput"])
    _common.print_rows("CPU time per message, writer and all readers", tables["cpu"])
    _common.write_json(options.json, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
