"""ZeroMQ: lossless broadcast over Unix sockets (`zmq`) or loopback TCP (`zmq-tcp`).

What does not live here: any message format but ZeroMQ's own frames, and any spinning (libzmq's threads always sleep).

One XPUB socket, one XSUB socket a reader. A reader subscribes to everything and to its own name. XPUB reports a topic
when it comes and when it goes, so the writer knows without a sleep that all are there, and notices who has gone.
XPUB_VERBOSE is not needed, since no two names are equal.

Flow control is by credit: readers send upstream, once every few messages, that they have read as many. The writer stops
when the slowest is `depth` messages behind; small messages may be more, up to 256 KiB or 1,024 of them, and large ones
fewer, 4 MiB or at least 4 of them, since what does not fit in a cache is slow. Below 1 MiB receipts come late and
it may be a quarter more. ZeroMQ's own high-water marks are off. They would bound two queues but not what lies in the
kernel's buffers between them, so a reader could be thousands of small messages behind; and a reader whose queue is full
when the writer's process ends loses what it has not taken from a Unix socket by then.

The end of the stream is the only message of two (empty) frames: others pay nothing for it, no payload looks like it.

`latest_value` is every message, and a thread of the reader that keeps the newest. ZMQ_CONFLATE cannot be used: its
buffer drops a value that is written while the other side looks, and if it was the last one, the reader waits in vain.
"""

from __future__ import annotations

import socket as sockets
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Message, Reader, Writer, unavailable
from ipcbench.backends._zmq_link import TRY_S, Link, absence
from ipcbench.clock import deadline_ns
from ipcbench.errors import EndOfStream, EndpointClosed, MessageTooLarge, PeerLost, TransportError
from ipcbench.newest import NewestReader
from ipcbench.presence import reader_role, reader_roles
from ipcbench.seats import channel_directory, make_directory, remove_directory
from ipcbench.spec import ChannelSpec

if absence is None:
    import zmq

_NOBLOCK = 1
_HAS_GONE, _HAS_COME, _HAS_READ = 0, 1, 2  # the first two are ZeroMQ's own
_FRAME_BYTES = 2**17
"""From this size on, a received message is left in libzmq's memory, which is cheaper than a copy."""

_SMALL_COUNT, _SMALL_BYTES = 1024, 2**18
_LARGE_COUNT, _LARGE_BYTES = 4, 2**22
_PROMPT_BYTES = 2**20
"""From this size on, a receipt for each message is cheap beside the message."""

_ports: dict[str, sockets.socket] = {}
"""Bound sockets that never listen, by channel: they keep a channel's port from being given to others."""


