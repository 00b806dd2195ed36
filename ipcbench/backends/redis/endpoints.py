"""The writer and the readers of a channel through a server; `backend` says how they use it."""

from __future__ import annotations

import contextlib
from typing import Any

from ipcbench.backend import PLAIN_TYPES, Address, Message, Reader, Writer, bytes_of
from ipcbench.backends.redis.wire import ANSWER_NS, Wire, command
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.directory import as_transport_errors, channel_token
from ipcbench.sync.interrupts import is_of_handler
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.peers import PeerEndpoint, far_count
from ipcbench.sync.server import url_of
from ipcbench.util.clock import deadline_ns, now_ns

GONE = 10**15
"""Count of messages read of a reader that has closed, so that it never holds the writer back."""

_JOIN_BYTES = 2**14
"""Up to this size, a message is joined to its command, which is cheaper than sending three pieces."""
_PROMPT_NS = 100_000_000
"""How long an answer of a server that does not block may take, if the caller's time-out is shorter."""
_MOST_UNTAKEN = 32
"""After so many messages at most, a writer takes the replies that have come."""
_MOST_BULK, _BULK_BYTES = 64, 2**20
_DESCRIPTORS = 5
"""More than an endpoint opens."""

_PUSH = """
local readers, least = #KEYS / 2, nil
local done = redis.call('MGET', unpack(KEYS, 1, readers))
for i = 1, readers do
    local count = tonumber(done[i] or 0)
    if count < {gone} then {replace}redis.call('RPUSH', KEYS[readers + i], ARGV[1], ARGV[2]) end
    if not least or count < least then least = count end
end
return string.format('%.0f', least)
"""
"""Pushes a message, behind its number, to the list of every reader that has not closed; returns how many the slowest
has read.
"""
_REPLIES = 3
"""To what a reader asks."""
_REPLACE = "redis.call('DEL', KEYS[readers + i]) "


class Keys:
    """The keys of a channel: of all readers' messages, ends and counts; and of the writer's wait for room."""

    def __init__(self, address: Address) -> None:
        prefix = f"{{{address.channel.name}-{channel_token(address)}}}"  # a cluster keeps what is in braces together
        readers = range(address.channel.readers)
        self.messages = [f"{prefix}:messages-{index}" for index in readers]
        self.ends = [f"{prefix}:end-{index}" for index in readers]
        self.counts = [f"{prefix}:read-{index}" for index in readers]
        self.waiting, self.room = f"{prefix}:waiting", f"{prefix}:room"
        self.all = [*self.messages, *self.ends, *self.counts, self.waiting, self.room]


