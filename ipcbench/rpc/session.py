"""A client's connection to one life of a server."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Event
from typing import Any
from weakref import finalize

from ipcbench.backend import Address
from ipcbench.channels.rendezvous import LOOK_S, Lock, Rendezvous
from ipcbench.channels.slices import in_slices
from ipcbench.errors import (
    EncodeError,
    EndOfStream,
    EndpointClosed,
    PeerLost,
    RemoteError,
    TransportError,
    TransportTimeout,
    UnknownMethod,
)
from ipcbench.registry import get_backend
from ipcbench.rpc.protocol import (
    BELL,
    CALL,
    CLIENT_PREFIX,
    ERROR,
    HEAD,
    HELLO,
    NO_CONTEXT,
    RESULT,
    SERVER_ROLE,
    Line,
    Options,
    client_note,
    head_of,
)
from ipcbench.spec import NAME_PREFIX, ChannelSpec
from ipcbench.sync.wait import Doorbell
from ipcbench.trace.record.call import NO_OP, Call
from ipcbench.util.clock import now_ns, remaining_s
from ipcbench.util.units import format_bytes
from ipcbench.workload.objects import Packed, unpack

_FALLBACK = "pipe"
"""What carries calls where shared memory is too small: it needs none."""
_MOST_NAME = 100
"""Characters of a method's name in an error."""
_LOOK_S = 0.1
"""How long it waits for a hello before it looks whether the server still lives."""


