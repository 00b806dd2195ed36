"""What all endpoints have in common: their place, what they hold, how they fail and how they wait."""

from __future__ import annotations

import math
import select
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

from ipcbench.backend import Address, Endpoint, Message, Reader, Writer, bytes_of
from ipcbench.backends.mp.kept import take
from ipcbench.errors import (
    EndOfStream,
    EndpointClosed,
    IpcbenchError,
    MessageTooLarge,
    PeerLost,
    TransportError,
    TransportTimeout,
)
from ipcbench.spec import WaitStrategy
from ipcbench.sync.interrupts import is_of_handler
from ipcbench.sync.liveness import CHECK_NS, Liveness
from ipcbench.sync.ownership import Owned
from ipcbench.sync.parent import in_parent
from ipcbench.util.clock import deadline_ns, remaining_s

_SLICE_S, _SLICE_MS = CHECK_NS / 1e9, CHECK_NS // 1_000_000


def slice_s(deadline: int | None) -> float:
    """Return how long to wait before the peers are looked at again."""
    left_s = remaining_s(deadline)
    return _SLICE_S if left_s is None else min(_SLICE_S, left_s)


def poller(fd: int, event: int) -> Callable[[int], object]:
    """Return what waits, for some ms, until a descriptor is ready or its other end is gone; its answer is then true."""
    polling = select.poll()
    polling.register(fd, event)
    return polling.poll


class MpEndpoint(Owned, Endpoint):
    """An endpoint, with what the parent has handed over."""

    _failure: TransportError | None = None
    _is_broken = False

    def __init__(self, address: Address, role: str) -> None:
        self._address, self._channel, self._role = address, address.channel, role
        self._liveness = Liveness(address, role)
        try:
            self._hold(in_parent(take, address, role))
        except BaseException:
            self._liveness.abandon()
            raise
        self.opened()

    @abstractmethod
    def _hold(self, end: Any) -> None:
        """Take what the parent has handed over."""

    def _flush(self) -> None:
        """Send what is left, and that the stream ends."""

    @abstractmethod
    def _drop(self) -> None:
        """Let go of what the parent has handed over."""

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    @property
    def closed(self) -> bool:
        return isinstance(self._failure, EndpointClosed)

    def let_go(self) -> None:
        self._is_released = True
        self._refuse()
        self._drop()
        self._liveness.release()

    def _close(self) -> None:
        is_whole = not self._is_broken
        self._refuse()
        self._finish(is_whole=is_whole)

    def _finish(self, *, is_whole: bool) -> None:
        try:
            if is_whole:
                self._flush()
                self._liveness.leave_note()
        finally:
            self._drop()
            self._liveness.release()

    def _refuse(self) -> None:
        self._failure = EndpointClosed(f"this endpoint of channel {self._channel.name!r} is closed")

    def _fail(self, failure: TransportError, cause: BaseException | None = None) -> NoReturn:
        self._failure = failure
        raise failure from cause

    def _lose(self, role: str, cause: BaseException | None = None) -> NoReturn:
        self._fail(PeerLost(f"the {role} of channel {self._channel.name!r} died without closing"), cause)

    def _break(self, error: BaseException) -> None:
        """Go on no more: after an exception of a signal handler, nobody knows what was sent or taken."""
        self._is_broken = self._role == "writer"  # and its readers lose it
        self._failure = TransportError(
            f"a call on channel {self._channel.name!r} was interrupted by {type(error).__name__}, maybe in the middle "
            "of a message: close the endpoint, destroy the channel and make another"
        )

    def _judge(self, error: BaseException) -> NoReturn:
        """Raise what an error of a call means."""
        if is_of_handler(error, self._made) or not isinstance(error, IpcbenchError | EOFError | OSError):
            self._break(error)
        if isinstance(error, IpcbenchError) or self._failure is not None:
            raise error
        self._lose(self._carrier, error)

    _carrier = "writer"
    """What is gone when its connection ends."""
    _made = ""
    """File of code that multiprocessing makes as it runs."""

    def _has_closed(self, role: str) -> bool:
        """Return whether a peer has closed.

        Raises:
            PeerLost: it has died.
        """
        if self._liveness.note_of(role) is not None:
            return True
        if self._liveness.is_check_due() and self._liveness.is_gone(role) and self._liveness.note_of(role) is None:
            self._lose(role)
        return False


class MpWriter(MpEndpoint, Writer):
    """Hands each message to every reader that has not closed."""

    def __init__(self, address: Address) -> None:
        self._limit_bytes = address.channel.max_message_bytes
        super().__init__(address, "writer")

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if type(message) is not bytes:
            message = bytes(bytes_of(message))
        if len(message) > self._limit_bytes:
            raise MessageTooLarge(len(message), self._limit_bytes)
        try:
            self._send(message, timeout_s)
        except BaseException as error:
            self._judge(error)

    @abstractmethod
    def _send(self, message: bytes, timeout_s: float | None) -> None:
        """Send a message to all readers, or to none."""

    def _full(self, role: str, cause: BaseException | None = None) -> NoReturn:
        raise TransportTimeout(f"no room in channel {self._channel.name!r}: {role} is too far behind") from cause


class MpReader(MpEndpoint, Reader):
    """Gets its messages, and then None."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        self._await(timeout_s)
        try:
            message = self._receive(timeout_s)
        except BaseException as error:
            self._judge(error)
        if message is None:
            self._fail(EndOfStream(f"the writer of channel {self._channel.name!r} has closed"))
        return memoryview(message)

    _poll: Callable[[int], object]
    """Waits, for some ms, until there is something to receive or the writer's process has gone."""

    def _await(self, timeout_s: float | None) -> None:
        """Wait until there is something to receive. No time-out ends the wait for the rest of a message."""
        deadline = None if timeout_s is None else deadline_ns(timeout_s)
        while not self._poll(_SLICE_MS if deadline is None else math.ceil(1e3 * slice_s(deadline))):
            self._has_closed("writer")
            if remaining_s(deadline) == 0.0:
                self._late(timeout_s)

    def _late(self, timeout_s: float | None, cause: BaseException | None = None) -> NoReturn:
        raise TransportTimeout(f"no message in channel {self._channel.name!r} within {timeout_s} s") from cause

    @abstractmethod
    def _receive(self, timeout_s: float | None) -> bytes | None:
        """Return the next message, which is there or on its way; None for the end of the stream."""