def bulk_of(channel: ChannelSpec) -> int:
    """Return how many messages a reader takes at once, at most. It counts them only when it has read all of them, so
    the channel may hold so many more than `depth`, less one.
    """
    if channel.delivery == "latest_value":
        return 1
    return max(1, min(channel.depth // 4, _MOST_BULK, _BULK_BYTES // max(1, channel.max_message_bytes)))


class RedisEndpoint(PeerEndpoint):
    """What both endpoints have in common."""

    def _open(self, undo: contextlib.ExitStack) -> None:
        self._keys, self._wires = Keys(self._address), list[Wire]()
        with as_transport_errors(f"no connection to the server of channel {self._channel.name!r}"):
            require_descriptors(_DESCRIPTORS)
        undo.callback(self._drop)
        self._wire = self._connect(self._liveness.role)

    def _connect(self, role: str) -> Wire:
        no_connection = f"no connection to the server of channel {self._channel.name!r}"
        with as_transport_errors(no_connection):
            try:
                wire = Wire(self._channel.name, url_of(self._liveness.directory), role)
            except ConnectionError as error:
                if is_of_handler(error):
                    raise
                raise PeerLost(f"{no_connection}, which has died: {error}") from error
        self._wires.append(wire)
        return wire

    def _drop(self) -> None:
        for wire in self._wires:
            wire.close()

    def _close(self) -> None:
        with contextlib.suppress(PeerLost):  # without the server, there is nobody to tell
            super()._close()


class RedisReader(RedisEndpoint, Reader):
    """Takes messages from a list of its own by BLMPOP, of which one stays outstanding when a call times out."""

    def _open(self, undo: contextlib.ExitStack) -> None:
        super()._open(undo)
        keys, channel = self._keys, self._channel
        most, index = bulk_of(channel), self._index
        self._end, count = keys.ends[index].encode(), keys.counts[index]
        token = command("RPOPLPUSH", keys.waiting, keys.room)
        pop = command("BLMPOP", "0", "2", keys.messages[index], keys.ends[index], "LEFT", "COUNT", str(2 * most))
        self._asks = [command("INCRBY", count, str(read)) + token + pop for read in range(most + 1)]
        self._leave = command("SET", count, str(GONE)) + command("DEL", keys.messages[index]) + token
        self._is_ahead = channel.delivery == "every_message"
        self._bulk: list[bytes] = []
        self._uncounted = self._came_count = 0

    def read(self, timeout_s: float | None = None) -> memoryview:
        if not self._bulk:
            self._require_usable()
            self._fetch(timeout_s)
        view = memoryview(self._bulk[-1])
        if self._is_ahead and len(self._bulk) == 1 and not self._wire.owed:
            try:
                self._ask()
            except PeerLost as loss:  # the next call will find out
                if is_of_handler(loss):
                    raise
        del self._bulk[-1]  # last: whoever is interrupted before gets the message again
        return view

    def _ask(self) -> None:
        """Count the messages of the last bulk, wake a writer that waits for that, and ask for the next bulk."""
        self._wire.request(self._asks[self._uncounted], _REPLIES)
        self._uncounted = 0

    def _fetch(self, timeout_s: float | None) -> None:
        """Wait for the next bulk. The answers before it say that the server has looked whether there is one."""
        wire, deadline = self._wire, deadline_ns(timeout_s)
        if not wire.owed and wire.got is None:
            self._ask()
        prompt = deadline and max(deadline, now_ns() + _PROMPT_NS)
        while wire.owed:
            until = prompt if wire.owed > 1 else deadline
            if not wire.receive(until):
                if until is not None and now_ns() >= until:
                    raise self._timed_out("no message in", timeout_s)
                self._check_writer()
        key, messages = wire.got
        if key == self._end:
            self._fail(EndOfStream(f"channel {self._channel.name!r} has ended"))
        count = len(messages) // 2
        if self._is_ahead and int(messages[-2]) != self._came_count + count:
            count = self._unbroken(messages[::2])
        bulk = messages[2 * count - 1 :: -2]
        self._bulk, self._uncounted, self._came_count, wire.got = bulk, count, self._came_count + count, None

    def _unbroken(self, numbers: list[bytes]) -> int:
        """Return how many messages come before the first that the server has refused; raise PeerLost if none does."""
        count = sum(int(number) == expected for expected, number in enumerate(numbers, self._came_count + 1))
        if not count:
            self._fail(PeerLost(f"the server of channel {self._channel.name!r} has refused a message of its writer"))
        return count

    def _check_writer(self) -> None:
        """Raise PeerLost if the writer has died and the server has nothing of it any more, not even its end."""
        if self._liveness.is_check_due() and self._liveness.is_gone("writer"):
            self._ask_aside(command("PING"), 1)  # what the server got before has been answered, too
            if not self._wire.receive(now_ns() + _PROMPT_NS):
                self._fail(self._lost())

    def _ask_aside(self, commands: bytes, replies: int) -> None:
        """Ask by another connection, since this one may be blocked."""
        with contextlib.closing(self._connect(f"{self._liveness.role}-aside")) as wire:
            wire.ask(commands, replies)

    def fileno(self) -> int | None:
        self._require_open()
        return int(self._wire.socket.fileno())

    def _say_goodbye(self) -> None:
        self._wire.close()
        if self._liveness.is_current():
            self._ask_aside(self._leave, 3)


class RedisWriter(RedisEndpoint, Writer):
    """Pushes each message to the lists of all readers, as many as they have room for, without waiting for answers."""

    def _open(self, undo: contextlib.ExitStack) -> None:
        super()._open(undo)
        channel, keys = self._channel, self._keys
        self._is_stream = channel.delivery == "every_message"
        self._limit_bytes = channel.max_message_bytes
        depth = far_count(channel) if channel.host else channel.depth
        self._window = depth + bulk_of(channel) - 1 if self._is_stream else GONE
        self._look_after = min(_MOST_UNTAKEN, -(-channel.depth // 2))
        self._written, self._room_until, self._look_at = 0, self._window, self._look_after
        self._is_token_out = False
        self._roles = reader_roles(channel)
        self._counts = command("MGET", *keys.counts)
        self._token = command("LPUSH", keys.waiting, "1")
        self._await_room = command("BLPOP", keys.room, "0")
        self._credit = self._connect("writer-credit")
        self._head, self._tail, self._replies = self._push()

    def _push(self) -> tuple[bytes, bytes, int]:
        """Return what comes before and after a message, and the number of replies."""
        keys = self._keys
        if self._is_stream and len(keys.messages) == 1:  # no script, which would copy the message twice
            return _but_two("RPUSH", keys.messages[0]), b"\r\n" + command("GET", keys.counts[0]), 2
        script = _PUSH.format(gone=GONE, replace="" if self._is_stream else _REPLACE)
        digest = self._wire.ask(command("SCRIPT", "LOAD", script))
        return _but_two("EVALSHA", digest, str(2 * len(keys.messages)), *keys.counts, *keys.messages), b"\r\n", 1

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        size_bytes = len(message)
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        if self._written >= self._look_at:
            self._take_replies()
            self._look_at = self._written + self._look_after
        if self._written >= self._room_until:
            self._make_room(timeout_s)
        if self._is_stream and self._room_until > GONE:
            return  # all readers have closed
        number = b"%d" % (self._written + 1)
        head = b"%b$%d\r\n%b\r\n$%d\r\n" % (self._head, len(number), number, size_bytes)
        pieces: tuple[Any, ...] = head, message, self._tail
        self._wire.send((b"".join(pieces),) if size_bytes <= _JOIN_BYTES else pieces, self._replies)
        self._written += 1

    def _take_replies(self) -> None:
        """Take the replies that have come.

        Raises:
            TransportError: the server has refused a message; from now on every call raises that.
        """
        try:
            while self._wire.owed and self._wire.receive(0):
                self._take(self._wire.got)
        except TransportError as refusal:
            if not is_of_handler(refusal):
                self._refuse(refusal)
            raise

    def _take(self, reply: Any) -> None:
        """Learn from a reply how many messages the slowest reader has read, if it says that."""
        if type(reply) is bytes:
            self._room_until = int(reply) + self._window
        elif type(reply) is list:
            self._room_until = min(int(count or 0) for count in reply) + self._window

    def _make_room(self, timeout_s: float | None) -> None:
        """Wait until the slowest reader is less than a window behind. The token, in the list of those who wait, comes
        before the look at the counts: a reader that counts later moves it to where it wakes this writer.
        """
        deadline, credit = deadline_ns(timeout_s), self._credit
        while True:
            counts = self._look(deadline)
            if self._written < self._room_until:
                return
            self._check_readers(counts)
            if credit.got is None and not credit.owed:
                credit.request(self._await_room, 1)
            if credit.got is not None or credit.receive(deadline):
                credit.got, self._is_token_out = None, False
            elif deadline is not None and now_ns() >= deadline:
                raise self._timed_out("no room in", timeout_s)

    def _look(self, deadline: int | None) -> list[bytes | None]:
        """Ask how many messages each reader has read, and leave a token, which wakes this writer when one has more."""
        is_token_out, self._is_token_out = self._is_token_out, True
        self._wire.request(self._counts if is_token_out else self._token + self._counts, 2 - is_token_out)
        self._wire.settle(deadline and max(deadline, now_ns() + _PROMPT_NS), self._take)
        counts: list[bytes | None] = self._wire.got
        return counts

    def _check_readers(self, counts: list[bytes | None]) -> None:
        """Raise PeerLost if one is gone which had not closed before the counts were looked at."""
        if self._liveness.is_check_due():
            for role, count in zip(self._roles, counts, strict=True):
                if self._liveness.is_gone(role) and int(count or 0) < GONE:
                    self._fail(self._lost(role))

    def _say_goodbye(self) -> None:
        """Tell the readers that the stream ends; one that was cut, or of which the server has refused something, ends
        by the release of the lock.
        """
        if self._failure is None and not self._wire.is_cut and self._liveness.is_current():
            self._wire.settle(now_ns() + ANSWER_NS, bool)  # first: a message that is refused raises here
            ends = [command("RPUSH", key, "1") for key in self._keys.ends]
            self._wire.ask(b"".join(ends), len(ends))


def _but_two(*words: str | bytes) -> bytes:
    """Return the beginning of a command that has two more words."""
    return command(*words, b"", b"").removesuffix(2 * b"$0\r\n\r\n")
