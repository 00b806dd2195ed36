"""ZeroMQ: lossless broadcast over Unix sockets (`zmq`), or loopback TCP with keys (`zmq-tcp`) and without.

Messages go from an XPUB socket to one SUB socket per reader. A reader subscribes to everything and to its own role.
XPUB reports each topic that is subscribed or unsubscribed, so the writer knows without sleeping when all readers are
connected, and notices which have gone. XPUB_VERBOSE is not needed, since every role is a different topic.

Flow control is by credit: after every few messages, a reader sends a receipt, by PUSH to the writer's PULL. The writer
stops when the slowest reader is 1.25 MiB of messages behind, but at least 4 messages and at most 1,024 or `depth`; or a
half more, since receipts arrive that late. More messages in a row mean fewer switches between processes; more bytes fit
neither in caches nor in the heap that the C library keeps. ZeroMQ's own high-water marks are off: they limit two queues
but not the kernel's buffers between them, so a reader could be thousands of small messages behind; and a reader whose
queue is full when the writer's process ends loses what it has not taken from a Unix socket. Receipts have a separate
connection because TCP drops undelivered data if an endpoint closes before it has read everything.

The end of the stream is the only message of two (empty) frames, so other messages pay nothing for it and no payload
looks like it.

`latest_value` is a thread of the reader that reads every message and keeps the latest. ZMQ_CONFLATE cannot be used: its
buffer drops a value that is written while the reader looks; if that was the last one, the reader waits forever.
"""

from __future__ import annotations

import re
import select
import socket as sockets
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ipcbench.backend import (
    PLAIN_TYPES,
    Address,
    Capabilities,
    Message,
    Reader,
    Writer,
    bytes_of,
    unavailable,
)
from ipcbench.backends.zmq.sockets import TRY_S, Places, SocketPair, absence, credit, keys_path, make_keys
from ipcbench.errors import EndOfStream, MessageTooLarge, TransportError
from ipcbench.patterns import with_patterns
from ipcbench.sync.directory import (
    as_transport_errors,
    channel_directory,
    channel_file,
    channel_token,
    require_socket_path,
)
from ipcbench.sync.folder import FolderBackend
from ipcbench.sync.interrupts import is_of_handler, uninterrupted, whole
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.peers import PeerEndpoint
from ipcbench.sync.wait import Doorbell, Watch
from ipcbench.util.clock import deadline_ns, now_ns

if absence is None:
    import zmq

_NOBLOCK = 1
_SUBSCRIBED = b"\1"
_GREETING = b"+"
"""Begins what a reader sends before its receipts."""
_FRAME_BYTES = 2**17
"""From this size on, a received message stays in libzmq's memory, which is cheaper than a copy."""

_CLOSE_NS = 1_000_000_000
"""How long `close` waits for a thread that reads; such a thread looks whether it should leave ten times a second."""

_PORTS = re.compile(r"[^\n]*\n[^\n]*\n(tcp://(\S+):([1-9][0-9]{0,4}))\n(tcp://(\S+):([1-9][0-9]{0,4}))")
_LOOPBACK = "127.0.0.1"

_ports: dict[str, list[sockets.socket]] = {}
"""Channel → bound sockets that never listen: they reserve the channel's ports."""


class _ZmqEndpoint(PeerEndpoint):
    """What both endpoints have in common."""

    _pair: SocketPair

    def __init__(self, address: Address, places: Places, *index: int) -> None:
        self._places = places
        super().__init__(address, *index)

    def _drop(self) -> None:
        self._pair.let_go()


