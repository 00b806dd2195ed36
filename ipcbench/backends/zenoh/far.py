"""zenoh between hosts: over TCP, with credit by zenoh's own messages, as hosts share no words.

Each reader listens at a free port of its host, and answers who asks whether it knows the channel's secret; the writer
connects to all when all are there. It logs in by that secret, so neither takes a stranger for its peer; nothing is
encrypted. Messages are numbered, since zenoh connects again where a connection breaks and loses what was under way.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from contextlib import ExitStack
from struct import Struct
from typing import Any

from ipcbench.backend import Address, Message, Reader, bytes_of
from ipcbench.backends.zenoh.session import ERRORS, Session, zenoh
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.directory import as_transport_errors, channel_file, write_private
from ipcbench.sync.interrupts import is_of_handler
from ipcbench.sync.liveness import CHECK_NS
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.loop import News
from ipcbench.sync.ownership import keep_for_ever
from ipcbench.sync.peers import PeerEndpoint, PeerWriter, credit
from ipcbench.sync.place import Place, find, publish
from ipcbench.util.clock import deadline_ns, remaining_s, slice_s

_CHECK_S = CHECK_NS / 1e9
_COUNT = Struct("<Q")
_GONE = 2**63
"""Count of a reader that reads no more."""
_RECEIPTS_COUNT, _DESCRIPTORS, _PER_READER = 4, 24, 2
_USER, _SECRET, _USERS = "ipcbench", "secret", "users"
_LOOK_S, _ANSWER_S = 0.005, 5.0
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

    def _open(self, undo: ExitStack) -> None:
        self.news = News()
        self._pid = os.getpid()
        self._window, self._batch = credit(self._channel, _RECEIPTS_COUNT)
        with as_transport_errors(f"cannot open the {self._liveness.role} of channel {self._channel.name!r}"):
            more = _PER_READER * self._channel.readers if self._liveness.role == "writer" else 0
            require_descriptors(_DESCRIPTORS + more)
            self._place: Place = find(channel_file(self._address, _SECRET))

    def _login(self) -> dict[str, str]:
        users = str(channel_file(self._address, _USERS))
        return {"user": _USER, "password": self._place.secret, "dictionary_file": users}

    def _drop(self) -> None:
        self.news.close()
        session, self._session = self._session, None
        if session is not None and self._pid != os.getpid():
            keep_for_ever(session)  # to free it would touch threads that the child does not have
        elif session is not None:
            session.close()


class FarReader(FarEndpoint, Reader):
    """Listens as soon as it opens."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
        self._inbox = inbox = deque[tuple[bytes, bytes]]()
        self._count, self._due_count = 0, self._batch
        role, news, proof = self._liveness.role, self.news, self._place.proof(self._liveness.role)

        with as_transport_errors(f"cannot listen at {self._channel.host}"):
            self._session, target = self._listening()
            session = self._session.session
            block = zenoh.CongestionControl.BLOCK
            self._counts = counts = session.declare_publisher(f"count/{role}", congestion_control=block, express=True)

            def take(sample: Any) -> None:
                inbox.append((sample.payload.to_bytes(), number := sample.attachment.to_bytes()))
                if not number:
                    counts.put(_COUNT.pack(_GONE))  # so that the writer need not wait until that is read
                if news.is_awaited:
                    news.tell()

            self._session.parts = [
                session.declare_subscriber(f"message/{role}", take),
                session.declare_queryable(f"proof/{role}", lambda query: query.reply(query.key_expr, proof)),
            ]
            write_private(channel_file(self._address, role), target)  # from now on the writer may connect

    def _listening(self) -> tuple[Session, str]:
        host = self._channel.host
        for left in reversed(range(_TRIES)):
            family, *_ = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            with socket.create_server((host, 0), family=family) as free:
                port = free.getsockname()[1]
            target = f"tcp/[{host}]:{port}" if ":" in host else f"tcp/{host}:{port}"
            try:
                return Session(self._channel, listen=[target], login=self._login()), target
            except ERRORS as error:
                if not left:
                    raise OSError(str(error)) from error
        raise AssertionError  # the last try has returned or raised

    def read(self, timeout_s: float | None = None) -> memoryview:
        inbox = self._inbox
        if not inbox or self._failure is not None:
            self._await(timeout_s)
        message, number = inbox[0]
        if number != b"%d" % (self._count + 1):
            self._end(number)
        view = memoryview(message)
        if self._count + 1 >= self._due_count:
            self._counts.put(_COUNT.pack(self._count + 1))
            self._due_count = self._count + 1 + self._batch
        # No exception of a signal handler comes between the step of an iterator in C and the first call in the body.
        for _ in iter(inbox.popleft, None):
            self._count += 1
            break
        return view

    def _end(self, number: bytes) -> None:
        """Raise what a number means that is not the next one."""
        if not number:
            self._fail(EndOfStream(f"channel {self._channel.name!r} has ended"))
        self._fail(PeerLost(f"channel {self._channel.name!r} has lost messages with a connection"))

    def _await(self, timeout_s: float | None) -> None:
        deadline, inbox = deadline_ns(timeout_s), self._inbox
        self._require_usable()
        while not inbox:
            left_s = slice_s(deadline, _CHECK_S)
            self.news.wait(lambda: inbox, left_s)
            if not left_s:
                self.news.silence()
            if not inbox:
                self._check_writer()
                if not left_s:
                    raise self._timed_out("no message in", timeout_s)
            self._require_usable()

    def _check_writer(self) -> None:
        if not self._liveness.is_check_due():
            return
        self._check_note()
        if self._liveness.is_gone("writer") and self._liveness.note_of("writer") is None and not self._inbox:
            self._fail(self._lost())

    def fileno(self) -> int:
        self._require_open()
        with as_transport_errors(f"cannot wait for channel {self._channel.name!r}"):
            return self.news.fileno()

    def _say_goodbye(self) -> None:
        super()._say_goodbye()
        if self._liveness.is_current():
            self._counts.put(_COUNT.pack(_GONE))


