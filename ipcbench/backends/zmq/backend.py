"""ZeroMQ: lossless broadcast over Unix sockets (`zmq`) or loopback TCP (`zmq-tcp`).

Messages go from an XPUB socket to a SUB socket a reader. A reader subscribes to everything and to its own name. XPUB
reports a topic when it comes and when it goes, so the writer knows without a sleep that all are there, and notices who
has gone. XPUB_VERBOSE is not needed, since no two names are equal.

Flow control is by credit: once every few messages, a reader sends a receipt, by PUSH to the writer's PULL. The writer
stops when the slowest is `depth` messages behind; small messages may be more, up to 256 KiB or 1,024 of them, and large
ones fewer, 4 MiB or at least 4 of them, since what does not fit in a cache is slow. Below 1 MiB receipts come late
and it may be half as many more. ZeroMQ's own high-water marks are off: they bound two queues but not what lies in the
kernel's buffers between them, so a reader could be thousands of small messages behind; and a reader whose queue is full
when the writer's process ends loses what it has not taken from a Unix socket. Receipts have a connection of their own
because TCP drops what is not delivered yet if a side closes before it has read everything.

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
from ipcbench.backends.zmq.sockets import SEPARATOR, TRY_S, Link, absence, credit
from ipcbench.errors import EndOfStream, EndpointClosed, MessageTooLarge, PeerLost, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.latest import LatestValueReader
from ipcbench.sync.liveness import reader_role, reader_roles
from ipcbench.sync.locks import channel_directory, make_directory, remove_directory
from ipcbench.util.clock import deadline_ns

if absence is None:
    import zmq

_NOBLOCK = 1
_HAS_COME = b"\1"
_FRAME_BYTES = 2**17
"""From this size on, a received message is left in libzmq's memory, which is cheaper than a copy."""

_ports: dict[str, list[sockets.socket]] = {}
"""Bound sockets that never listen, by channel: they keep a channel's ports from being given to others."""