class _ZmqWriter(_ZmqEndpoint, Writer):
    """The XPUB endpoint."""

    def _open(self, undo: ExitStack) -> None:
        channel = self._channel
        self._pair = pair = SocketPair(channel, self._places, self._liveness, zmq.XPUB, zmq.PULL)
        pair.socket.set(zmq.XPUB_NODROP, 1)
        pair.bind()
        self._limit_bytes = channel.max_message_bytes
        self._awaited = {role.encode() for role in reader_roles(channel)}
        self._silent = set(self._awaited)  # who has not said over the connection for receipts that it is there
        self._read = dict.fromkeys(self._awaited, 0)
        self._window, self._batch = credit(channel)
        self._begun = False
        self._room = self._granted = 0
        self._send: Callable[..., Any] = super(zmq.Socket, pair.socket).send  # bypasses pyzmq's Python layer

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        if size_bytes > self._limit_bytes and self._failure is None:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        if not self._room:
            self._make_room(deadline_ns(timeout_s))
        try:
            self._send(message, _NOBLOCK)
        except zmq.ZMQError as error:
            if is_of_handler(error, "zmq/"):
                raise
            raise TransportError(f"channel {self._channel.name!r}: {error}") from error
        self._room -= 1

    def _make_room(self, deadline: int | None) -> None:
        """Wait until all readers are connected and none is too far behind; after a loss or `close`, raise its error."""
        self._require_usable()
        pair = self._pair
        self._handle_reports()
        while self._awaited or self._silent:
            socket = pair.socket if self._awaited else pair.receipts
            handle = self._handle_report if self._awaited else self._handle_receipt
            if pair.wait(socket, deadline, self._check_awaited):
                self._take(socket, handle)
        if not self._begun:
            pair.all_came()
            self._begun = True
        while int(pair.receipts.get(zmq.EVENTS)) & zmq.POLLIN:
            self._take(pair.receipts, self._handle_receipt)
        while not self._count_room():
            if pair.wait(pair.receipts, deadline, self._check_readers):
                self._take(pair.receipts, self._handle_receipt)

    def _take(self, socket: zmq.Socket[bytes], handle: Callable[[bytes], None]) -> None:
        """Receive a message that is there, and handle it."""
        try:
            handle(socket.recv(zmq.NOBLOCK))
        except BaseException as error:
            if error is self._failure or (isinstance(error, zmq.ZMQError) and not is_of_handler(error, "zmq/")):
                raise
            self._failure = TransportError(
                f"a write to channel {self._channel.name!r} was interrupted by {type(error).__name__}, and a "
                "receipt may be lost: close the writer, destroy the channel and make another"
            )
            raise

    def _count_room(self) -> int:
        granted = min(self._read.values(), default=self._granted) + self._window
        self._room, self._granted = granted - self._granted, granted
        return self._room

    def _handle_receipt(self, role: bytes) -> None:
        if role in self._read:
            self._read[role] += self._batch
        else:
            self._silent.discard(role.removeprefix(_GREETING))

    def _handle_reports(self) -> bool:
        """Handle all reports; return whether there were any."""
        any_report = False
        while int(self._pair.socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._take(self._pair.socket, self._handle_report)
            any_report = True
        return any_report

    def _handle_report(self, report: bytes) -> None:
        """Handle a report that a topic was subscribed (1) or unsubscribed (0): a reader's role, or the empty topic."""
        role = report[1:]
        if role not in self._read:  # the empty topic, a reader that has closed, or a stranger of the same user's
            return
        if report[:1] == _SUBSCRIBED:
            self._awaited.discard(role)
        elif self._liveness.note_at_end(role.decode()) is None:
            self._fail(self._lost(role.decode()))
        else:
            del self._read[role]
            self._silent.discard(role)

    def _check_readers(self) -> bool:
        """Look for readers that are gone; return whether there were reports. A dead reader's child may hold on to its
        connection, so that no report comes.
        """
        for role in self._read:
            if self._liveness.is_gone(role.decode()) and self._liveness.note_of(role.decode()) is None:
                self._fail(self._lost(role.decode()))
        return self._handle_reports()

    def _check_awaited(self) -> bool:
        """Stop waiting for readers that have closed already; return whether there were any."""
        liveness = self._liveness
        waiting = self._awaited | self._silent
        for role in sorted(waiting):
            if liveness.note_of(role.decode()) is not None:
                self._awaited.discard(role)
                self._silent.discard(role)
                self._read.pop(role, None)
            elif liveness.is_gone(role.decode()):
                self._fail(self._lost(role.decode()))
        return waiting != self._awaited | self._silent

    def _refuse(self, failure: TransportError) -> None:
        self._room = 0
        super()._refuse(failure)

    def _close(self) -> None:
        pair = self._pair
        self._refuse_all()
        try:
            if self._begun:
                self._send(b"", zmq.SNDMORE | _NOBLOCK)
                self._send(b"", _NOBLOCK)
            self._liveness.leave_note("ended" if self._begun else "unused")
            if not self._begun:  # nothing on the wire tells a reader, which may not even have connected
                self._ring_bells()
        finally:
            if self._begun:
                pair.close_gently(set(self._read))
            else:
                pair.close()

    def _ring_bells(self) -> None:
        for role in sorted(self._read):
            with suppress(TransportError):  # it does not wait on a descriptor
                bell = Doorbell(self._pair.bell_path(role.decode()))
                bell.ring()
                bell.close()


class _ZmqReader(_ZmqEndpoint, Reader):
    """A SUB endpoint."""

    def _open(self, undo: ExitStack) -> None:
        role = self._liveness.role
        self._pair = pair = SocketPair(self._channel, self._places, self._liveness, zmq.SUB, zmq.PUSH)
        pair.connect()
        pair.socket.subscribe(b"")
        pair.socket.subscribe(role)  # second: when it is reported to the writer, the first is in effect
        self._receipt = role.encode()
        pair.receipts.send(_GREETING + self._receipt, zmq.NOBLOCK)
        self._until_receipt = self._batch = credit(self._channel)[1]
        self._recv: Callable[..., Any] = super(zmq.Socket, pair.socket).recv
        self._send: Callable[..., Any] = super(zmq.Socket, pair.receipts).send
        self._copy = True
        self._watch: Watch | None = None
        self._bell: Doorbell | None = None
        self._reads = False  # whether a thread is in `read`
        self._waits = False  # whether it waits outside of libzmq, where an interrupt loses nothing

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._reads = True
        try:
            try:
                message = self._recv(0 if timeout_s is None or timeout_s >= TRY_S else _NOBLOCK, self._copy)
            except zmq.Again as error:
                if is_of_handler(error, "zmq/"):
                    self._break(error)
                    raise
                message = None
            if message is None:
                message = self._await(timeout_s)
            size_bytes = len(message)
            self._copy = size_bytes < _FRAME_BYTES
            if not size_bytes and self._pair.socket.get(zmq.RCVMORE):
                self._stop(EndOfStream(f"channel {self._channel.name!r} has ended"))
                self._require_usable()
            self._until_receipt -= 1
            if not self._until_receipt:
                self._send(self._receipt, _NOBLOCK)
                self._until_receipt = self._batch
            return memoryview(message)
        except BaseException as error:
            if isinstance(error, TransportError) and not is_of_handler(error):
                raise
            if isinstance(error, zmq.ZMQError) and not is_of_handler(error, "zmq/"):
                raise TransportError(f"channel {self._channel.name!r}: {error}") from error
            deadline_ns(timeout_s)  # raises if the time-out is at fault
            if not (self._waits or self._is_released):
                self._break(error)
            raise
        finally:
            self._reads = self._waits = False

    def fileno(self) -> int:
        self._require_open()
        if self._watch is None:
            with as_transport_errors(f"cannot wait for channel {self._channel.name!r}"):
                self._watch = Watch()
                if self._failure is None:
                    self._watch.add(int(self._pair.socket.get(zmq.FD)))  # which libzmq closes at the end of the stream
                    self._add_bell(self._watch)
        return self._watch.fileno()

    def _add_bell(self, watch: Watch) -> None:
        """Watch a bell, too, by which a writer tells that it has closed without a message."""
        path = self._pair.bell_path(self._liveness.role)
        with suppress(FileExistsError):
            Doorbell.make(path)
        self._bell = Doorbell(path)
        watch.add(self._bell.fileno())
        if self._liveness.note_of("writer") == "unused":  # it has closed before there was a bell
            self._bell.ring()

    def _await(self, timeout_s: float | None) -> Any:
        """Wait for a message outside of libzmq, and return it."""
        self._require_usable()
        if self._bell is not None:
            self._check_note()
        self._waits = True
        self._pair.wait(self._pair.socket, deadline_ns(timeout_s), self._check_writer)
        self._waits = False
        return self._recv(_NOBLOCK, self._copy)

    def _break(self, error: BaseException) -> None:
        """Read no more: pyzmq drops a message that it has received if a signal handler then raises an exception."""
        self._refuse(
            TransportError(
                f"a read of channel {self._channel.name!r} was interrupted by {type(error).__name__}, and a message "
                "may be lost: close the reader, destroy the channel and make another"
            )
        )
        self._is_released = True
        uninterrupted(self._pair.close)

    def _check_writer(self) -> bool:
        """Raise if nothing more can arrive; else return False, to continue waiting."""
        self._require_usable()
        self._check_note()
        if self._liveness.is_gone("writer"):
            self._fail(self._lost())
        return False

    def _stop(self, failure: TransportError) -> None:
        """Close the sockets; from now on `read` raises `failure`."""
        self._refuse(failure)
        uninterrupted(self._close_once)

    def _refuse(self, failure: TransportError) -> None:
        super()._refuse(failure)
        self._recv = self._receive_nothing

    def _receive_nothing(self, *_: object) -> None:
        self._require_usable()

    def _drop(self) -> None:
        super()._drop()
        self._stop_watching()

    def close(self) -> None:
        """Close; another thread that reads meanwhile gets EndpointClosed before its sockets go, which would abort."""
        self._require_no_call()
        self._refuse_all()
        deadline = now_ns() + _CLOSE_NS
        while self._reads and not self._is_released:  # a forked child has no such thread
            if now_ns() > deadline:
                raise TransportError(f"this reader of {self._channel.name!r} is in use by another thread")
            select.select([], [], [], 0.001)
        super().close()
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    def _close(self) -> None:
        try:
            self._liveness.leave_note()
        finally:
            self._pair.close()


@with_patterns
class ZmqIpc(FolderBackend):
    """ZeroMQ over a Unix socket in the channel's directory."""

    name: ClassVar[str] = "zmq"
    summary: ClassVar[str] = "ZeroMQ XPUB/SUB over ipc:// (Unix sockets), with credit: lossless broadcast"
    capabilities: ClassVar[Capabilities] = replace(FolderBackend.capabilities, holds_one_of_max=True)
    writer, reader, views_last = _ZmqWriter, _ZmqReader, True

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            raise unavailable(cls.name, absence, "zmq", "pip install pyzmq") from absence

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> list[str]:
        undo.callback(self.release, address)
        return self._reserve(address, folder)

    def _reserve(self, address: Address, directory: Path) -> list[str]:
        """Reserve what the sockets need; return what an address has to say of it besides its token."""
        require_socket_path(self._places(address).messages.removeprefix("ipc://"))
        return []

    def _places(self, address: Address) -> Places:
        """Return where the sockets for messages and for receipts are."""
        messages, receipts = (f"ipc://{channel_file(address, name)}" for name in ("messages", "receipts"))
        return Places(messages, receipts)

    def means(self, address: Address) -> tuple[Places]:
        self.probe()
        return (self._places(address),)

    @whole
    def destroy(self, address: Address) -> None:
        self.release(address)  # first: to remove the folder needs descriptors
        super().destroy(address)

    def release(self, address: Address) -> None:
        for port in _ports.pop(channel_token(address), ()):
            port.close()


class ZmqTcpInsecure(ZmqIpc):
    """ZeroMQ over plain loopback TCP: every user of the host can read the messages, and connect in a reader's place.

    For comparison with `ZmqTcp`. The process that makes a channel reserves its ports until it destroys it or ends.
    """

    name: ClassVar[str] = "zmq-tcp-insecure"
    summary: ClassVar[str] = "zmq-tcp without keys, to see what these cost: every user of this host can read along"
    capabilities: ClassVar[Capabilities] = replace(ZmqIpc.capabilities, private=False, remote=True)

    def _reserve(self, address: Address, directory: Path) -> list[str]:
        # Linux lets the writer bind the port again if both sockets set SO_REUSEADDR and this one never listens, and
        # does not assign it to sockets that ask for any free port. Elsewhere the reservation has to end here.
        ports = _ports[channel_token(address)] = []
        host = address.channel.host or _LOOPBACK
        family, shown = (sockets.AF_INET6, f"[{host}]") if ":" in host else (sockets.AF_INET, host)
        try:
            for _ in range(2):
                ports.append(port := sockets.socket(family))
                port.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
                port.bind((host, 0))
            return [f"tcp://{shown}:{port.getsockname()[1]}" for port in ports]
        finally:
            if sys.platform != "linux":
                for port in _ports.pop(channel_token(address)):
                    port.close()

    def _places(self, address: Address) -> Places:
        ports = _PORTS.fullmatch(address.location)
        hosts = {ports[2], ports[5]} if ports else set()
        is_one = len(hosts) == 1 if address.channel.host else hosts == {_LOOPBACK}
        if ports is None or not is_one or ports[3] == ports[6] or max(int(ports[3]), int(ports[6])) >= 2**16:
            raise TransportError(
                f"the address of channel {address.channel.name!r} names no two ports of one host, but "
                f"{address.location!r}; pass the address that `create` returned"
            )
        return Places(ports[1], ports[4])


class ZmqTcp(ZmqTcpInsecure):
    """ZeroMQ over loopback TCP, encrypted: only who can read the channel's directory, its owner, can connect."""

    name: ClassVar[str] = "zmq-tcp"
    summary: ClassVar[str] = "ZeroMQ XPUB/SUB over TCP, encrypted (CURVE), with credit: lossless broadcast"
    capabilities: ClassVar[Capabilities] = replace(ZmqIpc.capabilities, remote=True)

    def _reserve(self, address: Address, directory: Path) -> list[str]:
        make_keys(directory)
        return super()._reserve(address, directory)

    def _places(self, address: Address) -> Places:
        return super()._places(address)._replace(keys=keys_path(channel_directory(address)))
