"""Endpoints that know their peers by `Liveness` alone, without words that they share."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import NoReturn

from ipcbench.backend import Address, Endpoint
from ipcbench.errors import EndOfStream, EndpointClosed, PeerLost, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync.liveness import Liveness
from ipcbench.sync.locks import reader_role
from ipcbench.sync.ownership import Owned

_FAR_CREDIT_BYTES, _FAR_COUNT = 2**23, 512


def far_count(channel: ChannelSpec) -> int:
    """Return how many messages may be under way in a channel between hosts, at least its depth: as many as 1 Gbit/s
    sends in twice a round trip of 33 ms; of values, no more than its depth, or readers would be behind.
    """
    if channel.delivery == "latest_value":
        return channel.depth
    return max(channel.depth, min(_FAR_COUNT, _FAR_CREDIT_BYTES // max(1, channel.max_message_bytes)))


class PeerEndpoint(Owned, Endpoint):
    """An endpoint: how it opens, fails, and is closed."""

    _channel: ChannelSpec
    _liveness: Liveness
    _failure: TransportError | None = None
    """Raised by every later call but `close`."""

    def __init__(self, address: Address, *index: int) -> None:
        """Lock the endpoint: the writer, or a reader of that index.

        Raises:
            TransportError: there is no such channel, or the endpoint is open or was open before, or cannot open.
        """
        role = reader_role(address.channel, *index) if index else "writer"
        self._address, self._channel = address, address.channel
        (self._index,) = index or (0,)
        self._liveness = Liveness(address, role)
        with ExitStack() as undo:
            undo.callback(self._liveness.abandon)
            self._open(undo)
            undo.pop_all()
        self.opened()

    @abstractmethod
    def _open(self, undo: ExitStack) -> None:
        """Open what the endpoint needs; the last step makes it known. `undo` is done if that fails."""

    @abstractmethod
    def _drop(self) -> None:
        """Release what `_open` has opened."""

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    @property
    def closed(self) -> bool:
        return isinstance(self._failure, EndpointClosed)

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _require_open(self) -> None:
        if self.closed:
            self._require_usable()

    def _fail(self, failure: TransportError) -> NoReturn:
        """Raise this failure, now and in every later call."""
        self._refuse(failure)
        raise failure

    def _refuse(self, failure: TransportError) -> None:
        """Have every later call raise this failure."""
        self._failure = failure

    def _lost(self, role: str = "the writer") -> PeerLost:
        return PeerLost(f"{role} of channel {self._channel.name!r} died without closing")

    def _timed_out(self, what: str, timeout_s: float | None) -> TransportTimeout:
        return TransportTimeout(f"{what} channel {self._channel.name!r} within {timeout_s} s")

    def _check_note(self) -> None:
        """Raise EndOfStream, now and in every later call, if the writer has closed without a message."""
        try:
            self._liveness.check_unused()
        except EndOfStream as end:
            self._fail(end)

    def _refuse_all(self) -> None:
        self._refuse(EndpointClosed(f"this {self._liveness.role} of channel {self._channel.name!r} is closed"))

    def _close(self) -> None:
        try:
            self._say_goodbye()
        finally:
            self.let_go()

    def _say_goodbye(self) -> None:
        """Tell the peers that this endpoint closes."""
        self._liveness.leave_note()

    def let_go(self) -> None:
        self._is_released = True
        self._refuse_all()
        self._drop()
        self._liveness.release()