class _ZmqWriter(Writer):
    """The XPUB end."""

    def __init__(self, address: Address) -> None:
        self._link = link = Link(address, "writer", zmq.XPUB, zmq.PULL)
        link.socket.set(zmq.XPUB_NODROP, 1)
        link.bind(address.location)
        self._limit_bytes = address.channel.max_message_bytes
        self._awaited = {role.encode() for role in reader_roles(address.channel)}
        self._read = dict.fromkeys(self._awaited, 0)
        self._window, self._batch = credit(address.channel)
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
        link = self._link
        self._look_at_readers()
        while self._awaited:
            self._hear_report(link.receive(link.socket, True, deadline, self._check_awaited))
        while int(link.receipts.get(zmq.EVENTS)) & zmq.POLLIN:
            self._hear_receipt(link.receipts.recv())
        while not self._count_room():
            self._hear_receipt(link.receive(link.receipts, True, deadline, self._look_at_readers))
        self._begun = True

    def _count_room(self) -> int:
        granted = min(self._read.values(), default=self._granted) + self._window
        self._room, self._granted = granted - self._granted, granted
        return self._room

    def _hear_receipt(self, role: bytes) -> None:
        if role in self._read:
            self._read[role] += self._batch

    def _look_at_readers(self) -> bool:
        """Hear all reports; return whether there were any."""
        heard = False
        while int(self._link.socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._hear_report(self._link.socket.recv())
            heard = True
        return heard

    def _hear_report(self, report: bytes) -> None:
        """Take in that a topic has come (1) or gone (0): a reader's role, or everything, which is empty."""
        role = report[1:]
        if report[:1] == _HAS_COME:
            self._awaited.discard(role)
        elif role and self._link.liveness.note_of(role.decode()) is None:
            self._lose(role)
        else:
            self._read.pop(role, None)

    def _check_awaited(self) -> bool:
        """Stop waiting for readers that have left already; return whether nobody is awaited any more."""
        liveness = self._link.liveness
        for role in sorted(self._awaited):
            if liveness.note_of(role.decode()) is not None:
                self._awaited.discard(role)
                self._read.pop(role, None)
            elif liveness.is_gone(role.decode()):
                self._lose(role)
        return not self._awaited

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
            link.liveness.leave_note("ended")
            link.hang_up_gently(set(self._read))
        else:
            link.liveness.leave_note("unused")
            link.hang_up()


class _ZmqReader(Reader):
    """A SUB end."""

    def __init__(self, address: Address, index: int) -> None:
        role = reader_role(address.channel, index)
        self._link = link = Link(address, role, zmq.SUB, zmq.PUSH)
        link.connect(address.location)
        link.socket.subscribe(b"")
        link.socket.subscribe(role)  # second: once the writer hears it, the first holds
        self._receipt = role.encode()
        self._until_receipt = self._batch = credit(address.channel)[1]
        self._failure: TransportError | None = None
        self._recv: Callable[..., Any] = super(zmq.Socket, link.socket).recv
        self._send: Callable[..., Any] = super(zmq.Socket, link.receipts).send
        self._copy = True

    def read(self, timeout_s: float | None = None) -> memoryview:
        try:
            message = self._recv(0 if timeout_s is None or timeout_s >= TRY_S else _NOBLOCK, self._copy)
        except zmq.Again:
            message = None
        except zmq.ZMQError as error:
            raise TransportError(f"channel {self._link.channel.name!r}: {error}") from error
        if message is None:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            link = self._link
            message = link.receive(link.socket, self._copy, deadline_ns(timeout_s), self._check_writer)
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

    def _check_writer(self) -> bool:
        """Raise if nothing more can come; else go on waiting."""
        link = self._link
        if link.liveness.note_of("writer") == "unused":
            raise EndOfStream(f"channel {link.channel.name!r} was closed without a message")
        if link.liveness.is_gone("writer"):
            raise PeerLost(f"the writer of channel {link.channel.name!r} is gone, and so is the end of the stream")
        return False

    def _stop(self, failure: TransportError) -> None:
        """Let go of the socket; from now on `read` raises `failure`."""
        if self._failure is None:
            self._link.liveness.leave_note()
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
    summary: ClassVar[str] = "ZeroMQ XPUB/SUB over ipc:// (Unix sockets), with credit: lossless broadcast"
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
            return Address(self.name, channel, self._location(channel))
        except OSError as error:
            remove_directory(channel.name)
            raise TransportError(f"no endpoint for channel {channel.name!r}: {error}") from error

    def _location(self, channel: ChannelSpec) -> str:
        path = channel_directory(channel.name) / "messages"
        if len(str(path)) > zmq.IPC_PATH_MAX_LEN:
            raise OSError(f"{path} is too long for a socket's path; set TMPDIR to a shorter folder")
        return f"ipc://{path}{SEPARATOR}ipc://{path.with_name('receipts')}"

    def open_writer(self, address: Address) -> Writer:
        self.probe()
        return _ZmqWriter(address)

    def open_reader(self, address: Address, index: int) -> Reader:
        self.probe()
        reader = _ZmqReader(address, index)
        if address.channel.delivery == "every_message":
            return reader
        return LatestValueReader(reader, f"{address.channel.name} reader-{index}", views_last=True)

    def destroy(self, address: Address) -> None:
        remove_directory(address.channel.name)
        for port in _ports.pop(address.channel.name, ()):
            port.close()


class ZmqTcp(ZmqIpc):
    """ZeroMQ over loopback TCP. The process that makes a channel reserves its ports until it destroys it or ends."""

    name: ClassVar[str] = "zmq-tcp"
    summary: ClassVar[str] = "ZeroMQ XPUB/SUB over tcp:// on the loopback interface, with credit: lossless broadcast"

    def _location(self, channel: ChannelSpec) -> str:
        # Linux lets the writer bind a port again if both sockets say so and this one never listens, and gives it to
        # nobody who asks for just any port. Elsewhere the reservation has to end here.
        ports = _ports[channel.name] = [sockets.socket(), sockets.socket()]
        try:
            for port in ports:
                port.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
                port.bind(("127.0.0.1", 0))
            return SEPARATOR.join(f"tcp://127.0.0.1:{port.getsockname()[1]}" for port in ports)
        finally:
            if sys.platform != "linux":
                for port in _ports.pop(channel.name):
                    port.close()