def _credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and after how many it sends a receipt."""
    size_bytes = max(1, channel.max_message_bytes)
    count = max(channel.depth, min(_SMALL_COUNT, _SMALL_BYTES // size_bytes))
    if count > _LARGE_COUNT:
        count = max(_LARGE_COUNT, min(count, _LARGE_BYTES // size_bytes))
    batch = 1 if size_bytes >= _PROMPT_BYTES else max(1, count // 4)
    return count + batch - 1, batch


class _ZmqWriter(Writer):
    """The XPUB end."""

    __slots__ = ("_awaited", "_begun", "_failure", "_granted", "_limit_bytes", "_link", "_read", "_room", "_send")

    def __init__(self, address: Address) -> None:
        self._link = link = Link(address, "writer", zmq.XPUB)
        link.socket.set(zmq.XPUB_NODROP, 1)
        link.attach(link.socket.bind, address.location)
        self._limit_bytes = address.channel.max_message_bytes
        self._awaited = {role.encode() for role in reader_roles(address.channel)}
        self._read = dict.fromkeys(self._awaited, 0)
        self._begun = False
        self._room = self._granted = 0
        self._failure: TransportError | None = None
        self._send: Callable[..., Any] = super(zmq.Socket, link.socket).send  # past pyzmq's layer in Python

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        size_bytes = message.nbytes if type(message) is memoryview else len(message)
        if size_bytes > self._limit_bytes and self._failure is None:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        if not self._room:
            self._make_room(deadline_ns(timeout_s))
        try:
            self._send(message, _NOBLOCK)
        except zmq.ZMQError as error:
            raise TransportError(f"channel {self._link.channel.name!r}: {error}") from error
        self._room -= 1

    def _make_room(self, deadline: int | None) -> None:
        """Wait until all readers are there and none is too far behind. There is no room after a loss or after close."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        socket = self._link.socket
        while int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._hear_reader()
        while self._awaited or not self._count_room():
            self._link.until(self._hear_reader, deadline, self._check_awaited)
        self._begun = True

    def _count_room(self) -> int:
        window = _credit(self._link.channel)[0]
        granted = min(self._read.values(), default=self._granted) + window
        self._room, self._granted = granted - self._granted, granted
        return self._room

    def _hear_reader(self) -> None:
        """Take in what a reader says: a byte (has come, has gone, has read a batch) and its role; or a subscription to
        everything, which has no role.
        """
        said = self._link.socket.recv()
        role = said[1:]
        if said[0] == _HAS_READ:
            if role in self._read:
                self._read[role] += _credit(self._link.channel)[1]
        elif said[0] == _HAS_COME:
            self._awaited.discard(role)
        elif role and self._link.presence.note_of(role.decode()) is None:
            self._lose(role)
        else:
            self._read.pop(role, None)

    def _check_awaited(self) -> None:
        presence = self._link.presence
        for role in sorted(self._awaited):
            if presence.note_of(role.decode()) is not None:
                self._awaited.discard(role)
                self._read.pop(role, None)
            elif presence.is_gone(role.decode()):
                self._lose(role)

    def _lose(self, role: bytes) -> None:
        self._room = 0
        self._failure = PeerLost(f"{role.decode()} of channel {self._link.channel.name!r} died without closing")
        raise self._failure

    def close(self) -> None:
        if isinstance(self._failure, EndpointClosed):
            return
        link = self._link
        self._room = 0
        self._failure = EndpointClosed(f"the writer of channel {link.channel.name!r} is closed")
        if self._begun:
            self._send(b"", zmq.SNDMORE | _NOBLOCK)
            self._send(b"", _NOBLOCK)
            link.presence.leave_note("ended")
            link.hang_up_gently()
        else:
            link.presence.leave_note("unused")
            link.hang_up()


class _ZmqReader(Reader):
    """An XSUB end."""

    __slots__ = ("_batch", "_copy", "_failure", "_link", "_receipt", "_recv", "_send", "_until_receipt")

    def __init__(self, address: Address, index: int) -> None:
        role = reader_role(address.channel, index)
        self._link = link = Link(address, role, zmq.XSUB)
        link.attach(link.socket.connect, address.location)
        link.socket.send(bytes([_HAS_COME]))
        link.socket.send(bytes([_HAS_COME]) + role.encode())  # second: once the writer hears it, the first holds
        self._receipt = bytes([_HAS_READ]) + role.encode()
        self._until_receipt = self._batch = _credit(address.channel)[1]
        self._failure: TransportError | None = None
        self._recv: Callable[..., Any] = super(zmq.Socket, link.socket).recv
        self._send: Callable[..., Any] = super(zmq.Socket, link.socket).send
        self._copy = True

    def read(self, timeout_s: float | None = None) -> memoryview:
        try:
            message = self._recv(0 if timeout_s is None or timeout_s >= TRY_S else _NOBLOCK, self._copy)
        except zmq.Again:
            message = None
        except zmq.ZMQError as error:
            raise TransportError(f"channel {self._link.channel.name!r}: {error}") from error
        if message is None:
            message = self._read_patiently(deadline_ns(timeout_s))
        size_bytes = len(message)
        self._copy = size_bytes < _FRAME_BYTES
        if not size_bytes and self._link.socket.get(zmq.RCVMORE):
            self._stop(EndOfStream(f"channel {self._link.channel.name!r} has ended"))
            self._refuse()
        self._until_receipt -= 1
        if not self._until_receipt:
            self._send(self._receipt, _NOBLOCK)
            self._until_receipt = self._batch
        return memoryview(message)

    def _read_patiently(self, deadline: int | None) -> Any:
        return self._link.until(lambda: self._recv(0, self._copy), deadline, self._check_writer)

    def _check_writer(self) -> None:
        """Raise if nothing more can come."""
        link = self._link
        if link.presence.note_of("writer") == "unused":
            raise EndOfStream(f"channel {link.channel.name!r} was closed without a message")
        if link.presence.is_gone("writer"):
            raise PeerLost(f"the writer of channel {link.channel.name!r} is gone, and so is the end of the stream")

    def _stop(self, failure: TransportError) -> None:
        """Let go of the socket; from now on `read` raises `failure`."""
        if self._failure is None:
            self._link.presence.leave_note()
            self._link.hang_up()
        self._failure, self._recv = failure, self._refuse

    def _refuse(self, *_: object) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def close(self) -> None:
        self._stop(EndpointClosed(f"this reader of {self._link.channel.name!r} is closed"))


