"""zenoh between hosts: over TCP, with credit by zenoh's own messages, as hosts share no words.

Each reader listens at a free port of its host, and the writer connects to all when all are there. It logs in by the
channel's secret, so no reader takes a stranger for its writer; but zenoh lets nobody ask who listens, so a program that
takes the port of a reader that has just died may get messages until the writer notices that. Nothing is encrypted.
Messages are numbered, since zenoh connects again where a connection breaks and loses what was under way.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import count
from struct import Struct
from typing import Any

from ipcbench.backend import Address, Message, bytes_of
from ipcbench.backends.zenoh.session import ERRORS, Session, zenoh
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.directory import as_transport_errors, channel_file, write_private
from ipcbench.sync.inbox import Inbox, InboxReader
from ipcbench.sync.interrupts import is_of_handler
from ipcbench.sync.liveness import CHECK_NS
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.loop import News
from ipcbench.sync.ownership import keep_for_ever
from ipcbench.sync.peers import PeerEndpoint, PeerWriter, credit
from ipcbench.sync.place import find, free_port, publish
from ipcbench.util.clock import deadline_ns, slice_s

_CHECK_S = CHECK_NS / 1e9
_COUNT = Struct("<Q")
_GONE = 2**63
"""Count of a reader that reads no more."""
_RECEIPTS_COUNT, _DESCRIPTORS, _PER_READER = 4, 24, 2
_USER, _SECRET, _USERS = "ipcbench", "secret", "users"
_LOOK_S = 0.005
_TRIES = 5
"""How often a reader looks for a free port, which another program may take before zenoh does."""


def make_login(address: Address) -> None:
    """Make the secret of a channel, and the file from which zenoh knows it.

    Raises:
        OSError: they cannot be written.
    """
    place = publish(channel_file(address, _SECRET), _USER)
    write_private(channel_file(address, _USERS), f"{_USER}:{place.secret}\n")


class FarEndpoint(PeerEndpoint):
    """What both endpoints have in common."""

    _session: Session | None = None
    _news: News

    def _open(self, undo: ExitStack) -> None:
        self._pid = os.getpid()
        self._window, self._batch = credit(self._channel, _RECEIPTS_COUNT)
        with as_transport_errors(f"cannot open the {self._liveness.role} of channel {self._channel.name!r}"):
            more = _PER_READER * self._channel.readers if self._liveness.role == "writer" else 0
            require_descriptors(_DESCRIPTORS + more)
            self._secret = find(channel_file(self._address, _SECRET)).secret

    def _login(self) -> dict[str, str]:
        users = str(channel_file(self._address, _USERS))
        return {"user": _USER, "password": self._secret, "dictionary_file": users}

    def _drop(self) -> None:
        self._news.close()
        session, self._session = self._session, None
        if session is not None and self._pid != os.getpid():
            keep_for_ever(session)  # to free it would touch threads that the child does not have
        elif session is not None:
            session.close()


class FarReader(FarEndpoint, InboxReader):
    """Listens as soon as it opens."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
        role, name = self._liveness.role, self._channel.name
        numbers, inbox = count(1), Inbox()
        self._receive_into(inbox)
        self._news = inbox.news
        with as_transport_errors(f"cannot listen at {self._channel.host}"):
            self._session, target = self._listening()
            session = self._session.session
            block = zenoh.CongestionControl.BLOCK
            self._counts = counts = session.declare_publisher(f"count/{role}", congestion_control=block, express=True)

            def take(sample: Any) -> None:
                number = sample.attachment.to_bytes()
                if not number:
                    counts.put(_COUNT.pack(_GONE))  # so that the writer need not wait until that is read
                    inbox.end(EndOfStream(f"channel {name!r} has ended"))
                elif int(number) == next(numbers):
                    inbox.put(sample.payload.to_bytes())
                else:
                    inbox.end(PeerLost(f"channel {name!r} has lost messages with a connection"))

            self._session.parts = [session.declare_subscriber(f"message/{role}", take)]
            write_private(channel_file(self._address, role), target)  # from now on the writer may connect

    def _listening(self) -> tuple[Session, str]:
        host = self._channel.host
        for left in reversed(range(_TRIES)):
            target = f"tcp/[{host}]:{free_port(host)}" if ":" in host else f"tcp/{host}:{free_port(host)}"
            try:
                return Session(self._channel, listen=[target], login=self._login()), target
            except ERRORS as error:
                if not left:
                    raise OSError(str(error)) from error
        raise AssertionError  # the last try has returned or raised

    def _tell_taken(self, count: int) -> None:
        self._counts.put(_COUNT.pack(count))

    def _say_goodbye(self) -> None:
        super()._say_goodbye()
        if self._liveness.is_current():
            self._tell_taken(_GONE)