class Session:
    """A client's connection to one life of a server.

    Attributes:
        meeting: where the server is found.
        options: the server's.
        methods: names of its methods.
        numbers: of these.
        line: the channels.
        waiting: futures of the calls in flight, by number; None for one that nobody waits for any more.
        failure: what calls get once it is over.
        end: closes it once.
    """

    end: Callable[[], object]

    def __init__(self, meeting: Rendezvous, deadline: int | None, is_wanted: Callable[[], bool]) -> None:
        """Make the channels, tell the server, and wait for its hello.

        Args:
            meeting: where the server is found.
            deadline: until when to wait for it (ns of the clock).
            is_wanted: whether to go on waiting.

        Raises:
            TransportTimeout: there is none by then, or it is not wanted any more.
            TransportError: it is of another version, or the channels cannot be made.
        """
        self.meeting, self._is_wanted = meeting, is_wanted
        self.failure: TransportError | None = None
        self._role = f"{CLIENT_PREFIX}{secrets.token_hex(4)}"
        self._lock: Lock | None = None
        self._pid = os.getpid()
        self.waiting: dict[int, Any] = {}
        self._addresses: list[Address] = []
        with ExitStack() as undo:
            undo.callback(self._remove)
            self._look_ns = 0
            self.options = self._await_server(deadline)
            self.line = self._open()
            undo.callback(self.line.close)
            self._announce()
            self.methods: list[str] = self._hello(deadline)
            self.numbers = {name: number for number, name in enumerate(self.methods)}
            undo.pop_all()

    def _await_server(self, deadline: int | None) -> Options:
        meeting = self.meeting
        while True:
            if meeting.exists() and (note := meeting.read(SERVER_ROLE)) is not None:
                with meeting.locked(deadline):
                    is_there = meeting.is_held(SERVER_ROLE)
                    if is_there:
                        self._lock = meeting.lock(self._role)
                        self._life = meeting.life(SERVER_ROLE)
                        note = meeting.read(SERVER_ROLE) or note
                if is_there:
                    return Options.from_note(meeting, note)
            if (deadline is not None and now_ns() >= deadline) or not self._is_wanted():
                raise TransportTimeout(
                    f"there is no server {meeting.name!r} on this host ({meeting.path}); start it, or wait longer"
                )
            Event().wait(LOOK_S)

    def _open(self) -> Line:
        options, name = self.options, f"{NAME_PREFIX}{self.meeting.name}-{self._role[-8:]}"
        backend = get_backend(options.backend)()
        base = {"max_message_bytes": options.max_message_bytes, "depth": options.depth, "wait": options.wait}
        channels = [ChannelSpec(name=f"{name}{end}", **base) for end in ("-q", "-r")]  # type: ignore[arg-type]
        try:
            for channel in channels:
                self._addresses.append(backend.create(channel))
        except TransportError as error:
            if options.backend == _FALLBACK:
                raise
            self._destroy()
            backend = get_backend(_FALLBACK)()
            most = min(options.max_message_bytes, backend.capabilities.max_message_bytes)
            self._addresses = [backend.create(replace(channel, max_message_bytes=most)) for channel in channels]
            warnings.warn(
                f"calls to {self.meeting.name!r} go over {_FALLBACK}, since two channels of "
                f"{format_bytes(options.max_message_bytes)} over {options.backend} cannot be made: {error}",
                RuntimeWarning,
                stacklevel=5,
            )
        requests, replies = self._addresses
        with ExitStack() as undo:
            writer = undo.enter_context(backend.open_writer(requests))
            line = Line(writer, backend.open_reader(replies, 0))
            undo.pop_all()
        return line

    def _announce(self) -> None:
        self.meeting.write(self._role, client_note(*self._addresses))
        try:
            bell = Doorbell(self.meeting.path / BELL)
        except TransportError as error:
            if (self.meeting.path / BELL).exists():
                raise
            raise PeerLost(f"server {self.meeting.name!r} went away") from error
        bell.ring()
        bell.close()

    def _hello(self, deadline: int | None) -> list[str]:
        while True:
            left_s = remaining_s(deadline)
            try:
                message = self.line.reader.read(_LOOK_S if left_s is None else min(_LOOK_S, left_s))
            except TransportTimeout:
                with self.meeting.locked(deadline):
                    if not self.meeting.is_held(SERVER_ROLE):
                        raise PeerLost(f"server {self.meeting.name!r} went away") from None
                if (left_s is not None and left_s <= _LOOK_S) or not self._is_wanted():
                    raise TransportTimeout(
                        f"server {self.meeting.name!r} (process {self.options.pid}) does not answer; it may be "
                        "stopped, or at a long call"
                    ) from None
                continue
            kind, _, _ = head_of(message)
            if kind != HELLO:
                raise TransportError(f"server {self.meeting.name!r} says {kind} in place of a hello")
            methods: list[str] = unpack(message, HEAD.size)["methods"]
            return methods

    def is_over(self) -> bool:
        """Return whether no call is in flight and the server has stopped, or another one has come after it: then the
        next call is for that one. It looks every 0.1 s.

        Raises:
            EndpointClosed: this process is a forked child of the one that connected.
        """
        now = now_ns()
        if now < self._look_ns or self.waiting:
            return False
        self._look_ns = now + int(_LOOK_S * 1e9)
        if self._pid != os.getpid():
            raise forked(self.meeting.name)
        return self._life != self.meeting.life(SERVER_ROLE)

    def in_slices(self, deadline: int | None, operate: Callable[[float], Any]) -> Any:
        """Return what `operate` returns, unless the session fails in another thread meanwhile; see `in_slices`."""
        return in_slices(deadline, operate, self.require_live)

    def require_live(self) -> None:
        """Raise what it has failed with."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    def has_room(self) -> bool:
        """Return whether there may be another call in flight."""
        return len(self.waiting) < self.options.depth

    def lost(self) -> PeerLost:
        """Return the error for calls in flight when the server has died or stopped."""
        return PeerLost(
            f"server {self.meeting.name!r} (process {self.options.pid}) went away; whether calls in flight were made "
            "is not known, and the next call looks for it again"
        )

    def close(self) -> None:
        """Close the channels, and remove what belongs to this client."""
        self.failure = self.failure or self.lost()
        try:
            self.line.close()
        finally:
            self._remove()

    def _remove(self) -> None:
        if self._pid != os.getpid():  # of a parent, which still uses it
            return
        self._destroy()
        with suppress(OSError):
            (self.meeting.path / f"{self._role}.json").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release(remove=True)
        self.meeting.remove()

    def _destroy(self) -> None:
        while self._addresses:
            address = self._addresses.pop()
            get_backend(address.backend)().destroy(address)


def forked(server: str) -> EndpointClosed:
    """Return the error for a client in a forked child of the process that connected it."""
    return EndpointClosed(
        f"this client of server {server!r} was connected by the process that forked this one; connect in this one"
    )


def open_session(
    owner: object, meeting: Rendezvous, deadline: int | None, is_wanted: Callable[[], bool] = lambda: True
) -> Session:
    """Connect to the server, or to the next one if it dies meanwhile. It ends with its owner, or the interpreter.

    Raises:
        TransportTimeout: there is none by `deadline`.
        TransportError: as `Session`.
    """
    while True:
        try:
            session = Session(meeting, deadline, is_wanted)
        except (PeerLost, EndOfStream):
            if (deadline is not None and now_ns() >= deadline) or not is_wanted():
                raise
        else:
            session.end = finalize(owner, session.close)
            return session


def packed_call(
    session: Session, method: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call
) -> Packed:
    """Return the message of a call.

    Raises:
        UnknownMethod: the server has no such method.
        EncodeError: an argument cannot travel.
    """
    if not isinstance(method, str):
        raise UnknownMethod(session.meeting.name, repr(method)[:_MOST_NAME], session.methods)
    if method not in session.numbers:
        raise UnknownMethod(session.meeting.name, method[:_MOST_NAME], session.methods)
    head = HEAD.pack(CALL, session.numbers[method], number) + (NO_CONTEXT if call is NO_OP else call.context())
    try:
        packed = session.line.sender.pack([list(args), kwargs], head, "the call")
    except EncodeError as error:
        path = error.path.replace("the call[0]", "args", 1).replace("the call[1]", "kwargs", 1)
        raise EncodeError(path, error.type_name, error.reason) from error
    call.serialized(packed.size_bytes)
    return packed


def outcome_of(kind: int, message: memoryview, copy: bool) -> Any:
    """Return the result in a reply.

    Raises:
        RemoteError: the method raised.
        TransportError: the reply is none.
    """
    body = unpack(message, HEAD.size, copy)
    if kind == ERROR:
        raise RemoteError(*body)
    if kind != RESULT:
        raise TransportError(f"a message of kind {kind} is no reply")
    return body