class ZmqIpc(Backend):
    """ZeroMQ over a Unix socket in the channel's directory."""

    name: ClassVar[str] = "zmq"
    summary: ClassVar[str] = "ZeroMQ XPUB/XSUB over ipc:// (Unix sockets), with credit: lossless broadcast"
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message", "latest_value"}),
        when_full="block",
        max_message_bytes=2**30,
        max_readers=256,
        zero_copy_read=False,
        waits=frozenset({"block"}),
        launcher="spawn",
        remote=False,
        persistent=False,
        detects_peer_exit=True,
    )

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            raise unavailable(cls.name, absence, "zmq", "pip install pyzmq") from absence

    def create(self, channel: ChannelSpec) -> Address:
        self.probe()
        self.require(channel)
        make_directory(channel.name)
        try:
            return Address(self.name, channel, self._endpoint(channel))
        except OSError as error:
            remove_directory(channel.name)
            raise TransportError(f"no endpoint for channel {channel.name!r}: {error}") from error

    def _endpoint(self, channel: ChannelSpec) -> str:
        path = str(channel_directory(channel.name) / "s")
        if len(path) > zmq.IPC_PATH_MAX_LEN:
            raise OSError(f"{path} is too long for a socket's path; set TMPDIR to a shorter folder")
        return f"ipc://{path}"

    def open_writer(self, address: Address) -> Writer:
        self.probe()
        return _ZmqWriter(address)

    def open_reader(self, address: Address, index: int) -> Reader:
        self.probe()
        reader = _ZmqReader(address, index)
        if address.channel.delivery == "every_message":
            return reader
        return NewestReader(reader, f"{address.channel.name} reader-{index}", views_last=True)

    def destroy(self, address: Address) -> None:
        remove_directory(address.channel.name)
        port = _ports.pop(address.channel.name, None)
        if port is not None:
            port.close()


class ZmqTcp(ZmqIpc):
    """ZeroMQ over loopback TCP. The process that makes a channel reserves its port until it destroys it or ends."""

    name: ClassVar[str] = "zmq-tcp"
    summary: ClassVar[str] = "ZeroMQ XPUB/XSUB over tcp:// on the loopback interface, with credit: lossless broadcast"

    def _endpoint(self, channel: ChannelSpec) -> str:
        port = sockets.socket()
        # Linux lets the writer bind the port again if both sockets say so and this one never listens, and gives it to
        # nobody who asks for just any port. Elsewhere the reservation has to end here.
        port.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            port.bind(("127.0.0.1", 0))
            endpoint = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        except OSError:
            port.close()
            raise
        if sys.platform == "linux":
            _ports[channel.name] = port
        else:
            port.close()
        return endpoint
