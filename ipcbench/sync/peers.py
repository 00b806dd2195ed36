"""Endpoints that know their peers by `Liveness` alone, without words that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NoReturn

from ipcbench.backend import Address, Endpoint, Writer
from ipcbench.errors import EndOfStream, EndpointClosed, PeerLost, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync.interrupts import in_background
from ipcbench.sync.liveness import Liveness
from ipcbench.sync.locks import reader_role
from ipcbench.sync.ownership import Owned

_FAR_CREDIT_BYTES, _FAR_COUNT = 2**23, 512
_LINGER_S, _CLOSE_S = 30.0, 0.1
"""How long a closed writer continues to send to slow readers, and how long `close` waits for it."""


def far_count(channel: ChannelSpec) -> int:
    """Return how many messages may be under way in a channel between hosts, at least its depth: as many as 1 Gbit/s
    sends in twice a round trip of 33 ms; of values, no more than its depth, or readers would be behind.
    """
    if channel.delivery == "latest_value":
        return channel.depth
    return max(channel.depth, min(_FAR_COUNT, _FAR_CREDIT_BYTES // max(1, channel.max_message_bytes)))


def credit(channel: ChannelSpec, receipts_count: int, most_count: int | None = None) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and after how many it sends a receipt.

    Args:
        channel: of which the depth counts; between hosts, `far_count`.
        receipts_count: how many receipts a reader sends for that depth.
        most_count: the largest depth that counts.
    """
    count = far_count(channel) if channel.host else channel.depth
    if most_count is not None:
        count = min(count, most_count)
    batch = max(1, count // receipts_count)
    return count + batch - 1, batch


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


class PeerWriter(PeerEndpoint, Writer):
    """A writer that may write as far as its readers' receipts give it credit, and that goes on to send to slow readers
    after its `close`.
    """

    _window: int
    """How many messages the slowest reader may be behind."""
    _room = _granted = 0
    """How many messages may be written before the next look at the receipts, and how many in all."""
    _begun = False
    """Whether all readers had come, so that something may have been written."""

    @abstractmethod
    def _flush(self, timeout_s: float) -> None:
        """Wait until everything is sent, or `timeout_s` are over."""

    @abstractmethod
    def _leave_out(self, role: str) -> None:
        """Send nothing more to a reader, and expect nothing of it."""

    def _count_room(self, read_counts: Iterable[int]) -> int:
        """Return how many messages may be written if each reader has read so many, once there is no room."""
        granted = min(read_counts, default=self._granted) + self._window
        self._room, self._granted = granted - self._granted, granted
        return self._room

    def _forget(self, role: str) -> None:
        """Forget a reader that is gone.

        Raises:
            PeerLost: it did not close.
        """
        note = self._liveness.note_at_end(role)
        self._leave_out(role)
        if note is None:
            self._fail(self._lost(role))

    def _refuse(self, failure: TransportError) -> None:
        self._room = 0
        super()._refuse(failure)

    def _say_goodbye(self) -> None:
        self._liveness.leave_note("ended" if self._begun else "unused")

    def _close(self) -> None:
        self._refuse_all()
        try:
            self._say_goodbye()
        finally:
            self._refuse_all()  # again: a reader may have turned out to be dead
            self._linger()

    def _linger(self) -> None:
        in_background(self._end, f"{self._channel.name} flush", _CLOSE_S)

    def _end(self) -> None:
        self._flush(_LINGER_S)
        self.let_go()
