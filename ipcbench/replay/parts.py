"""The processes of a replayed service: clients that call and a server, each by the same lists of calls.

The server waits for each client in a thread of its own. The threads take turns at the work and the reply, in the order
in which the requests arrive.

The list holds each call's gap, work before and after, server's work, and both sizes. A message carries its call's
number where it has room for it, so that a lost, repeated or mixed-up message ends the replay.
"""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from struct import Struct
from threading import Lock
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from ipcbench.backend import Address, Reader, Writer
from ipcbench.errors import IntegrityError
from ipcbench.harness.worker import Worker, verb
from ipcbench.registry import get_backend
from ipcbench.replay.work import BY_TIME, Work
from ipcbench.util.clock import now_ns

COLUMNS = (
    "gap_ns", "before_ns", "after_ns", "server_ns", "sent_bytes", "recv_bytes",
    "gap_pieces", "before_pieces", "after_pieces", "server_pieces", "request_walk_bytes", "reply_walk_bytes",
)  # fmt: skip
"""Of the list. Work is done by its pieces if they are given, else by its time; then as much of the message as that time
allows is walked through."""

_NUMBER = Struct("=q")

Columns: TypeAlias = "dict[str, array[int]]"
Result_co = TypeVar("Result_co", covariant=True)


class Turns:
    """Lets one thread at a time into its `with` block, in the order in which they ask."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._waiting: deque[Lock] = deque()
        self._is_taken = False

    def __enter__(self) -> Self:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return self
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()  # until the one before hands over
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False


class Part(ABC):
    """One side of a replayed client.

    Args:
        writer, reader: of the channel from this side, and of the one to it.
        columns: the list of calls, by name.
        stall_s: longest wait of a single read or write.
        work: the process's memory to work in.
        turns: at the work and the reply.
    """

    def __init__(
        self, writer: Writer, reader: Reader, columns: Columns, stall_s: float, work: Work, turns: Turns
    ) -> None:
        self.write = writer.write
        self.read = reader.read
        self.columns = columns
        self.stall_s = stall_s
        self.count = len(columns["gap_ns"])
        sizes = [*columns["sent_bytes"], *columns["recv_bytes"]]
        self.work = work
        self.turns = turns
        self._memory = memoryview(bytearray(b"\1") * max([_NUMBER.size, *sizes]))

    @abstractmethod
    def run(self) -> Columns:
        """Carry out the list, and return columns of what was measured."""

    def every_column(self) -> tuple[array[int], ...]:
        """Return the columns in the order of `COLUMNS`."""
        return tuple(self.columns[name] for name in COLUMNS)

    def empty(self, names: tuple[str, ...]) -> Columns:
        """Return a column of zeros for each name."""
        return {name: array("q", bytes(8 * self.count)) for name in names}

    def outgoing(self, sizes: array[int]) -> dict[int, memoryview]:
        """Return a message of each size."""
        return {size: self._memory[:size] for size in set(sizes)}

    def received(self, view: memoryview, size: int, number: int) -> None:
        """Raise IntegrityError unless this is the message of call `number`."""
        if len(view) != size or (size >= _NUMBER.size and _NUMBER.unpack_from(view)[0] != number):
            raise IntegrityError(f"call {number} got a message of another call")

    def consume(
        self, view: memoryview, work_ns: int, pieces: int, walk_bytes: int, span: int, target: memoryview | None = None
    ) -> int:
        """Do the work that a message causes; return how much of the message was walked through."""
        work, size, at, now = self.work, len(view), 0, now_ns()
        deadline = now + work_ns
        if pieces == BY_TIME:
            while at < size and now < deadline:
                at = work.walk(view, at)
                now = now_ns()
        else:
            while at < walk_bytes:
                at = work.walk(view, at)
        work.do(pieces, deadline, span, target)
        return at


class ClientPart(Part):
    """The calling side."""

    def run(self) -> Columns:
        """Return, of each call, `total_ns`, `transport_ns` (request handed over to reply here), `end_ns`, and the work.

        The work is `gap_pieces`, `before_pieces`, `after_pieces` and `walked_bytes`.
        """
        gaps, befores, afters, _, sents, recvs, gap_ps, before_ps, after_ps, _, _, walks = self.every_column()
        names = ("total_ns", "transport_ns", "end_ns", "gap_pieces", "before_pieces", "after_pieces", "walked_bytes")
        results = self.empty(names)
        totals, transports, ends, gaps_done, befores_done, afters_done, walked = results.values()
        messages, work, clock, stall_s = self.outgoing(sents), self.work, now_ns, self.stall_s
        do = work.do
        end = clock()
        for index in range(self.count):
            sent, recv = sents[index], recvs[index]
            message, span = messages[sent], sent + recv
            begin = do(gap_ps[index], end + gaps[index], span)
            gaps_done[index] = work.pieces_count
            do(before_ps[index], begin + befores[index], span, message)
            befores_done[index] = work.pieces_count
            if sent >= _NUMBER.size:
                _NUMBER.pack_into(message, 0, index)
            handed = clock()
            self.write(message, stall_s)
            view = self.read(stall_s)
            here = clock()
            self.received(view, recv, index)
            walked[index] = self.consume(view, afters[index], after_ps[index], walks[index], span)
            end = clock()
            afters_done[index] = work.pieces_count
            totals[index], transports[index], ends[index] = end - begin, here - handed, end
        return results


class ServerPart(Part):
    """The serving side."""

    def run(self) -> Columns:
        """Return `server_pieces` and `walked_bytes` of each call."""
        _, _, _, servers, sents, recvs, _, _, _, server_ps, walks, _ = self.every_column()
        results = self.empty(("server_pieces", "walked_bytes"))
        done, walked = results.values()
        messages, stall_s = self.outgoing(recvs), self.stall_s
        for index in range(self.count):
            sent, recv = sents[index], recvs[index]
            view = self.read(stall_s)
            with self.turns:
                self.received(view, sent, index)
                message = messages[recv]
                walked[index] = self.consume(view, servers[index], server_ps[index], walks[index], sent + recv, message)
                done[index] = self.work.pieces_count
                if recv >= _NUMBER.size:
                    _NUMBER.pack_into(message, 0, index)
                self.write(message, stall_s)
        return results


@verb
def open_part(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Open this process's endpoints, in the order that both sides of a channel keep; the last process is the server."""
    backend = get_backend(request["backend"])()
    channels = [[Address.from_dict(values) for values in pair] for pair in request["channels"]]
    if worker.index < len(channels):
        there, back = channels[worker.index]
        worker.hold(backend.open_writer(there))
        worker.hold(backend.open_reader(back, 0))
        return {}
    for there, back in channels:
        worker.hold(backend.open_reader(there, 0))
        worker.hold(backend.open_writer(back))
    return {}


