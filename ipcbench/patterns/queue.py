"""A queue: the writer gives each message to the worker that has the fewest, as far as workers have room.

A worker says how many messages it has finished with; it may hold `depth` that it has not. The writer keeps a copy of
each of them: those of a worker that leaves or dies are given to others. So a message is worked on at least once, and
more often only if a worker dies that has not said that it is finished.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from struct import Struct

from ipcbench.backend import Message, Reader, Writer, bytes_of, joined
from ipcbench.errors import (
    EndOfStream,
    EndpointClosed,
    MessageTooLarge,
    PeerLost,
    TransportError,
    TransportTimeout,
)
from ipcbench.patterns.fan_in import LOOK_NS
from ipcbench.patterns.parts import NUMBER_BYTES
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

_NUMBER = Struct("<Q")
_NOTHING = memoryview(b"")


class _Worker:
    """What the writer knows of a worker.

    Attributes:
        held: the messages that it has and has not finished, in order.
        has_come: whether it has said something.
    """

    __slots__ = ("_said", "done_count", "finished", "has_come", "held", "index", "sent_count", "tasks")

    def __init__(self, index: int, tasks: Writer, finished: Reader) -> None:
        self.index = index
        self.tasks = tasks
        self.finished = finished
        self.held: deque[bytes] = deque()
        self.sent_count = self.done_count = 0
        self.has_come = False
        self._said: memoryview | None = None

    def learn(self) -> None:
        """Read what it has said since the last time.

        Raises:
            EndOfStream, PeerLost: it has left, or died.
        """
        while True:
            once = map(self.finished.read, (0.0,))
            try:
                for self._said in once:  # kept whatever signals come, see fan_in.py
                    pass
            except TransportTimeout:
                if self._said is None:
                    return
            if self._said is not None:
                (done_count,) = _NUMBER.unpack(self._said)
                self._said, self.has_come = None, True
                while self.done_count < done_count and self.held:
                    self.done_count += 1
                    self.held.popleft()


class QueueWriter(Writer):
    """The writer of a queue.

    Attributes:
        redelivered_count: messages that were given to another worker, since the first one left or died.
    """

    def __init__(self, channel: ChannelSpec, workers: Iterable[tuple[Writer, Reader]]) -> None:
        self._channel = channel
        self._limit_bytes = channel.max_message_bytes
        self._workers = {index: _Worker(index, *ends) for index, ends in enumerate(workers)}
        self._ends = [end for worker in self._workers.values() for end in (worker.tasks, worker.finished)]
        self._poller = select.poll()
        self._worker_of: dict[int, _Worker] = {}
        for worker in self._workers.values():
            descriptor = worker.finished.fileno()
            if descriptor is not None:
                self._worker_of[descriptor] = worker
                self._poller.register(descriptor, select.POLLIN)
        self._returned: deque[bytes] = deque()
        self._look_ns = 0
        self._closed = False
        self.redelivered_count = 0

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self._require_open()
        copy = bytes(bytes_of(message))
        if len(copy) > self._limit_bytes:
            raise MessageTooLarge(len(copy), self._limit_bytes)
        deadline = deadline_ns(timeout_s)
        self._give_returned(deadline)
        self._give(copy, deadline)

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        self.write(joined(parts), timeout_s)

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until the workers have finished with everything, whoever of them dies meanwhile.

        Raises:
            TransportTimeout: they have not within `timeout_s`.
        """
        self._require_open()
        deadline = deadline_ns(timeout_s)
        while True:
            self._give_returned(deadline)
            if not any(worker.held for worker in self._workers.values()) and not self._returned:
                return
            self._wait(deadline, "it is not finished")

    def _give_returned(self, deadline: int | None) -> None:
        """Give away what workers that are gone had."""
        while self._returned:
            self._give(self._returned[0], deadline)
            self._returned.popleft()
            self.redelivered_count += 1

    def _give(self, message: bytes, deadline: int | None) -> None:
        """Give a message to a worker, once one has room.

        Raises:
            TransportTimeout: none has by `deadline`.
        """
        while True:
            worker = min(self._with_room(), key=lambda each: len(each.held), default=None)
            if worker is None:
                self._wait(deadline, "all workers have as many messages as they may, or none has come")
                continue
            worker.held.append(message)
            try:
                worker.tasks.write_parts((_NUMBER.pack(worker.sent_count), message), remaining_s(deadline))
            except PeerLost:
                worker.held.pop()
                self._lose(worker)
                continue
            except BaseException:
                worker.held.pop()
                raise
            worker.sent_count += 1
            return

    def _with_room(self) -> list[_Worker]:
        depth = self._channel.depth
        return [worker for worker in self._workers.values() if worker.has_come and len(worker.held) < depth]

    def _wait(self, deadline: int | None, why: str) -> None:
        """Wait until a worker says something; now and then look at all of them."""
        now = now_ns()
        if now >= self._look_ns:
            self._look_ns = now + LOOK_NS
            heard = list(self._workers.values())
        else:
            until = self._look_ns if deadline is None else min(self._look_ns, deadline)
            ready = self._poller.poll(max(0, -(-(until - now) // 1_000_000)))
            heard = [self._worker_of[descriptor] for descriptor, _ in ready]
        for worker in heard:
            try:
                worker.learn()
            except (EndOfStream, PeerLost):
                self._lose(worker)
        if not self._workers:
            raise PeerLost(f"all workers of channel {self._channel.name!r} have left or died")
        if not heard and deadline is not None and now_ns() >= deadline:
            raise TransportTimeout(f"channel {self._channel.name!r}: {why}")

    def _lose(self, worker: _Worker) -> None:
        """Take back what a worker has not finished."""
        if self._workers.pop(worker.index, None) is None:
            return
        for descriptor, each in list(self._worker_of.items()):
            if each is worker:
                self._poller.unregister(descriptor)
                del self._worker_of[descriptor]
        self._returned.extend(worker.held)
        worker.held.clear()
        with ExitStack() as closing:
            closing.callback(worker.finished.close)
            closing.callback(worker.tasks.close)

    def _require_open(self) -> None:
        if self._closed:
            raise EndpointClosed(f"the writer of channel {self._channel.name!r} is closed")

    def close(self) -> None:
        self._closed = True
        with ExitStack() as closing:
            for end in self._ends:
                closing.callback(end.close)


class QueueReader(Reader):
    """A worker. It says that it has finished with a message at the next `read`, at `release` and at `close`."""

    def __init__(self, tasks: Reader, finished: Writer) -> None:
        self._tasks = tasks
        self._finished = finished
        self._has_one = self._is_closed = False
        self._finished_count = 0
        self._view: memoryview | None = None
        self._say()

    @property
    def waits(self) -> WaitStrategy | None:
        waits = self._tasks.waits
        return waits if isinstance(waits, str) else None

    def _say(self) -> None:
        self._finished.write(_NUMBER.pack(self._finished_count))

    def read(self, timeout_s: float | None = None) -> memoryview:
        if self._view is None:  # else one is left of a call that was interrupted
            self.release()
            once = map(self._tasks.read, (timeout_s,))
            for self._view in once:
                pass
        task = self._view or _NOTHING
        self._has_one, self._view = True, None
        return task[NUMBER_BYTES:]

    def release(self) -> None:
        if self._has_one and not self._is_closed:
            self._tasks.release()
            self._finished_count += 1
            self._has_one = False
            self._say()

    def fileno(self) -> int | None:
        return self._tasks.fileno()

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._tasks.close)
            closing.callback(self._finished.close)
            if not self._is_closed:
                with suppress(TransportError):  # the writer is gone: there is nobody to tell
                    self.release()
            self._is_closed = True
