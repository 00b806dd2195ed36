"""ZeroMQ: lossless broadcast over Unix sockets (`zmq`) or loopback TCP (`zmq-tcp`).

What does not live here: any message format but ZeroMQ's own frames, and any spinning (libzmq's threads always sleep).

One XPUB socket, one SUB socket a reader. XPUB_NODROP makes a full queue hold the writer instead of dropping. A reader
subscribes to everything and to its own name. XPUB reports a topic when it comes and when it goes, so the writer knows
without a sleep that all are there, and notices who has gone; XPUB_VERBOSE is not needed, since no two names are equal.

How much a channel holds for each reader: `depth` messages in the writer's and the reader's queue together, or 64 KiB in
each (at most 1,024 messages) if the channel's messages are small, because the kernel's socket buffers between the
queues hold as much anyway: about 200 KiB for `zmq`, 1 MiB for `zmq-tcp`. Each end may have one more message in hand. So
large messages keep to `depth`, give or take those two and the buffers, and small ones do not; but memory is bounded for
all, and a writer whose readers do not read is held.

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
_WRITES_PER_LOOK = 64
_LARGE_BYTES = 2**17
"""From this size on, a received message is left in libzmq's memory, which is cheaper than a copy."""

_ports: dict[str, sockets.socket] = {}
"""Bound sockets that never listen, by channel: they keep a channel's port from being given to others."""


class _ZmqWriter(Writer):
    """The XPUB end."""

    __slots__ = ("_awaited", "_begun", "_failure", "_limit_bytes", "_link", "_send", "_send_now", "_writes_to_look")

    def __init__(self, address: Address) -> None:
        self._link = link = Link(address, "writer", zmq.XPUB)
        link.socket.set(zmq.XPUB_NODROP, 1)
        link.attach(link.socket.bind, address.location)
        self._limit_bytes = address.channel.max_message_bytes
        self._awaited = set(reader_roles(address.channel))
        self._begun = False
        self._writes_to_look = _WRITES_PER_LOOK
        self._failure: TransportError | None = None
        self._send_now: Callable[..., Any] = super(zmq.Socket, link.socket).send  # past pyzmq's layer in Python
        self._send: Callable[..., Any] = self._refuse

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        size_bytes = message.nbytes if type(message) is memoryview else len(message)
        if size_bytes > self._limit_bytes and self._failure is None:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        try:
            self._send(message, 0 if timeout_s is None or timeout_s >= TRY_S else _NOBLOCK)
        except zmq.Again:
            held = True
        else:
            held = False
        if held:
            self._write_patiently(message, deadline_ns(timeout_s))
        self._writes_to_look -= 1
        if not self._writes_to_look:
            self._look_at_readers()

    def _refuse(self, _message: Message, _flags: int = 0) -> None:
        """Stand in for libzmq's `send` before all readers are there, after a loss, and after close."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        raise zmq.Again

    def _write_patiently(self, message: Message, deadline: int | None) -> None:
        link = self._link
        while self._awaited:
            link.until(self._hear_reader, zmq.RCVTIMEO, deadline, self._check_awaited)
        self._begun, self._send = True, self._send_now
        link.until(lambda: self._send(message), zmq.SNDTIMEO, deadline, self._look_at_readers)
        self._look_at_readers()

    def _hear_reader(self) -> None:
        """Take in one report of XPUB: a byte (1 came, 0 went) and the topic: a reader's role, or everything."""
        report = self._link.socket.recv()
        role = report[1:].decode()
        if report[0] == 1:
            self._awaited.discard(role)
        elif role and self._link.presence.note_of(role) is None:
            self._lose(role)

    def _look_at_readers(self) -> None:
        self._writes_to_look = _WRITES_PER_LOOK
        while int(self._link.socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._hear_reader()

    def _check_awaited(self) -> None:
        presence = self._link.presence
        for role in sorted(self._awaited):
            if presence.note_of(role) is not None:
                self._awaited.discard(role)
            elif presence.is_gone(role):
                self._lose(role)

    def _lose(self, role: str) -> None:
        self._failure = PeerLost(f"{role} of channel {self._link.channel.name!r} died without closing")
        self._send = self._refuse
        raise self._failure

    def close(self) -> None:
        if isinstance(self._failure, EndpointClosed):
            return
        link = self._link
        self._failure, self._send = EndpointClosed(f"the writer of {link.channel.name!r} is closed"), self._refuse
        if self._begun:
            link.socket.set(zmq.SNDHWM, 0)  # the end does not wait for room
            self._send_now(b"", zmq.SNDMORE | _NOBLOCK)
            self._send_now(b"", _NOBLOCK)
            link.presence.leave_note("ended")
            link.hang_up_gently()
        else:
            link.presence.leave_note("unused")
            link.hang_up()


class _ZmqReader(Reader):
    """A SUB end."""

    __slots__ = ("_copy", "_failure", "_link", "_recv")

    def __init__(self, address: Address, index: int) -> None:
        self._link = link = Link(address, reader_role(address.channel, index), zmq.SUB)
        link.attach(link.socket.connect, address.location)
        link.socket.subscribe(b"")
        link.socket.subscribe(link.presence.role)  # second: once the writer hears it, the first holds
        self._failure: TransportError | None = None
        self._recv: Callable[..., Any] = super(zmq.Socket, link.socket).recv
        self._copy = True

    def read(self, timeout_s: float | None = None) -> memoryview:
        try:
            message = self._recv(0 if timeout_s is None or timeout_s >= TRY_S else _NOBLOCK, self._copy)
        except zmq.Again:
            message = None
        if message is None:
            message = self._read_patiently(deadline_ns(timeout_s))
        size_bytes = len(message)
        self._copy = size_bytes < _LARGE_BYTES
        if not size_bytes and self._link.socket.get(zmq.RCVMORE):
            self._stop(EndOfStream(f"channel {self._link.channel.name!r} has ended"))
            self._refuse()
        return memoryview(message)

    def _read_patiently(self, deadline: int | None) -> Any:
        return self._link.until(lambda: self._recv(0, self._copy), zmq.RCVTIMEO, deadline, self._check_writer)

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
    summary: ClassVar[str] = "ZeroMQ XPUB/SUB over ipc:// (Unix sockets), XPUB_NODROP: lossless broadcast"
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
    summary: ClassVar[str] = "ZeroMQ XPUB/SUB over tcp:// on the loopback interface, XPUB_NODROP: lossless broadcast"

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
