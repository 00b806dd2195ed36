"""A queue: the writer gives each message to the worker that has the fewest, as far as workers have room.

Each message has a number for the worker that gets it, counted from 0. A worker says the number up to which it has
finished; it may hold `depth` messages that it has not. The writer keeps a copy of each of them: those of a worker that
leaves or dies are given to others. So a message is worked on at least once, and more often only if a worker dies that
has not said that it is finished.

A signal handler may raise between any two steps of the writer. What it may have sent is then sent again, under the same
number, and a worker passes by what it has had.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from struct import Struct

from ipcbench.backend import Message, Reader, Writer, bytes_of, joined, require_some
from ipcbench.errors import (
    EndOfStream,
    MessageTooLarge,
    PeerLost,
    TransportError,
    TransportTimeout,
)
from ipcbench.patterns.parts import NUMBER_BYTES, Composed, Looks
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

_NUMBER = Struct("<Q")
_SAY_S = 0.1
"""How long a worker waits at once for a message, before it tries again to say what it could not, and with what it says
first for the connection to a writer that is there."""


_LAST_WORDS_S = 1.0
"""How long a worker that leaves tries to say what it has finished, and how long the writer waits for it."""


class _Worker:
    """What the writer knows of a worker.

    Attributes:
        held: the messages that it has and has not finished, by number, each with its id in the queue.
        next_number: of the next message for it.
        is_unsure: whether the last of them may not have been sent.
        has_come: whether it has said something, or was seen to be open.
    """

    __slots__ = ("_is_open", "_said", "finished", "has_come", "held", "index", "is_unsure", "next_number", "tasks")

    def __init__(self, index: int, tasks: Writer, finished: Reader, is_open: Callable[[], bool]) -> None:
        self.index = index
        self.tasks = tasks
        self.finished = finished
        self._is_open = is_open
        self.held: dict[int, tuple[int, bytes]] = {}
        self.next_number = 0
        self.is_unsure = self.has_come = False
        self._said: memoryview | None = None

    def learn(self, patience_s: float = 0.0) -> None:
        """Read what it has said since the last time.

        Args:
            patience_s: how long to wait for more: what one said that has left may still be on its way.

        Raises:
            EndOfStream, PeerLost: it has left, or died.
        """
        while True:
            once = map(self.finished.read, (patience_s,))
            try:
                for self._said in once:  # kept whatever signals come, see fan_in.py
                    pass
            except TransportTimeout:
                if self._said is None:
                    return
            if self._said is not None:
                (done_count,) = _NUMBER.unpack(self._said)
                for number in [number for number in self.held if number < done_count]:
                    self.held.pop(number, None)
                self._said, self.has_come = None, True

    def look(self) -> None:
        """Find out whether it is there, though it has said nothing: it may wait for a message on its descriptor, and
        could say nothing before this writer was there.
        """
        self.learn()
        self.has_come = self.has_come or self._is_open()

    def give(self, task_id: int, message: bytes) -> bool:
        """Send it a message if there is room; return whether it was sent.

        Raises:
            PeerLost, TransportError: as `Writer.write`.
        """
        if self.is_unsure and not self._send(self.next_number - 1):
            return False
        number = self.next_number
        self.held[number] = (task_id, message)
        self.is_unsure, self.next_number = True, number + 1
        if self._send(number):
            return True
        self.held.pop(number, None)
        self.next_number, self.is_unsure = number, False
        return False

    def _send(self, number: int) -> bool:
        if number in self.held:  # else it has finished with that, and so has got it
            try:
                self.tasks.write_parts((_NUMBER.pack(number), self.held[number][1]), 0.0)
            except TransportTimeout:
                return False
        self.is_unsure = False
        return True


class QueueWriter(Composed, Writer):
    """The writer of a queue.

    Attributes:
        redelivered_count: messages that were given to another worker, since the first one left or died.
    """

    def __init__(self, channel: ChannelSpec, workers: Iterable[tuple[Writer, Reader, Callable[[], bool]]]) -> None:
        """Take over the writer of the tasks of each worker, the reader of what it has finished, and how to find out
        whether the worker is open.
        """
        super().__init__(channel)
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
        self._returned: dict[int, bytes] = {}
        self._ids = count()
        self._looks = Looks()
        self.redelivered_count = 0

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self._require_open()
        self._listen(0)
        self._put(message, deadline_ns(timeout_s))

    def write_many(self, messages: Sequence[Message], timeout_s: float | None = None) -> int:
        self._require_open()
        self._listen(0)  # once for all: to listen costs more than to write
        for done, message in enumerate(messages):
            try:
                self._put(message, deadline_ns(timeout_s))
            except TransportTimeout:
                if done:
                    return done
                raise
        return len(messages)

    def _put(self, message: Message, deadline: int | None) -> None:
        copy = bytes(bytes_of(message))
        if len(copy) > self._limit_bytes:
            raise MessageTooLarge(len(copy), self._limit_bytes)
        self._give_returned(deadline)
        task_id = next(self._ids)
        try:
            self._give(task_id, copy, deadline)
        finally:  # a worker that died at its sending left it there, and another has it by now, or nobody gets it
            self._returned.pop(task_id, None)

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        self.write(joined(parts), timeout_s)

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until the workers have finished with everything, whoever of them dies meanwhile.

        Raises:
            TransportTimeout: they have not within `timeout_s`.
            PeerLost: there is no worker left, and something is not finished.
        """
        self._require_open()
        deadline = deadline_ns(timeout_s)
        self._listen(0)
        while self._returned or any(worker.held for worker in self._workers.values()):
            self._give_returned(deadline)
            for worker in list(self._workers.values()):
                if worker.is_unsure:
                    self._try(worker, None, b"")
            self._wait(deadline, "it is not finished")

    def take_unfinished(self) -> list[bytes]:
        """Return what nobody has finished, when all workers are gone and no other may come; it is not kept."""
        messages = list(self._returned.values())
        self._returned.clear()
        return messages

    def give_back(self, messages: Iterable[bytes]) -> None:
        """Take over what workers of another queue have not finished; the next `write` or `drain` gives it away."""
        self._returned |= {next(self._ids): message for message in messages}

    def _give_returned(self, deadline: int | None) -> None:
        """Give away what workers that are gone had."""
        while self._returned:
            task_id, message = next(iter(self._returned.items()))
            if not any(task_id == each for worker in self._workers.values() for each, _ in worker.held.values()):
                self._give(task_id, message, deadline)
                self.redelivered_count += 1
            self._returned.pop(task_id, None)

    def _give(self, task_id: int, message: bytes, deadline: int | None) -> None:
        """Give a message to the worker with the fewest that has room, once one has.

        Raises:
            TransportTimeout: none has by `deadline`.
        """
        while not any(self._try(worker, task_id, message) for worker in self._with_room()):
            self._wait(deadline, "all workers have as many messages as they may, or none is there")

    def _with_room(self) -> Iterator[_Worker]:
        depth = self._channel.depth
        able = [worker for worker in self._workers.values() if worker.has_come and len(worker.held) < depth]
        return iter(sorted(able, key=lambda worker: len(worker.held)))

    def _try(self, worker: _Worker, task_id: int | None, message: bytes) -> bool:
        """Give it the message, or without an id what it may not have got; return whether it has."""
        try:
            return worker.give(task_id, message) if task_id is not None else worker._send(worker.next_number - 1)
        except PeerLost:
            with suppress(EndOfStream, PeerLost):
                worker.learn(_LAST_WORDS_S)  # what it had finished before
            self._lose(worker)
            return False

    def _wait(self, deadline: int | None, why: str) -> None:
        """Wait until a worker says something.

        Raises:
            TransportTimeout: none has by `deadline`.
        """
        if not self._workers:
            raise PeerLost(f"all workers of channel {self._channel.name!r} have left or died")
        if not self._listen(deadline) and deadline is not None and now_ns() >= deadline:
            raise TransportTimeout(f"channel {self._channel.name!r}: {why}")

    def _listen(self, deadline: int | None) -> bool:
        """Hear what workers say, and now and then look at some; return whether any may have said something."""
        now = now_ns()
        if now >= self._looks.due_ns:
            heard, hear = self._looks.take(now, self._workers.values()), _Worker.look
        else:
            until = self._looks.due_ns if deadline is None else min(self._looks.due_ns, deadline)
            ready = self._poller.poll(max(0, -(-(until - now) // 1_000_000)))
            heard = [self._worker_of[descriptor] for descriptor, _ in ready if descriptor in self._worker_of]
            hear = _Worker.learn
        for worker in heard:
            try:
                hear(worker)
            except (EndOfStream, PeerLost):
                self._lose(worker)
        return bool(heard)

    def _lose(self, worker: _Worker) -> None:
        """Take back what a worker has not finished; to do so twice does nothing more."""
        for task_id, message in worker.held.values():
            self._returned[task_id] = message
        self._workers.pop(worker.index, None)
        for descriptor, each in list(self._worker_of.items()):
            if each is worker:
                del self._worker_of[descriptor]
                self._poller.unregister(descriptor)
        with ExitStack() as closing:
            closing.callback(worker.finished.close)
            closing.callback(worker.tasks.close)

    def close(self) -> None:
        self._closed = True
        with ExitStack() as closing:
            for end in self._ends:
                closing.callback(end.close)


class QueueReader(Composed, Reader):
    """A worker. It says that it has finished with a message at the next `read`, at `release` and at `close`."""

    def __init__(self, channel: ChannelSpec, tasks: Reader, finished: Writer) -> None:
        super().__init__(channel)
        self._tasks = tasks
        self._finished = finished
        self._has_one = False
        self._next_number = 0
        self._finished_count, self._said_count = 0, -1
        self._views: Sequence[memoryview] = ()
        self._say_now()

    @property
    def waits(self) -> WaitStrategy | None:
        waits = self._tasks.waits
        return waits if isinstance(waits, str) else None

    def _say_now(self, patience_s: float = 0.0) -> None:
        """Say how many it has finished, if it has not said so; next time, if there is no room or no writer yet."""
        if self._said_count != self._finished_count:
            is_connecting = self._said_count < 0 < self._finished_count
            longest_s = max(patience_s, _SAY_S if is_connecting else 0.0)
            with suppress(TransportTimeout, PeerLost):  # after a death, what was handed over can still be read
                self._finished.write(_NUMBER.pack(self._finished_count), longest_s)
                self._said_count = self._finished_count

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._fetch(1, timeout_s)
        task = self._views[0]
        (number,) = _NUMBER.unpack_from(task)
        self._next_number, self._has_one, self._views = number + 1, True, self._views[1:]
        return task[NUMBER_BYTES:]

    def read_many(self, most: int, timeout_s: float | None = None) -> list[memoryview]:
        require_some(most)
        self._fetch(most, timeout_s)
        tasks, next_number = [], self._next_number
        for task in self._views[:most]:
            (number,) = _NUMBER.unpack_from(task)
            if number >= next_number:
                tasks.append(task[NUMBER_BYTES:])
                next_number = number + 1
        self._next_number, self._has_one, self._views = next_number, True, self._views[most:]
        return tasks

    def _fetch(self, most: int, timeout_s: float | None) -> None:
        """Read messages, unless some are left of a call that was interrupted, until the first is one that has not come
        before.
        """
        self._require_open()
        if not self._views:
            self.release()
        deadline = deadline_ns(timeout_s)
        while not self._views or _NUMBER.unpack_from(self._views[0])[0] < self._next_number:
            if self._views:
                self._views = self._views[1:]
            else:
                self._await(most, deadline, timeout_s)

    def _await(self, most: int, deadline: int | None, timeout_s: float | None) -> None:
        """Read the next messages.

        Raises:
            TransportTimeout: there was none by `deadline`, which is that of `timeout_s`.
            PeerLost: the writer died, and there is none left.
        """
        while not self._views:
            left_s = remaining_s(deadline)
            # The writer may be waiting for what could not be said: it is new, or has had no room for what came twice.
            is_brief = self._said_count != self._finished_count and (left_s is None or left_s > _SAY_S)
            wait = (_SAY_S if is_brief else left_s,)
            once = zip(map(self._tasks.read, wait)) if most == 1 else map(self._tasks.read_many, (most,), wait)
            try:
                for self._views in once:
                    pass
            except TransportTimeout as error:
                if not is_brief:
                    raise TransportTimeout(
                        f"no message in channel {self._channel.name!r} within {timeout_s} s"
                    ) from error
                self.release()
            except PeerLost as error:
                raise PeerLost(f"the writer of channel {self._channel.name!r} died without closing") from error

    def release(self) -> None:
        if self._closed or self._views:
            return
        if self._has_one:
            self._tasks.release()
            self._finished_count, self._has_one = self._next_number, False
        self._say_now()

    def fileno(self) -> int | None:
        self._require_open()
        self._say_now()
        return self._tasks.fileno()

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._tasks.close)
            closing.callback(self._finished.close)
            if not self._closed:
                with suppress(TransportError):  # the writer is gone: there is nobody to tell
                    self.release()
                    self._say_now(_LAST_WORDS_S)  # there is no next time
            self._closed = True
