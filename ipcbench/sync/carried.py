"""Channels whose bytes a messaging library carries: what such a library lacks, the cursors do.

Few libraries block without loss where a reader is slow, tell that a stream ends, or notice that a peer has died. Here a
library has to do no more than to carry frames to each reader, whole and in order; it never holds more than `depth` of
them, and one that ends the stream. The cursors in the channel's folder keep the places, count, give credit, and know
who has closed or died. So all endpoints are on one machine, whatever the library could do beyond that.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from ipcbench.backend import PLAIN_TYPES, Address, Capabilities, Message, Reader, Waits, Writer, bytes_of
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync.cursors import (
    CLOSED,
    GONE,
    MAX_READERS,
    PUBLISHED,
    WRITER_SLEEPS,
    WRITER_STATE,
    Cursors,
    CursorsEndpoint,
    ReaderCursors,
    WriterCursors,
    consumed_word,
    cursors_bytes,
    make_doorbells,
)
from ipcbench.sync.descriptors import expect_descriptors, require_descriptors
from ipcbench.sync.directory import as_transport_errors, open_directory
from ipcbench.sync.folder import FolderBackend
from ipcbench.sync.interrupts import in_background, is_of_handler
from ipcbench.sync.locks import was_released
from ipcbench.sync.ownership import keep_for_ever
from ipcbench.sync.service import end_services
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

_SLICE_S = 0.1
"""How long a reader waits in the library until it looks whether the writer still lives."""
_LINGER_S, _CLOSE_S = 3.0, 0.1
"""How long a closed writer lives on, in a thread, after the last sign that readers still read: until then the library
has to have handed over all that it holds; and how long `close` waits for that.
"""
_REST_S = 10.0
"""How long a reader waits for messages that a writer has counted that is gone; the library may still hold them."""
_SHOWS_S = 1.0
"""How long after an error of the library the death of a peer may take to show."""
_READY = 2
"""Word of a reader, after those of the cursors: 1 as soon as it hears what the writer sends."""


_users: dict[str, int] = {}
"""Libraries that bear no fork, by the names of their backends, and the process that has used each first."""


def _require_first_user(name: str) -> None:
    if _users.setdefault(name, os.getpid()) != os.getpid():
        raise OSError(f"{name} cannot be used in a forked child of a process that has used it: start it by `spawn`")


class CarriedEndpoint(CursorsEndpoint):
    """An endpoint.

    Attributes:
        address: the channel's.
        depth: how many messages the library has to hold for each reader, without what ends the stream.
        library: what `connect` returned.
    """

    library_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """What the library raises, beside OSError, when it cannot connect or carry."""
    library_folder: ClassVar[str] = ""
    """Part of the paths of the library's Python files, such as "/pynng/", where no signal handlers are."""

    descriptors: ClassVar[tuple[int, int]] = (0, 0)
    """How many files the library opens at most: at once, and later for each peer that connects."""

    bears_fork: ClassVar[bool] = True
    """Whether a forked child of a process that has used the library may use it."""

    most_held: ClassVar[int] = 2**20
    """How many messages the library can be asked to hold for a reader."""

    _failure: TransportError | None = None
    _room_until = 0
    """How many messages a writer may have sent before it looks again whether there is room, and whether it is open."""

    def __init__(self, kind: Callable[..., Cursors], address: Address, *index: int) -> None:
        folder = open_directory(address)
        with as_transport_errors(f"cannot open an endpoint of channel {address.channel.name!r}"):
            with (folder / "cursors").open("r+b") as file:
                words = memoryview(mmap(file.fileno(), 0)).cast("Q")
            self._cursors = kind(words, address, *index)
            self.address, self.depth = address, min(address.channel.depth, self.most_held)
            self.library: Any = None
            self._pid, self._count = os.getpid(), 0
            try:
                if not self.bears_fork:
                    _require_first_user(address.backend)
                require_descriptors(self.descriptors[0] + self.expected_descriptors())
                self.library = self.connect()
            except BaseException as error:
                self._cursors.abandon()
                words.release()  # which the traceback of the error would keep mapped
                if self._is_of_library(error) and not isinstance(error, OSError):
                    raise OSError(str(error)) from error
                raise
        self.opened()
        expect_descriptors(self)

    def expected_descriptors(self) -> int:
        """Return how many files the library has still to open for peers, after `connect`."""
        return 0 if self.closed or self._count else self.descriptors[1]

    @abstractmethod
    def connect(self) -> Any:
        """Return what the library makes of this endpoint, to be `library` from now on; never wait for a peer.

        Where something else can die that carries, such as a server, say so by `self._cursors.check_carrier`.

        Raises:
            OSError: it cannot; or one of `library_errors`.
        """

    @abstractmethod
    def disconnect(self) -> None:
        """Let go of `library`. What it has not sent by now, nobody needs."""

    def lost(self, error: BaseException) -> TransportError:
        """Return what an error of the library means, if no peer has died."""
        return TransportError(f"channel {self.address.channel.name!r}: {error}")

    @property
    def waits(self) -> Waits | WaitStrategy:  # type: ignore[override]
        return "block"

    def _require_open(self) -> None:
        self._cursors.require_open()
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _is_of_library(self, error: BaseException) -> bool:
        return isinstance(error, (OSError, *self.library_errors)) and not self._is_of_handler(error)

    def _is_of_handler(self, error: BaseException) -> bool:
        return is_of_handler(error, self.library_folder)

    def _check_peers(self) -> None:
        """Raise PeerLost if one has died, now and from now on."""
        try:
            self._cursors.check_peers()
        except PeerLost as loss:
            self._failure = loss
            raise

    def _await_death(self) -> None:
        """Raise PeerLost if one has died: of a process that ends, connections may close before its death shows."""
        self._check_peers()
        try:
            self._cursors.waiter.until(lambda: False, deadline_ns(_SHOWS_S))
        except PeerLost as loss:
            self._failure = loss
            raise

    def _judge(self, error: BaseException) -> NoReturn:
        """Raise what an error of the library means; after any other, nobody knows what was sent or taken."""
        self._room_until = 0
        if self._is_of_library(error):
            self._await_death()
            self._failure = self.lost(error)
            raise self._failure from error
        if not isinstance(error, TransportError) or self._is_of_handler(error):
            self._failure = TransportError(
                f"a call on channel {self.address.channel.name!r} was interrupted by {type(error).__name__}: close the "
                "endpoint, destroy the channel and make another"
            )
        raise error

    def _drop(self) -> None:
        self._room_until = 0
        if os.getpid() != self._pid:
            keep_for_ever(self.library)  # to free it would touch threads that the child does not have
        elif self.library is not None:
            self.disconnect()
        self.library = None
        self._cursors.words.release()


