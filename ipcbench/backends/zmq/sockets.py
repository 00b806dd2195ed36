"""One ZeroMQ socket and its endpoint's place in the channel: made, tuned, waited on, and closed without a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ipcbench.backend import Address
from ipcbench.errors import TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.liveness import Liveness
from ipcbench.util.clock import now_ns

try:
    import zmq
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
else:
    absence = None
"""Why the library is not there; the backend's `probe` says how to install it."""

SEPARATOR = "\n"
"""Between the endpoint of messages and that of receipts in an address."""

TRY_S, _TRY_MS = 0.1, 10
"""A call with this time-out or a longer one first waits `_TRY_MS` inside libzmq: most messages come or go in that time,
and are spared an exception. Shorter time-outs only look, and then wait exactly."""

_SLICE_MS = 100
"""Longest wait between two looks at whether the other side lives."""

_TCP_BUFFER_BYTES = 2**18
_RECONNECT_MS = 5

_SMALL_COUNT, _SMALL_BYTES = 1024, 2**18
_LARGE_COUNT, _LARGE_BYTES = 4, 2**22
_PROMPT_BYTES = 2**20
"""From this size on, a receipt for each message is cheap beside the message."""

_LINGER_S = 30
"""How long what a stopped reader does not take is kept after the writer's `close`."""

_HANG_UP_NS = 1_000_000_000
"""How long readers that read on need at most until they have read the end."""

GONE = b"\0"
"""First byte of XPUB's report that a topic has gone."""

_CLOSE_S = 0.1
"""How long that `close` itself waits for the last messages to leave; then a thread goes on."""


def credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and after how many it sends a receipt."""
    size_bytes = max(1, channel.max_message_bytes)
    count = max(channel.depth, min(_SMALL_COUNT, _SMALL_BYTES // size_bytes))
    if count > _LARGE_COUNT:
        count = max(_LARGE_COUNT, min(count, _LARGE_BYTES // size_bytes))
    batch = 1 if size_bytes >= _PROMPT_BYTES else max(1, count // 2)
    return count + batch - 1, batch


class Link:
    """What both ends have: a place in the channel, and two sockets, for messages and for receipts."""

    __slots__ = ("_context", "channel", "liveness", "receipts", "socket")

    def __init__(self, address: Address, role: str, kind: int, receipts_kind: int) -> None:
        """Take the place and make the sockets; `bind` or `connect` opens them.

        Raises:
            TransportError: there is no such channel, or the place is taken.
        """
        self.channel = address.channel
        self.liveness = Liveness(address.channel, role)
        self._context = zmq.Context()
        self.socket = self._context.socket(kind)
        self.receipts = self._context.socket(receipts_kind)
        for one in (self.socket, self.receipts):
            one.set(zmq.SNDHWM, 0)
            one.set(zmq.RCVHWM, 0)
            one.set(zmq.RCVTIMEO, _TRY_MS)
            one.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
            if address.location.startswith("tcp:"):  # else the kernel lets each buffer grow to several MiB
                one.set(zmq.SNDBUF, _TCP_BUFFER_BYTES)
                one.set(zmq.RCVBUF, _TCP_BUFFER_BYTES)

    def bind(self, location: str) -> None:
        """Be the side that the others connect to.

        Raises:
            TransportError: an endpoint cannot be had; the place is free again.
        """
        self._attach(location, (self.socket.bind, self.receipts.bind))

    def connect(self, location: str) -> None:
        """Connect as soon as the other side is there; raises as `bind`."""
        self._attach(location, (self.socket.connect, self.receipts.connect))

    def _attach(self, location: str, attach: tuple[Callable[[str], Any], ...]) -> None:
        try:
            for one, endpoint in zip(attach, location.split(SEPARATOR), strict=True):
                one(endpoint)
        except zmq.ZMQError as error:
            self.hang_up()
            raise TransportError(f"cannot use {location!r}: {error}") from error

    def receive(self, socket: zmq.Socket[bytes], copy: bool, deadline: int | None, check: Callable[[], bool]) -> Any:
        """Return what comes next on a socket, as bytes or, without `copy`, as a Frame; b"" if `check` ends the wait.

        Args:
            deadline: reading of the clock, in ns; None for never.
            check: called about every `_SLICE_MS`; returns whether the wait is over, and raises if it is pointless.

        Raises:
            TransportTimeout: not by then.
        """
        try:
            while True:
                left_ms = _SLICE_MS if deadline is None else -(-(deadline - now_ns()) // 1_000_000)
                socket.set(zmq.RCVTIMEO, max(0, min(left_ms, _SLICE_MS)))
                try:
                    return socket.recv(0, copy)
                except zmq.Again as error:
                    again = error
                if self.liveness.is_check_due() and check():
                    return b""
                if deadline is not None and now_ns() >= deadline:
                    what = f"{self.liveness.role} of channel {self.channel.name!r}: nothing moved in time"
                    raise TransportTimeout(what) from again
        finally:
            socket.set(zmq.RCVTIMEO, _TRY_MS)

    def hang_up(self) -> None:
        """Close the socket, drop what it still holds, and free the place."""
        self.receipts.close(0)
        self.socket.close(0)
        self._finish()

    def hang_up_gently(self, peers: set[bytes]) -> None:
        """Close the socket, but leave it time to send what it holds, in a thread that stays for up to `_LINGER_S`.

        Until then, the process does not end and the place is not free. First the thread waits for all `peers` to hang
        up, which they do when they have read the end: libzmq's own linger may go on to wait for a peer that has gone.
        """
        self.receipts.close(0)
        flush = threading.Thread(target=self._flush, args=(peers,), name=f"{self.channel.name} flush")
        flush.start()
        flush.join(_CLOSE_S)

    def _flush(self, peers: set[bytes]) -> None:
        deadline = now_ns() + _HANG_UP_NS
        while peers and now_ns() < deadline:
            try:
                report = self.socket.recv()
            except zmq.Again:
                continue
            if report[:1] == GONE:
                peers.discard(report[1:])
        self.socket.close(_LINGER_S * 1000 if peers else 0)
        self._finish()

    def _finish(self) -> None:
        self._context.term()
        self.liveness.release()
