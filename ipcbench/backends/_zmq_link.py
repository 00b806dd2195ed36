"""One ZeroMQ socket and its endpoint's place in the channel: made, tuned, waited on, and closed without a loss.

What does not live here: what is sent and received, and when a stream ends (ipcbench/backends/_zmq.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ipcbench.backend import Address
from ipcbench.clock import now_ns
from ipcbench.errors import TransportError, TransportTimeout
from ipcbench.presence import Presence

try:
    import zmq
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
else:
    absence = None
"""Why the library is not there; the backend's `probe` says how to install it."""

TRY_S, _TRY_MS = 0.1, 10
"""A call with this time-out or a longer one first waits `_TRY_MS` inside libzmq: most messages come or go in that time,
and are spared an exception. Shorter time-outs only look, and then wait exactly."""

_SLICE_MS = 100
"""Longest wait between two looks at whether the other side lives."""

_TCP_BUFFER_BYTES = 2**18
_RECONNECT_MS = 5

_LINGER_MS = 30_000
"""How long what a stopped reader does not take is kept after the writer's `close`."""

_CLOSE_S = 0.1
"""How long that `close` itself waits for the last messages to leave; then a thread goes on."""


class Link:
    """What both ends have: a place in the channel and a socket in a context of its own."""

    __slots__ = ("_context", "channel", "presence", "socket")

    def __init__(self, address: Address, role: str, kind: int) -> None:
        """Take the place and make the socket; `attach` connects it.

        Raises:
            TransportError: there is no such channel, or the place is taken.
        """
        self.channel = address.channel
        self.presence = Presence(address.channel, role)
        self._context = zmq.Context()
        self.socket = self._context.socket(kind)
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.set(zmq.RCVHWM, 0)
        self.socket.set(zmq.RCVTIMEO, _TRY_MS)
        self.socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        if address.location.startswith("tcp:"):  # else the kernel lets each buffer grow to several MiB
            self.socket.set(zmq.SNDBUF, _TCP_BUFFER_BYTES)
            self.socket.set(zmq.RCVBUF, _TCP_BUFFER_BYTES)

    def attach(self, bind_or_connect: Callable[[str], Any], endpoint: str) -> None:
        """Bind or connect the socket.

        Raises:
            TransportError: the endpoint cannot be had; the place is free again.
        """
        try:
            bind_or_connect(endpoint)
        except zmq.ZMQError as error:
            self.hang_up()
            raise TransportError(f"cannot use {endpoint}: {error}") from error

    def until(self, attempt: Callable[[], Any], deadline: int | None, check: Callable[[], None]) -> Any:
        """Return what `attempt` returns once it does not raise Again.

        Args:
            attempt: receives something.
            deadline: reading of the clock, in ns; None for never.
            check: called about every `_SLICE_MS`; raises if waiting is pointless.

        Raises:
            TransportTimeout: not by then.
        """
        try:
            while True:
                left_ms = _SLICE_MS if deadline is None else -(-(deadline - now_ns()) // 1_000_000)
                self.socket.set(zmq.RCVTIMEO, max(0, min(left_ms, _SLICE_MS)))
                try:
                    return attempt()
                except zmq.Again as error:
                    again = error
                self.presence.look(check)
                if deadline is not None and now_ns() >= deadline:
                    what = f"{self.presence.role} of channel {self.channel.name!r}: nothing moved in time"
                    raise TransportTimeout(what) from again
        finally:
            self.socket.set(zmq.RCVTIMEO, _TRY_MS)

    def hang_up(self) -> None:
        """Close the socket, drop what it still holds, and free the place."""
        self.socket.close(0)
        self._finish()

    def hang_up_gently(self) -> None:
        """Close the socket; a thread stays until libzmq has sent what it holds, for up to `_LINGER_MS`. Before that,
        the process does not end and the place is not free.
        """
        self.socket.close(_LINGER_MS)
        flush = threading.Thread(target=self._finish, name=f"{self.channel.name} flush")
        flush.start()
        flush.join(_CLOSE_S)

    def _finish(self) -> None:
        self._context.term()
        self.presence.vacate()