class CarriedWriter(CarriedEndpoint, Writer):
    """The writer: it hands each message to the library, once for each reader or once for all."""

    reaches_others: ClassVar[bool] = False
    """Whether a `send` that fails because one reader has died has still reached all others."""

    _cursors: WriterCursors

    def __init__(self, address: Address) -> None:
        self._states = [consumed_word(index) + 1 for index in range(address.channel.readers)]
        self._limit_bytes = address.channel.max_message_bytes
        self._live: list[int] = []
        self._is_heard = False
        super().__init__(WriterCursors, address)

    def expected_descriptors(self) -> int:
        return 0 if self._is_heard else super().expected_descriptors() * len(self._states)

    @abstractmethod
    def send(self, message: bytes | bytearray | memoryview) -> None:
        """Hand a message to the library for `readers()`, which all have room; b"" after the last one."""

    def await_peers(self, timeout_s: float | None) -> None:
        """Wait for what the library has to know of its peers, when all have connected; once, before the first message.

        Raises:
            TransportTimeout: it does not within `timeout_s`.
        """

    def is_handed_over(self) -> bool:
        """Return whether, after the last message, what `disconnect` lets go of is not needed to deliver the rest."""
        return False

    def readers(self) -> list[int]:
        """Return the indices of the readers that had not closed when there was last a look whether there is room."""
        return self._live

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        if self._count >= self._room_until or len(message) > self._limit_bytes:
            self._await_room(len(message), timeout_s)
        try:
            self._publish(message)
        except BaseException as error:
            self._judge(error)

    def _await_room(self, size_bytes: int, timeout_s: float | None) -> None:
        """Wait until each reader has room for one more message, of that size; raises what `write` does."""
        if size_bytes > self._limit_bytes:
            self._require_open()
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        if self._count >= self._room_until:
            self._make_room(timeout_s)

    def _publish(self, message: bytes | bytearray | memoryview) -> None:
        self._count += 1  # first: a reader takes a frame that is not counted for the end
        self._cursors.words[PUBLISHED] = self._count
        self.send(message)

    def _make_room(self, timeout_s: float | None) -> None:
        self._require_open()
        if not self._is_heard:
            self._await_readers(timeout_s)
        slowest = self._cursors.wait_until_consumed(self._count + 1 - self.depth, timeout_s)
        self._live = self._not_closed()
        self._room_until = min(slowest, self._count) + self.depth

    def _not_closed(self) -> list[int]:
        """Return who still reads; one that is closing has first counted all messages as finished."""
        words = self._cursors.words
        return [index for index, word in enumerate(self._states) if words[word] != CLOSED and words[word - 1] != GONE]

    def _await_readers(self, timeout_s: float | None) -> None:
        words, deadline = self._cursors.words, deadline_ns(timeout_s)

        def all_hear() -> bool:
            return all(words[word + _READY - 1] or words[word] == CLOSED for word in self._states)

        if not all_hear():
            self._cursors.waiter.begun_count += 1
            if not self._cursors.waiter.until(all_hear, deadline):
                raise TransportTimeout(f"channel {self.address.channel.name!r} has not all of its readers yet")
        self._live = self._not_closed()
        try:
            self.await_peers(remaining_s(deadline))
        except BaseException as error:
            self._judge(error)
        self._is_heard = True

    def _close(self) -> None:
        self._room_until = 0
        if self._failure is not None and not (self.reaches_others and isinstance(self._failure, PeerLost)):
            # A reader may lack what is counted, and would take the end for it.
            self._cursors.let_go()
            self._drop()
            return
        self._cursors.end()
        if self._is_heard:
            with suppress(OSError, TransportError, *self.library_errors):
                self.send(b"")
        in_background(self._linger, f"{self.address.channel.name} flush", _CLOSE_S)

    def _linger(self) -> None:
        try:
            with suppress(PeerLost):
                while not self.is_handed_over() and self._is_read_further():
                    pass
        finally:
            self._cursors.close()
            self._drop()

    def _is_read_further(self) -> bool:
        """Wait until all is read, or for `_LINGER_S`; return whether it is not, but readers have read something."""
        before = self._cursors.slowest()
        try:
            self._cursors.wait_until_consumed(self._count, _LINGER_S)
        except TransportTimeout:
            return self._cursors.slowest() > before
        return False


