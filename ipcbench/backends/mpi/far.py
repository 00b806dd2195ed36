"""MPI between hosts: the calls of `links.py` in their nonblocking forms, and messages of MPI in place of shared words.

A blocking collective has no time-out, and its endpoints cannot agree on it beforehand where they share no memory. So
the writer begins `Ibcast`, or `Isend`, and tests until it is done. Of each broadcast, a message tells the readers how
long it is (its *heading*), so that they can begin it as soon as they find one; for a reader that has not read yet, the
heading waits in MPI. Sent point to point, a message needs none.

A broadcast reaches some readers through others, and a large one all of them only when each takes it. So the writer
begins one of a large message when all readers wait for it, as they say; where one does not for long, it sends the
message to each by itself, and nobody waits for that one.

Flow control is by credit: a reader tells from time to time how many messages it has read, and the writer stops when the
slowest is so many behind. What a reader waits for it tells only when the writer has heard all before (`Issend`), or one
that is busy with something else would get messages without end. A write returns when MPI has passed its message on.
Where a reader takes none for long, a thread tests in its place, since MPI sends nothing in between calls.

Each reader says when it leaves, and takes part in what was begun until the writer has told it the end; where one leaves
before the others, the writer from then on sends point to point to these, as a new communicator would take a collective
call, which has no time-out. Nothing is under way any more when both have said so, and a communicator can be freed.
"""

from __future__ import annotations

import math
import pickle
import select
import threading
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ipcbench.backend import Address, Message, Reader, Waits, Writer, bytes_of
from ipcbench.backends.mpi.links import join, small_messages
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.sync.interrupts import in_background, is_of_handler, start_thread
from ipcbench.sync.locks import is_open, reader_roles
from ipcbench.sync.peers import PeerEndpoint, far_count
from ipcbench.sync.wait import Waiter
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

_MESSAGE, _HEADING, _END, _STATE = range(1, 5)
"""Tags: a message sent point to point, the lengths of one that is broadcast, no more messages; and of a reader, how
many it has read, which one it waits for (0: none), and whether it reads no more (1).
"""
_OPEN_S = 60.0
"""How long an endpoint that opens waits for the channel's other endpoints."""
_PATIENCE_NS = 100_000_000
"""How long a write waits for readers that take nothing before a thread does."""
_LINGER_S, _CLOSE_S = 30.0, 0.1
"""How long what is under way when an endpoint closes may take, and how long `close` waits for it."""
_LOOK_S = 0.000_2


class Frames:
    """How a message is broadcast: as it is, in one frame."""

    def __init__(self, mpi: Any) -> None:
        self._pickling = mpi.pickle

    def of(self, message: bytes) -> Sequence[Any]:
        """Return the frames of a message."""
        return (message,)

    def message(self, frames: Sequence[memoryview]) -> memoryview:
        """Return the message of these frames."""
        return frames[0]


class PickledFrames(Frames):
    """As a pickle, as `bcast` sends it."""

    def of(self, message: bytes) -> Sequence[Any]:
        return (self._pickling.dumps(message),)

    def message(self, frames: Sequence[memoryview]) -> memoryview:
        return memoryview(self._pickling.loads(frames[0]))


class Pickle5Frames(Frames):
    """As a pickle of protocol 5 and its buffers out of band, as `mpi4py.util.pkl5` sends it."""

    def of(self, message: bytes) -> Sequence[Any]:
        head, buffers = self._pickling.dumps_oob(pickle.PickleBuffer(message))
        return (head, *buffers)

    def message(self, frames: Sequence[memoryview]) -> memoryview:
        head, *buffers = frames
        return memoryview(self._pickling.loads_oob(head, buffers))