@verb
def run_part(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out lists of calls on the open endpoints; answers with columns of int64, as bytes, for each list."""
    writers = [endpoint for endpoint in worker.endpoints if isinstance(endpoint, Writer)]
    readers = [endpoint for endpoint in worker.endpoints if isinstance(endpoint, Reader)]
    lists = map(_unpacked, request["lists"])
    kind, work, turns = ServerPart if request["serves"] else ClientPart, Work(), Turns()
    parts = [kind(*ends, request["stall_s"], work, turns) for ends in zip(writers, readers, lists, strict=True)]
    if len(parts) > 1:
        sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        results = run_all(parts)
    finally:
        gc.enable()
        gc.unfreeze()
    return {"lists": [{name: column.tobytes() for name, column in result.items()} for result in results]}


def _unpacked(packed: dict[str, bytes]) -> Columns:
    columns = {name: array("q") for name in COLUMNS}
    for name, column in columns.items():
        column.frombytes(packed[name])
    return columns


_SWITCH_S = 5e-5
"""How soon a thread that works lets others run: after Python's 5 ms, a reader that waits for the interpreter
would hold up all clients of its server, and over some transports more than over others.
"""


class Runs(Protocol[Result_co]):
    """What `run_all` runs."""

    def run(self) -> Result_co:
        """Do it, and return what came of it."""


def run_all(parts: Sequence[Runs[Result_co]]) -> list[Result_co]:
    """Run every part, each in a thread if there are several; the first error is raised at once."""
    if len(parts) == 1:
        return [parts[0].run()]
    pool = ThreadPoolExecutor(len(parts))
    futures = [pool.submit(part.run) for part in parts]
    for future in wait(futures, return_when=FIRST_EXCEPTION).done:
        future.result()
    pool.shutdown()
    return [future.result() for future in futures]