class FarWriter(FarEndpoint, PeerWriter):
    """Connects when all readers listen."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
        self._news = News()
        self._limit_bytes = self._channel.max_message_bytes
        self._read = dict.fromkeys(reader_roles(self._channel), 0)
        """Role of a reader that has not left → how many messages it has read."""
        self._publishers: dict[str, Any] = {}
        self._sent_count = 0

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) is not bytes:
            message = bytes(bytes_of(message))
        if len(message) > self._limit_bytes and self._failure is None:
            raise MessageTooLarge(len(message), self._limit_bytes)
        if self._room <= 0:
            self._make_room(deadline_ns(timeout_s))
        try:
            self._room -= 1
            self._sent_count += 1
            self._put(message, b"%d" % self._sent_count)
        except BaseException as error:
            self._break(error)
            raise

    def _put(self, message: bytes, number: bytes) -> None:
        payload = zenoh.ZBytes(message)
        for role in list(self._read):
            self._publishers[role].put(payload, attachment=number)

    def _break(self, error: BaseException) -> None:
        """Write no more: nobody knows who has got what."""
        if not isinstance(error, TransportError) or is_of_handler(error):
            what = f"a write to channel {self._channel.name!r} was interrupted by {type(error).__name__}, maybe in the"
            self._refuse(
                TransportError(f"{what} middle of the readers: close it, destroy the channel and make another")
            )

    def _make_room(self, deadline: int | None) -> None:
        """Wait until all readers are connected and none is too far behind; after a loss or `close`, raise its error."""
        while True:
            self._require_usable()
            self._forget_those_who_left()
            absent = None if self._begun else self._absent()
            if absent is None and self._count_room(self._read.values()) > 0:
                return
            left_s = slice_s(deadline, _LOOK_S if absent else _CHECK_S)
            if not left_s:
                what = f"has no {absent} yet" if absent else "has no room: a reader is too far behind"
                raise TransportTimeout(f"channel {self._channel.name!r} {what}")
            self._news.wait(lambda: False, left_s)

    def _forget_those_who_left(self) -> None:
        is_due = self._liveness.is_check_due()
        for role, read_count in list(self._read.items()):
            if read_count == _GONE:
                self._leave_out(role)
            elif is_due and (self._liveness.is_gone(role) or self._liveness.note_of(role) is not None):
                self._forget(role)

    def _leave_out(self, role: str) -> None:
        self._read.pop(role, None)

    def _absent(self) -> str | None:
        """Return a reader that does not listen or is not connected yet; connect to all if all of them listen."""
        targets = []
        for role in self._read:
            try:
                targets.append(channel_file(self._address, role).read_text())
            except FileNotFoundError:
                return role
        if self._session is None:
            self._begin(targets)
        awaited = (role for role in self._read if not self._publishers[role].matching_status.matching)
        absent = next(awaited, None)
        self._begun = absent is None
        return absent

    def _begin(self, targets: list[str]) -> None:
        read, news = self._read, self._news

        def take(sample: Any) -> None:
            role = str(sample.key_expr).partition("/")[2]
            if role in read:
                (read[role],) = _COUNT.unpack(sample.payload.to_bytes())
            news.tell()

        with as_transport_errors(f"cannot connect to the readers of channel {self._channel.name!r}", Exception):
            self._session = Session(self._channel, connect=targets, login=self._login())
        session, block = self._session.session, zenoh.CongestionControl.BLOCK
        self._session.parts = [session.declare_subscriber("count/*", take)]
        roles = reader_roles(self._channel)
        made = [session.declare_publisher(f"message/{role}", congestion_control=block) for role in roles]
        self._publishers = dict(zip(roles, made, strict=True))

    def _say_goodbye(self) -> None:
        super()._say_goodbye()
        if self._begun:
            self._put(b"", b"")

    def _flush(self, timeout_s: float) -> None:
        """Wait until all readers have got the end, as they say."""
        deadline = deadline_ns(timeout_s)
        while self._begun and self._read and (left_s := slice_s(deadline, _CHECK_S)):
            self._news.wait(lambda: False, left_s)
            for role, read_count in list(self._read.items()):
                if read_count == _GONE or self._liveness.is_gone(role):
                    self._leave_out(role)