class FarEndpoint(PeerEndpoint):
    """What both endpoints have in common.

    Args:
        address: of the channel.
        mpi: the module MPI, started.
        frames: how messages are broadcast; None if they are sent point to point.
        index: of a reader.
    """

    def __init__(self, address: Address, mpi: Any, frames: type[Frames] | None, *index: int) -> None:
        self._mpi = mpi
        self._frames: Frames | None = frames(mpi) if frames else None
        super().__init__(address, *index)

    def _open(self, undo: ExitStack) -> None:
        if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE:
            raise TransportError("between hosts, MPI must let several threads call it: unset MPI4PY_RC_THREAD_LEVEL")
        self._is_drained = False
        self._waiter: Waiter = Waiter(
            "yield" if self._channel.wait == "auto" else self._channel.wait,  # as MPI itself, which never sleeps
            1,  # on its host
            doorbell=None,
            arm=lambda: None,
            disarm=lambda: None,
            check_peers=self._check_peers,
        )
        self._await_all()
        try:
            self._data = join(self._mpi, self._channel)
            self._words = self._data.Dup()
        except self._mpi.Exception as error:
            raise TransportError(f"MPI gave channel {self._channel.name!r} no communicator: {error}") from error
        self._status = self._mpi.Status()

    def _credit(self) -> tuple[int, int]:
        """Return how many messages the slowest reader may be behind, and after how many it tells what it has read.

        On one host, MPI can hold few sends of a process for others that do not call it; then it sends nothing to
        anybody. So a channel to readers on the writer's host may hold fewer messages than its depth.
        """
        depth, most = far_count(self._channel), math.inf
        if sends := len(self._channel.near) * (2 if self._frames else 1):  # with the heading
            most = max(1, small_messages(self._mpi)[1] // sends)
        batch = int(max(1, min(depth, most) // 4))
        return int(min(depth + batch - 1, most)), batch

    def _await_all(self) -> None:
        """Wait until all endpoints of the channel are open: then a collective call is certain to return."""
        roles = ["writer", *reader_roles(self._channel)]
        awaited = [role for role in roles if role != self._liveness.role]

        def are_open() -> bool:
            awaited[:] = [role for role in awaited if not is_open(self._address, role)]
            return not awaited

        if not self._waiter.until(are_open, deadline_ns(_OPEN_S)):
            raise TransportTimeout(f"channel {self._channel.name!r} has no {awaited[0]} after {_OPEN_S:.0f} s")

    def _check_peers(self) -> None:
        """Raise PeerLost if a peer has died."""

    @property
    def waits(self) -> Waits:  # type: ignore[override] # it has a waiter
        return self._waiter.waits

    def _drop(self) -> None:
        # The standard calls this collective; MPI libraries do it without the others. Messages that were not received
        # would be received on the next communicator of the same number.
        if self._is_drained:
            self._words.Free()
            self._data.Free()

    def _close(self) -> None:
        self._refuse_all()
        self._say_goodbye()
        in_background(self._end, f"{self._channel.name} end", _CLOSE_S)

    def _end(self) -> None:
        try:
            deadline = deadline_ns(_LINGER_S)
            while not (self._is_drained or not remaining_s(deadline)):
                select.select((), (), (), 0.0 if self._has_moved() else _LOOK_S)
        except (TransportError, self._mpi.Exception):
            pass  # nobody is left whom this would tell
        finally:
            self.let_go()

    def _has_moved(self) -> bool:
        """Go on with what is under way, and set `_is_drained` when nothing is; return whether anything has moved."""
        raise NotImplementedError


class FarReader(FarEndpoint, Reader):
    """Takes what the writer begins."""

    _under_way: Sequence[Any] = ()
    """What MPI does for the next message."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
        _, self._batch = self._credit()
        self._count, self._due_count = 0, self._batch
        limit_bytes, _ = small_messages(self._mpi)
        self._asks = bool(self._frames) and self._channel.readers > 1 and self._channel.max_message_bytes > limit_bytes
        self._state, self._is_news = array("q", [0, 0, 0]), False
        self._telling: list[Any] = []
        self._memory: list[bytearray] = []
        self._views: Sequence[memoryview] = ()
        self._is_framed = self._has_ended = False
        self._improbe, self._test_all = self._words.Improbe, self._mpi.Request.Testall

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._require_usable()
        if not self._has_next():
            self._wait(timeout_s)
        if self._has_ended:
            self._fail(EndOfStream(f"channel {self._channel.name!r} has ended"))
        view = self._frames.message(self._views) if self._frames and self._is_framed else self._views[0]
        self._views, self._under_way = (), ()
        self._count += 1
        if self._count >= self._due_count:
            self._due_count = self._count + self._batch
            self._tell(0, self._count)
        return view

    def _wait(self, timeout_s: float | None) -> None:
        """Wait until the next message is here, or the end."""
        if self._asks:
            self._tell(1, self._count + 1)
        self._waiter.begun_count += 1
        if not self._waiter.until(self._has_news, deadline_ns(timeout_s)):
            if self._asks:
                self._tell(1, 0)
            raise self._timed_out("no message in", timeout_s)

    def _has_news(self) -> bool:
        """Go on with what the writer is to know; return whether the next message is here, or the end."""
        self._go_on_telling()
        return self._has_next()

    def _has_next(self) -> bool:
        """Return whether the next message is here, or the end."""
        if not self._views and not self._has_ended:
            message = self._improbe(0, self._mpi.ANY_TAG, self._status)
            if message is None:
                return False
            self._begin(message)
        return self._has_ended or bool(self._test_all(self._under_way))

    def _begin(self, message: Any) -> None:
        """Begin to receive what MPI has found."""
        tag, size_bytes = self._status.Get_tag(), self._status.Get_count(self._mpi.BYTE)
        if tag == _MESSAGE:
            self._make_views((size_bytes,))
            self._under_way, self._is_framed = (message.Irecv(self._views[0]),), False
            return
        lengths = array("q", bytes(size_bytes))
        message.Recv((lengths, self._mpi.BYTE))
        if tag == _END:
            self._has_ended = True
            return
        self._make_views(lengths)
        self._under_way, self._is_framed = [self._data.Ibcast(view, 0) for view in self._views], True

    def _make_views(self, lengths: Sequence[int]) -> None:
        while len(self._memory) < len(lengths):
            self._memory.append(bytearray())
        for number, length in enumerate(lengths):
            if len(self._memory[number]) < length:
                self._memory[number] = bytearray(max(length, 2 * len(self._memory[number])))
        self._views = [memoryview(kept)[:length] for kept, length in zip(self._memory, lengths, strict=False)]

    def _tell(self, place: int, number: int) -> None:
        """Tell the writer a new number at that place of the state; what was read, and the end, at once."""
        self._state[place], self._is_news = number, True
        self._go_on_telling(at_once=place != 1)

    def _go_on_telling(self, *, at_once: bool = False) -> None:
        if self._is_news and (self._is_heard() or at_once):
            self._is_news = False
            self._telling.append(self._words.Issend(array("q", self._state), 0, _STATE))

    def _is_heard(self) -> bool:
        """Return whether the writer has heard everything that was told."""
        if self._test_all(self._telling):
            self._telling.clear()
        return not self._telling

    def _check_peers(self) -> None:
        liveness = self._liveness
        if liveness.is_check_due() and liveness.is_gone("writer") and liveness.note_of("writer") is None:
            self._fail(self._lost())

    def _say_goodbye(self) -> None:
        self._liveness.leave_note()
        self._tell(2, 1)

    def _has_moved(self) -> bool:
        has_next = self._has_news()
        if has_next:
            self._views, self._under_way = (), ()
        self._is_drained = self._has_ended and not self._is_news and self._is_heard()
        if not has_next:
            self._check_left()
        return has_next

    def _check_left(self) -> None:
        if self._liveness.is_check_due() and self._liveness.is_gone("writer"):
            raise PeerLost("the writer is gone, too")


class _Pump:
    """Tests what is under way from a thread, which lives as long as something is."""

    def __init__(self, test_all: Any) -> None:
        self._test_all = test_all
        self._guard = threading.Lock()
        self._requests: list[Any] = []
        self.is_idle = True

    def add(self, requests: Sequence[Any]) -> None:
        """Take over requests.

        Raises:
            RuntimeError: there can be no thread.
        """
        with self._guard:
            self._requests += requests
            if self.is_idle:
                self.is_idle = False
                start_thread(self._run)

    def _run(self) -> None:
        while True:
            with self._guard:
                if self._test_all(self._requests):
                    self._requests.clear()
                    self.is_idle = True
                    return
            select.select((), (), (), _LOOK_S)


def _soon(deadline: int | None) -> int:
    """Return until when a write waits for a reader that takes nothing."""
    patience = now_ns() + _PATIENCE_NS
    return patience if deadline is None else min(patience, deadline)


class FarWriter(FarEndpoint, Writer):
    """Begins to send each message to all readers, and sees to it that MPI passes it on."""

    def _open(self, undo: ExitStack) -> None:
        self._roles = dict(enumerate(reader_roles(self._channel), 1))
        self._read = dict.fromkeys(self._roles, 0)
        """Rank of a reader that has not left → how many messages it has read."""
        super()._open(undo)
        self._limit_bytes = self._channel.max_message_bytes
        self._window, _ = self._credit()
        self._asked = dict.fromkeys(self._roles, 0)
        """Rank of a reader → the message for which it waits, counted from 1."""
        self._small_bytes, _ = small_messages(self._mpi)
        self._told_end: set[int] = set()
        self._is_direct = self._frames is None
        self._sent_count, self._room_until = 0, self._window
        self._told = array("q", [0, 0, 0])
        self._under_way: list[Any] = []
        self._test_all = self._mpi.Request.Testall
        self._pump = _Pump(self._test_all)

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) is not bytes:
            message = bytes(bytes_of(message))
        self._require_usable()
        if len(message) > self._limit_bytes:
            raise MessageTooLarge(len(message), self._limit_bytes)
        deadline = deadline_ns(timeout_s)
        if self._sent_count >= self._room_until and not self._waiter.until(self._has_room, deadline):
            raise TransportTimeout(f"no room in channel {self._channel.name!r}: a reader is too far behind")
        try:
            self._begin(message, self._can_broadcast(len(message), deadline))
            self._sent_count += 1
            if not self._is_passed_on():
                self._see_to_it(deadline)
        except BaseException as error:
            self._break(error)
            raise

    def _break(self, error: BaseException) -> None:
        """Write no more: after an exception of a signal handler, nobody knows what was begun."""
        if not isinstance(error, TransportError) or is_of_handler(error):
            self._refuse(
                TransportError(
                    f"a write to channel {self._channel.name!r} was interrupted by {type(error).__name__}, maybe in "
                    "the middle of the message: close the writer, destroy the channel and make another"
                )
            )

    def _can_broadcast(self, size_bytes: int, deadline: int | None) -> bool:
        """Return whether no reader would hold others up; wait a while for that."""
        if self._is_direct or size_bytes <= self._small_bytes or len(self._read) == 1:
            return not self._is_direct
        return self._all_ask() or self._waiter.until(self._all_ask, _soon(deadline))

    def _all_ask(self) -> bool:
        self._hear()
        return not self._is_direct and all(number > self._sent_count for number in self._asked.values())

    def _begin(self, message: bytes, is_broadcast: bool) -> None:
        isend = self._words.Isend
        if self._frames is None or not is_broadcast:
            self._under_way += [isend(message, rank, _MESSAGE) for rank in self._read]
            return
        frames = self._frames.of(message)
        heading = array("q", map(len, frames))
        self._under_way += [isend(heading, rank, _HEADING) for rank in self._read]
        self._under_way += [self._data.Ibcast(frame, 0) for frame in frames]

    def _is_passed_on(self) -> bool:
        if self._test_all(self._under_way):
            self._under_way.clear()
            return True
        return False

    def _see_to_it(self, deadline: int | None) -> None:
        """Wait until MPI has passed on what is under way; after a while, let the thread do so."""
        if not self._pump.is_idle or not self._waiter.until(self._is_passed_on, _soon(deadline)):
            try:
                self._pump.add(self._under_way)
            except RuntimeError as error:
                raise TransportError(f"{error}, to send the rest of a message; raise the limit of processes") from error
            self._under_way.clear()

    def _has_room(self) -> bool:
        """Hear the readers; return whether none is too far behind."""
        self._hear()
        self._room_until = min(self._read.values(), default=self._sent_count) + self._window
        return self._sent_count < self._room_until

    def _hear(self) -> None:
        words, status, mpi = self._words, self._status, self._mpi
        while words.Iprobe(mpi.ANY_SOURCE, _STATE, status):
            rank = status.Get_source()
            words.Recv(self._told, rank, _STATE)
            self._read[rank], self._asked[rank], leaves = self._told
            if leaves:
                del self._read[rank]
                self._is_direct = True
                self._end_for(rank)

    def _check_peers(self) -> None:
        """Raise PeerLost if a reader has died. One that has closed has told so through MPI."""
        if self._liveness.is_check_due():
            for rank in self._read:
                role = self._roles[rank]
                if self._liveness.is_gone(role) and self._liveness.note_of(role) is None:
                    self._fail(self._lost(role))

    def _end_for(self, *ranks: int) -> None:
        for rank in set(ranks) - self._told_end:
            self._under_way.append(self._words.Isend(b"", rank, _END))
            self._told_end.add(rank)

    def _say_goodbye(self) -> None:
        self._liveness.leave_note()
        self._end_for(*self._read)

    def _has_moved(self) -> bool:
        self._hear()
        self._is_drained = self._is_passed_on() and self._pump.is_idle and not self._read
        return False
