"""Queues of `bytes` inside one process. This backend obeys every law, so it is the test double and a lower bound for
real transports.

Paths without waiting take no lock: appending to a deque, taking from it and replacing a tuple are atomic in Python. A
thread that must wait counts itself among the sleepers before it looks again, and a thread that changes something looks
for sleepers afterwards, so no wake-up is lost.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from ipcbench.backend import PLAIN_TYPES, Address, Backend, Capabilities, Message, Reader, Writer, bytes_of
from ipcbench.errors import EndOfStream, EndpointClosed, MessageTooLarge, TransportError, TransportTimeout
from ipcbench.patterns import with_patterns
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync.locks import reader_role
from ipcbench.util.clock import deadline_ns, remaining_s

_numbers = itertools.count(1)


class _Channel:
    """State that the endpoints of a channel share."""

    __slots__ = (
        "all_queues",
        "changed",
        "ended",
        "latest",
        "number",
        "queues",
        "sleepers",
        "spec",
        "taken",
        "watchers",
    )

    def __init__(self, spec: ChannelSpec) -> None:
        self.number = str(next(_numbers))
        """Tells the channel from another one made anew under its name."""
        self.spec = spec
        self.all_queues: tuple[deque[bytes], ...] = tuple(deque() for _ in range(spec.readers))
        """Unread messages of reader 0, 1 …"""
        self.queues = self.all_queues
        """The queues of readers that have not closed."""
        self.latest: tuple[int, bytes] = (0, b"")
        """Number of values written, and the last one."""
        self.ended = False
        self.taken: set[str] = set()
        """Roles that were opened, closed or not."""
        self.sleepers = 0
        self.watchers: tuple[socket.socket, ...] = ()
        """What makes the descriptors readable on which readers wait; each counts as a sleeper."""
        self.changed = threading.Condition()

    def take(self, role: str) -> None:
        """Take an endpoint, for good.

        Raises:
            TransportError: it was taken before.
        """
        with self.changed:
            if role in self.taken:
                raise TransportError(f"channel {self.spec.name!r} already has its {role}")
            self.taken.add(role)

    def wait_for(self, ready: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        """Sleep until `ready()` is true.

        Raises:
            TransportTimeout: it was not within `timeout_s`.
        """
        with self.changed:
            self.sleepers += 1
            try:
                if not self.changed.wait_for(ready, remaining_s(deadline_ns(timeout_s))):
                    raise TransportTimeout(f"{what} in channel {self.spec.name!r} within {timeout_s} s")
            finally:
                self.sleepers -= 1

    def wake(self) -> None:
        """Let all sleepers look again."""
        with self.changed:
            self.changed.notify_all()
        for end in self.watchers:
            with suppress(OSError):  # it is full, and so readable, or closed
                end.send(b"\0")


class _NullWriter(Writer):
    """Replaces the latest value; the base of the writer of every message."""

    __slots__ = ("_channel", "_closed", "_fitting_bytes")

    def __init__(self, channel: _Channel) -> None:
        channel.take("writer")
        self._channel = channel
        self._limit_bytes = self._fitting_bytes = channel.spec.max_message_bytes
        self._closed = False

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        if size_bytes > self._fitting_bytes:
            self._refuse(size_bytes)
        channel = self._channel
        channel.latest = (channel.latest[0] + 1, bytes(message))
        if channel.sleepers:
            channel.wake()

    def _require_open(self) -> None:
        if self._closed:
            raise EndpointClosed(f"the writer of channel {self._channel.spec.name!r} is closed")

    def _refuse(self, size_bytes: int) -> None:
        if self._closed:
            raise EndpointClosed(f"the writer of channel {self._channel.spec.name!r} is closed")
        raise MessageTooLarge(size_bytes, self._limit_bytes)

    def close(self) -> None:
        if not self._closed:
            self._closed, self._fitting_bytes = True, -1  # so that `write` checks only one thing
            self._channel.ended = True
            self._channel.wake()


class _NullQueueWriter(_NullWriter):
    """Appends to the queue of every reader."""

    __slots__ = ("_depth",)

    def __init__(self, channel: _Channel) -> None:
        super().__init__(channel)
        self._depth = channel.spec.depth

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        if size_bytes > self._fitting_bytes:
            self._refuse(size_bytes)
        channel, depth = self._channel, self._depth
        for queue in channel.queues:
            if len(queue) >= depth:
                self._wait_for_room(timeout_s)
        copy = bytes(message)
        for queue in channel.queues:
            queue.append(copy)
        if channel.sleepers:
            channel.wake()

    def _wait_for_room(self, timeout_s: float | None) -> None:
        channel, depth = self._channel, self._depth
        channel.wait_for(lambda: all(len(queue) < depth for queue in channel.queues), timeout_s, "no room")


class _NullReader(Reader):
    """What both kinds of reader share."""

    __slots__ = ("_channel", "_closed", "_ends", "_queue")

    def __init__(self, channel: _Channel, index: int) -> None:
        channel.take(reader_role(channel.spec, index))
        self._channel = channel
        self._queue = channel.all_queues[index]
        self._closed = False
        self._ends: tuple[socket.socket, socket.socket] | None = None

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    def fileno(self) -> int:
        channel = self._channel
        self._require_open()
        if self._ends is None:
            self._ends = socket.socketpair()
            for end in self._ends:
                end.setblocking(False)
            with channel.changed:
                channel.watchers += (self._ends[1],)
                channel.sleepers += 1
            channel.wake()  # something may be there already
        return self._ends[0].fileno()

    def _require_open(self) -> None:
        if self._closed:
            raise EndpointClosed(f"this reader of channel {self._channel.spec.name!r} is closed")

    def _stop_watching(self) -> None:
        if self._ends is None:
            return
        channel, ends = self._channel, self._ends
        with channel.changed:
            channel.watchers = tuple(end for end in channel.watchers if end is not ends[1])
            channel.sleepers -= 1
        for end in ends:
            end.close()

    def _wait(self, ready: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until `ready()` is true: there is something to read."""
        channel = self._channel
        self._require_open()
        if self._ends is not None:
            with suppress(BlockingIOError):
                self._ends[0].recv(4096)
        channel.wait_for(lambda: ready() or channel.ended, timeout_s, "no message")
        if not ready():
            raise EndOfStream(f"channel {channel.spec.name!r} has ended")