class CarriedReader(CarriedEndpoint, Reader):
    """A reader, which waits in the library.

    Attributes:
        index: which of the channel's.
    """

    wakes_after: int = 1
    """After how many messages a reader wakes a writer that sleeps, if it does not itself wait before that. To wake it
    for each one lets no library gather small messages.
    """

    is_waiting: bool = False
    """Whether `receive` only waits: then an exception of a signal handler has taken nothing, and it may go on."""

    _cursors: ReaderCursors

    def __init__(self, address: Address, index: int) -> None:
        self.index = index
        self._taken: bytes | bytearray | memoryview | None = None  # from the library, and not yet by the caller
        self._missed = -1, 0
        """How many messages there were when the writer was first seen to be gone before the rest, and when (ns)."""
        super().__init__(ReaderCursors, address, index)
        self._cursors.store_published(consumed_word(index) + _READY, 1)
        self._cursors.ring_writer()

    @abstractmethod
    def receive(self, timeout_s: float) -> bytes | bytearray | memoryview | None:
        """Return the next message, or None if there is none within `timeout_s`; 0.0 does not wait."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        cursors = self._cursors
        if cursors.closed or self._failure is not None:
            self._require_open()
        deadline = left_s = None
        if timeout_s is not None:
            deadline, left_s = deadline_ns(timeout_s), max(0.0, timeout_s)
        while cursors.words[WRITER_STATE] != CLOSED or not self._is_at_end():
            try:
                message = self._next(_SLICE_S if left_s is None else min(_SLICE_S, left_s))
            except BaseException as error:
                if self._is_at_end() and not self._is_of_handler(error):
                    break
                if self.is_waiting and not self._is_of_library(error):
                    raise
                self._judge(error)
            if message is None:
                self._check_peers()
                self._check_rest()
                if left_s == 0.0:
                    raise TransportTimeout(f"no message in channel {self.address.channel.name!r} within {timeout_s} s")
                left_s = remaining_s(deadline)
            elif message or not self._is_at_end():
                view, count = memoryview(message), self._count + 1
                self._done(count)
                self._taken = None  # only here, with no call after it in which a handler might run
                self._count = count
                return view
        raise EndOfStream(f"the writer of channel {self.address.channel.name!r} has closed")

    def _check_rest(self, after_s: float = _REST_S) -> None:
        """Raise PeerLost if the writer has closed and is gone, and nothing more of that has come for so long."""
        cursors = self._cursors
        if cursors.words[WRITER_STATE] != CLOSED or not was_released(cursors.directory, "writer"):
            return
        count, since_ns = self._missed
        if count != self._count:
            self._missed = self._count, since_ns = self._count, now_ns()
        if not self._is_at_end() and now_ns() - since_ns >= 1e9 * after_s:
            missing = cursors.words[PUBLISHED] - self._count
            self._failure = PeerLost(
                f"the writer of channel {self.address.channel.name!r} is gone, and {missing} of its messages with it"
            )
            raise self._failure

    def _await_death(self) -> None:
        super()._await_death()
        self._check_rest(0.0)

    def _next(self, timeout_s: float) -> bytes | bytearray | memoryview | None:
        if self._taken is None:
            words = self._cursors.words
            if words[WRITER_SLEEPS] and self.wakes_after > 1 and words[PUBLISHED] <= self._count:
                self._cursors.ring_writer()  # or both would wait
            self._taken = self.receive(timeout_s)
        return self._taken

    def _done(self, count: int) -> None:
        """Say that so many messages are here; said again if a handler interrupts it."""
        cursors = self._cursors
        if count % self.wakes_after == 0:
            cursors.done_with(count)
        elif cursors.fenced:
            cursors.store_published(cursors.consumed_word, count)
        else:
            cursors.words[cursors.consumed_word] = count

    def _is_at_end(self) -> bool:
        words = self._cursors.words
        if words[WRITER_STATE] != CLOSED:
            return False
        self._cursors.fence()
        return words[PUBLISHED] == self._count


class CarriedBackend(FolderBackend):
    """A transport of such endpoints."""

    capabilities: ClassVar[Capabilities] = replace(
        FolderBackend.capabilities, deliveries=frozenset({"every_message"}), max_readers=MAX_READERS
    )

    def lay_out(self, folder: Path, channel: ChannelSpec) -> None:
        make_doorbells(folder, channel.readers)
        (folder / "cursors").write_bytes(bytes(cursors_bytes(channel.readers)))

    def end(self, folder: Path, address: Address) -> None:
        end_services(folder)