class FarWriter(FarEndpoint, PeerWriter):
    """Connects when all readers listen."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
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
            if not self._begun:
                self._connect(deadline)
            if self._count_room(self._read.values()) > 0:
                return
            left_s = slice_s(deadline, _CHECK_S)
            if not left_s:
                raise TransportTimeout(f"channel {self._channel.name!r} has no room: a reader is too far behind")
            self.news.wait(lambda: False, left_s)

    def _forget_those_who_left(self) -> None:
        is_due = self._liveness.is_check_due()
        for role, count in list(self._read.items()):
            if count == _GONE:
                self._leave_out(role)
            elif is_due and self._liveness.is_gone(role):
                self._forget(role)

    def _leave_out(self, role: str) -> None:
        self._read.pop(role, None)

    def _connect(self, deadline: int | None) -> None:
        """Connect to all readers that have not closed, and wait until each has proved who it is."""
        while awaited := [role for role in self._read if self._target(role) is None]:
            self._await(awaited[0], deadline)
        if self._session is None:
            self._begin([self._target(role) or "" for role in self._read])
        while awaited := [role for role in self._read if not self._publishers[role].matching_status.matching]:
            self._await(awaited[0], deadline)
        for role in list(self._read):
            self._require_proof(role, deadline)
        self._begun = True

    def _target(self, role: str) -> str | None:
        try:
            return channel_file(self._address, role).read_text()
        except FileNotFoundError:
            return None

    def _await(self, role: str, deadline: int | None) -> None:
        left_s = slice_s(deadline, _LOOK_S)
        if not left_s:
            raise TransportTimeout(f"channel {self._channel.name!r} has no {role} yet")
        self.news.wait(lambda: False, left_s)
        if self._liveness.is_check_due():
            for each in list(self._read):
                if self._liveness.note_of(each) is not None or self._liveness.is_gone(each):
                    self._forget(each)

    def _begin(self, targets: list[str]) -> None:
        read, news = self._read, self.news

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

    def _require_proof(self, role: str, deadline: int | None) -> None:
        """Raise TransportError unless who listens in the place of a reader knows the secret."""
        assert self._session is not None  # noqa: S101
        left_s = remaining_s(deadline)
        timeout_s = _ANSWER_S if left_s is None else min(left_s, _ANSWER_S)
        for reply in self._session.session.get(f"proof/{role}", timeout=timeout_s):
            if reply.ok is not None and self._place.is_proof(reply.ok.payload.to_string(), role):
                return
        if left_s is not None and left_s < _ANSWER_S:
            raise TransportTimeout(f"channel {self._channel.name!r} has no {role} yet")
        self._fail(TransportError(f"another program listens in the place of the {role} of {self._channel.name!r}"))

    def _say_goodbye(self) -> None:
        super()._say_goodbye()
        if self._begun:
            self._put(b"", b"")

    def _flush(self, timeout_s: float) -> None:
        """Wait until all readers have got the end, as they say."""
        deadline = deadline_ns(timeout_s)
        while self._begun and self._read and (left_s := slice_s(deadline, _CHECK_S)):
            self.news.wait(lambda: False, left_s)
            for role, count in list(self._read.items()):
                if count == _GONE or self._liveness.is_gone(role):
                    self._leave_out(role)