class _NullQueueReader(_NullReader):
    """Takes from its own queue."""

    __slots__ = ()

    def read(self, timeout_s: float | None = None) -> memoryview:
        if not self._queue:
            self._wait(lambda: bool(self._queue), timeout_s)
        message = self._queue.popleft()
        if self._channel.sleepers:
            self._channel.wake()
        return memoryview(message)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            channel, queue, self._queue = self._channel, self._queue, deque()
            self._stop_watching()
            with channel.changed:
                channel.queues = tuple(other for other in channel.queues if other is not queue)
            channel.wake()


class _NullLatestReader(_NullReader):
    """Returns the latest value."""

    __slots__ = ("_seen",)

    def __init__(self, channel: _Channel, index: int) -> None:
        super().__init__(channel, index)
        self._seen = 0

    def read(self, timeout_s: float | None = None) -> memoryview:
        count, value = self._channel.latest
        if count == self._seen or self._closed:
            self._wait(lambda: self._channel.latest[0] != self._seen, timeout_s)
            count, value = self._channel.latest
        self._seen = count
        return memoryview(value)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stop_watching()


_channels: dict[str, _Channel] = {}
_channels_lock = threading.Lock()


@with_patterns
class Null(Backend):
    """Queues inside one process."""

    name: ClassVar[str] = "null"
    summary: ClassVar[str] = "queues inside one process: no transport, obeys every law; lower bound and test double"
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message", "latest_value"}),
        when_full="block",
        max_message_bytes=2**40,
        max_readers=1024,
        zero_copy_read=True,
        waits=frozenset({"block"}),
        launcher="inline",
        remote=False,
        persistent=False,
        detects_peer_exit=False,
        holds_one_of_max=True,
    )

    @classmethod
    def probe(cls) -> None:
        """Do nothing: this backend is always available."""

    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        with _channels_lock:
            if channel.name in _channels:
                raise TransportError(f"channel {channel.name!r} exists already; destroy it or use another name")
            made = _channels[channel.name] = _Channel(channel)
        return Address(self.name, channel, made.number)

    def _channel(self, address: Address) -> _Channel:
        with _channels_lock:
            channel = _channels.get(address.channel.name)
        if channel is None or channel.number != address.location:
            raise TransportError(f"there is no channel {address.channel.name!r} in this process, or only a later one")
        return channel

    def open_writer(self, address: Address, index: int = 0) -> Writer:
        channel = self._channel(address)
        return _NullQueueWriter(channel) if channel.spec.delivery == "every_message" else _NullWriter(channel)

    def open_reader(self, address: Address, index: int) -> Reader:
        channel = self._channel(address)
        kind = _NullQueueReader if channel.spec.delivery == "every_message" else _NullLatestReader
        return kind(channel, index)

    def destroy(self, address: Address) -> None:
        with _channels_lock:
            channel = _channels.get(address.channel.name)
            if channel is not None and channel.number == address.location:
                del _channels[channel.spec.name]
