"""The writer and the readers of a channel through a server; `backend` says how they use it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from ipcbench.backend import PLAIN_TYPES, Message, Reader, Writer, bytes_of
from ipcbench.backends.redis.wire import ANSWER_S, GONE, RedisEndpoint
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.peers import far_count
from ipcbench.util.clock import deadline_ns, now_ns

_MESSAGE, _END = b"message", b"end"
"""Names of the field of an entry."""
_MOST_BULK, _BULK_BYTES = 64, 2**20
_MOST_RECEIPTS = "1000"


def _credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and how many a reader takes at once, at most. It
    counts them only when it has read all of them, so the channel may hold so many more than its depth.
    """
    count = far_count(channel) if channel.host else channel.depth
    bulk = max(1, min(count // 4, _MOST_BULK, _BULK_BYTES // max(1, channel.max_message_bytes)))
    return count + bulk, bulk


class RedisReader(RedisEndpoint, Reader):
    """Takes entries by XREAD, of which one stays outstanding when a call times out."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
        self._read_next = "XREAD", "COUNT", f"{_credit(self._channel)[1]}", "BLOCK", "0", "STREAMS", self._messages
        self._entries: list[Any] = []
        self._peers = {"writer": 0}

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._require_usable()
        if not self._entries:
            self._fetch(timeout_s)
        identity, (kind, message) = self._entries[-1]
        number = int(identity.removesuffix(b"-0"))
        if kind == _END:
            self._fail(EndOfStream(f"channel {self._channel.name!r} has ended"))
        if self._is_stream and number > self._number + 1:
            self._fail(PeerLost(f"the server of channel {self._channel.name!r} has refused a message of its writer"))
        self._number = number
        view = memoryview(message)
        del self._entries[-1]  # last: whoever is interrupted before gets the message again
        return view

    def _fetch(self, timeout_s: float | None) -> None:
        """Say how much was read, and wait for more."""
        deadline = deadline_ns(timeout_s)
        if not self._owed and self._got is None:
            receipt = "RPUSH", self._receipts, f"{self._liveness.role} {self._number}"
            self._send(receipt, (*self._read_next, f"{self._number}-0"))
        while self._owed:
            self._await_reply("no message in", timeout_s, deadline)
        ((_, entries),) = self._got
        entries = entries[::-1]
        self._entries, self._got = entries, None

    def fileno(self) -> int:
        self._require_open()
        return int(self._socket.fileno())

    def _say_goodbye(self) -> None:
        if self._liveness.is_current():
            self._ask_aside("RPUSH", self._receipts, f"{self._liveness.role} {GONE}")


class RedisWriter(RedisEndpoint, Writer):
    """Adds messages as long as the slowest reader is not too far behind, without waiting for answers."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
        channel = self._channel
        self._limit_bytes = channel.max_message_bytes
        self._window = _credit(channel)[0] if self._is_stream else GONE
        self._peers = dict.fromkeys(reader_roles(channel), 0)
        self._least_read = 0
        self._pop = "1", self._receipts, "LEFT", "COUNT", _MOST_RECEIPTS

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        self._require_usable()
        if len(message) > self._limit_bytes:
            raise MessageTooLarge(len(message), self._limit_bytes)
        self._take_replies()
        if not self._has_room():
            self._make_room(timeout_s)
        number = self._number + 1
        kept = self._least_read + 1 if self._is_stream else number
        add = "XADD", self._messages, "MINID", f"{kept}-0", f"{number}-0", _MESSAGE, message
        self._send(add, ("LMPOP", *self._pop), number=number)

    def _has_room(self) -> bool:
        return self._number - self._least_read < self._window

    def _take_replies(self) -> None:
        """Take the replies that have come."""
        self._learn()  # again, in case that a call was interrupted before it did
        while self._owed and self._receive(0):
            self._learn()

    def _learn(self) -> None:
        """Learn from a reply how many messages readers have read, if it holds receipts."""
        if type(self._got) is list:
            for receipt in self._got[1]:
                role, _, count = receipt.decode().partition(" ")
                self._peers[role] = max(self._peers[role], int(count))  # the last one may overtake others
            self._least_read = min(self._peers.values())

    def _make_room(self, timeout_s: float | None) -> None:
        """Wait until the slowest reader is less than a window behind."""
        deadline = deadline_ns(timeout_s)
        while not self._has_room():
            if not self._owed:
                self._send(("PING",), ("BLMPOP", "0", *self._pop))  # the answer to PING comes although there is none
            self._await_reply("no room in", timeout_s, deadline)
            self._learn()

    def _say_goodbye(self) -> None:
        """Tell the readers that the stream ends; one of which the server has refused something ends by the release of
        the lock.
        """
        if self._failure is None and self._liveness.is_current():
            self._settle()  # first: a message that is refused raises here
            end = "XADD", self._messages, f"{self._number + 1}-0", _END, ""
            if self._owed and not self._has_room():
                self._ask_aside(*end)  # since BLMPOP blocks this connection
            else:
                self._send(end, ("PING",))
                self._settle()

    def _settle(self) -> None:
        """Wait for all replies but the last, which is never that to a message."""
        deadline = now_ns() + int(ANSWER_S * 1e9)
        while self._owed > 1:
            if not self._receive(deadline) and now_ns() >= deadline:
                raise TransportTimeout(f"the server of channel {self._channel.name!r} does not answer")
