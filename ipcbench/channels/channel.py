"""An end of a channel that was found by its name: objects go in and come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from threading import Event, RLock
from types import TracebackType
from typing import Any, Self
from weakref import finalize

from ipcbench.backend import Reader, Writer
from ipcbench.channels.rendezvous import LOOK_S
from ipcbench.channels.sender import Sender
from ipcbench.channels.slices import in_slices
from ipcbench.errors import EndOfStream, EndpointClosed, PeerLost, TransportError, TransportTimeout, Unsupported
from ipcbench.sync.ownership import own
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s
from ipcbench.workload.objects import unpack

_LOOK_NS = 100_000_000
"""Interval of looks of one who sends whether anybody is left who could receive."""


class Place:
    """A place in an epoch, taken.

    Attributes:
        is_latest: whether the channel carries the latest value.
        is_queue: whether each message is a task of one reader.
        is_left: whether it was given up.
        writer: None for one who only reads.
        reader: None for one who only writes.
        absent: returns the places that nobody has taken yet, and without which nothing can be sent.
        are_gone: returns whether nobody is left who could receive.
        leave: gives it up, after the endpoints have closed.
    """

    __slots__ = ("absent", "are_gone", "is_latest", "is_left", "is_queue", "leave", "reader", "writer")

    def __init__(
        self,
        is_latest: bool,
        is_queue: bool,
        writer: Writer | None,
        reader: Reader | None,
        absent: Callable[[], list[str]],
        are_gone: Callable[[], bool],
        leave: Callable[[], None],
    ) -> None:
        self.is_latest, self.is_queue, self.is_left = is_latest, is_queue, False
        self.writer, self.reader = writer, reader
        self.absent, self.are_gone, self.leave = absent, are_gone, leave

    def give_up(self) -> None:
        """Close the endpoints and leave."""
        self.is_left = True
        with ExitStack() as leaving:
            leaving.callback(self.leave)
            for end in (self.writer, self.reader):
                if end is not None:
                    leaving.callback(end.close)


class Channel:
    """One end of a channel; `ipcbench.connect` makes it. One thread at a time may send, and one receive.

    Attributes:
        name: of the channel.
        has_value: whether `value` has one.
    """

    def __init__(self, name: str, enter: Callable[[int | None], Place], deadline: int | None) -> None:
        """Take a place.

        Args:
            name: of the channel.
            enter: takes a place, by a deadline.
            deadline: for the first place (ns of the clock).
        """
        self.name = name
        self._enter = enter
        self._is_closed = False
        self._sends, self._receives = RLock(), RLock()
        self._set(enter(deadline))
        own(self)

    def let_go(self) -> None:
        """In a forked child: be closed, whatever other threads of the parent held."""
        self._is_closed = True
        self._sends, self._receives = RLock(), RLock()

    def _set(self, place: Place) -> None:
        self._place = place
        self._leave = finalize(self, place.give_up)  # also when it is dropped, and when the interpreter ends
        self._sender = Sender(place.writer) if place.writer is not None else None
        self._are_there = self._is_lost = False
        self._look_ns = 0
        self._value: Any = None
        self.has_value = False

    def send(self, obj: Any, timeout_s: float | None = None) -> None:
        """Send an object. The first call waits until the other side has connected.

        Args:
            obj: None, numbers, text, bytes, lists, tuples, dicts, arrays and tensors, or anything made of these.
            timeout_s: how long to wait for room; None waits forever.

        Raises:
            TransportTimeout: there was no room by then, or the other side has not connected; nothing was sent.
            EncodeError: something in the object cannot travel.
            MessageTooLarge: it needs more than `max_bytes`.
            PeerLost: the other side has died, or closed; it is looked for every 0.1 s, and what was sent since is lost.
                `reconnect` waits for it to come back.
            EndpointClosed: after `close`.
        """
        sender, deadline = self._sending(), deadline_ns(timeout_s)
        while True:
            if not self._are_there:
                self._await_others(deadline)
            elif now_ns() >= self._look_ns:
                self._look_ns = now_ns() + _LOOK_NS
                self._is_lost = self._is_lost or self._place.are_gone()
            if self._is_lost:
                raise self._named(PeerLost(), timeout_s, "")
            try:
                self._in_slices(self._sends, deadline, partial(sender.write, sender.pack(obj)))
            except PeerLost as error:
                if not self._place.is_queue:
                    self._is_lost = True
                    raise self._named(error, timeout_s, "") from error
            except TransportTimeout as error:
                raise self._named(error, timeout_s, "there was no room") from error
            else:
                return
            sender = self._begin_anew(deadline)

    def empty(self, shape: Any, dtype: Any = "float32", timeout_s: float | None = None) -> Any:
        """Return an array in the channel's memory, with undefined contents, if the transport can (`shm`): the next
        object sent may hold it, and it is then not copied. It must not be used after that.

        Raises:
            as `send`.
        """
        return self._sending().empty(shape, dtype, timeout_s)

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until each task of a queue that was sent is finished; those of readers that die meanwhile go to others.

        Raises:
            Unsupported: it is no queue.
            Others: as `send`.
        """
        self._sending()
        if not self._place.is_queue:
            raise Unsupported(f"channel {self.name!r} is no queue, whose tasks are finished")
        deadline = deadline_ns(timeout_s)
        while True:
            try:
                self._place.writer.drain(remaining_s(deadline))  # type: ignore[union-attr] # only that of a queue has it
            except PeerLost:
                self._begin_anew(deadline)
            except TransportTimeout as error:
                raise self._named(error, timeout_s, "not every task was finished") from error
            else:
                return

    def recv(self, timeout_s: float | None = None, copy: bool = True) -> Any:
        """Return the next object. A task of a queue is finished when its reader receives the next one, or closes: if
        the reader dies before, another one gets it, while the other side is in `send` or `drain`.

        Args:
            timeout_s: how long to wait; 0 only looks; None waits forever.
            copy: False has its arrays share the channel's memory, until the next `recv`; they are read-only.

        Raises:
            TransportTimeout: there was none by then.
            EndOfStream: the other side has closed, and everything was received.
            PeerLost: the other side has died; `reconnect` waits for it to come back.
            EndpointClosed: after `close`.
        """
        reader = self._receiving()
        try:
            message = self._in_slices(self._receives, deadline_ns(timeout_s), reader.read)
        except (PeerLost, EndOfStream, TransportTimeout) as error:
            self._is_lost = self._is_lost or not isinstance(error, TransportTimeout)  # who sends is to know, too
            raise self._named(error, timeout_s, "nothing came") from error
        obj = unpack(message, copy=copy)
        if copy and not self._place.is_queue:  # for a queue that would say that the task is done
            reader.release()
        return obj

    def value(self, timeout_s: float | None = None) -> Any:
        """Return the latest value. Each is decoded once: the same object is returned until there is a newer one.

        Args:
            timeout_s: how long to wait for the first one.

        Raises:
            Unsupported: the channel carries every message.
            Others: as `recv`; EndOfStream and PeerLost only if there never was a value.
        """
        if not self._place.is_latest:
            raise Unsupported(
                f"channel {self.name!r} carries every message; value() is for one made with delivery='latest_value'"
            )
        try:
            self.keep(self.recv(0.0 if self.has_value else timeout_s))
        except (TransportTimeout, EndOfStream, PeerLost):
            if not self.has_value:
                raise
        return self._value

    def keep(self, value: Any) -> None:
        """Take what was received as the latest value."""
        self._value, self.has_value = value, True

    @property
    def receives(self) -> bool:
        """Return whether this end may receive."""
        return self._place.reader is not None

    def __iter__(self) -> Iterator[Any]:
        """Yield objects until the other side has closed."""
        while True:
            try:
                yield self.recv()
            except EndOfStream:
                return

    def reconnect(self, timeout_s: float | None = None) -> None:
        """Leave this epoch, in which a side has closed or died, and wait for a place in the next one.

        What was sent and not received is lost, with every message of the old epoch.

        Raises:
            TransportTimeout: there is none by then.
        """
        self._require_open()
        deadline = deadline_ns(timeout_s)
        with self._sends, self._receives:
            self._leave()
        self._set(self._enter(deadline))

    def _begin_anew(self, deadline: int | None) -> Sender:
        """Begin the next epoch of a queue, to whose every place a reader has come and gone, with what is unfinished."""
        unfinished = self._place.writer.take_unfinished()  # type: ignore[union-attr] # only that of a queue has it
        self.reconnect(remaining_s(deadline))
        self._place.writer.give_back(unfinished)  # type: ignore[union-attr] # as above
        return self._sending()

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when there may be something to receive; see `Reader.fileno`."""
        return self._receiving().fileno()

    def close(self) -> None:
        """Leave the channel; whoever leaves last removes it. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            with self._sends, self._receives:  # other threads look within a slice whether it is closed
                self._leave()

    def _in_slices(
        self, lock: AbstractContextManager[Any], deadline: int | None, operate: Callable[[float], Any]
    ) -> Any:
        """Do what one thread at a time may; another may close the channel meanwhile."""
        with lock:
            try:
                return in_slices(deadline, operate, self._require_open)
            except ValueError as error:
                if not self._place.is_left:
                    raise
                raise self._closed() from error  # the interpreter ends, and has closed it

    def _require_open(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _sending(self) -> Sender:
        self._require_open()
        if self._sender is None:
            raise Unsupported(f"this end of channel {self.name!r} only receives: it was connected with role='reader'")
        return self._sender

    def _receiving(self) -> Reader:
        self._require_open()
        if self._place.reader is None:
            raise Unsupported(f"this end of channel {self.name!r} only sends: it was connected with role='writer'")
        return self._place.reader

    def _named(self, error: TransportError, timeout_s: float | None, what: str) -> TransportError:
        """Return an error of an endpoint with the name of this channel in place of that of the transport's."""
        if isinstance(error, TransportTimeout):
            return TransportTimeout(f"channel {self.name!r}: {what} within {timeout_s:g} s")
        if isinstance(error, EndOfStream):
            return EndOfStream(f"channel {self.name!r}: the other side has closed, and everything was received")
        return PeerLost(f"channel {self.name!r}: the other side is gone; reconnect() waits for it to come back")

    def _closed(self) -> EndpointClosed:
        return EndpointClosed(f"this end of channel {self.name!r} is closed")

    def _await_others(self, deadline: int | None) -> None:
        while absent := self._place.absent():
            if deadline is not None and now_ns() >= deadline:
                who = "" if absent[0] in {"a", "b"} else f" as {', '.join(absent)}"
                raise TransportTimeout(f"channel {self.name!r}: nobody has connected yet{who}")
            Event().wait(LOOK_S)
        self._are_there = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
