"""The client's side: calls, one after another or many in flight."""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from operator import not_
from threading import Event
from types import TracebackType
from typing import Any, Self
from weakref import finalize

from ipcbench import trace
from ipcbench.backend import Address
from ipcbench.channels.rendezvous import LOOK_S, Lock, Rendezvous
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
    meeting_of,
)
from ipcbench.spec import NAME_PREFIX, ChannelSpec
from ipcbench.sync.wait import Doorbell
from ipcbench.trace.record.call import NO_OP, Call
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s
from ipcbench.util.units import format_bytes
from ipcbench.workload.objects import Packed, unpack

_FALLBACK = "pipe"
"""What carries calls where shared memory is too small: it needs none."""
_LOOK_S = 0.1
"""How long the thread that reads for others waits before it looks whether anybody still needs it."""


def connect(name: str, timeout_s: float | None = None, *, copy: bool = True) -> Client:
    """Connect to the server of that name on this host.

    Args:
        name: of the server.
        timeout_s: how long to wait for it to be there; and for each call, if that has no time-out of its own. None
            waits forever.
        copy: False has arrays in results share the transport's memory until the next call of this client.

    Raises:
        TransportTimeout: there is no such server.
        TransportError: it is another user's, or of another version.
    """
    return Client(name, timeout_s, copy)


class Session:
    """A client's connection to one life of a server.

    Attributes:
        meeting: where the server is found.
        options: the server's.
        methods: names of its methods.
        numbers: of these.
        line: the channels.
        waiting: futures of the calls in flight, by number; None for one that nobody waits for any more.
        end: closes it once.
    """

    end: Callable[[], object]

    def __init__(self, meeting: Rendezvous, deadline: int | None) -> None:
        """Make the channels, tell the server, and wait for its hello.

        Raises:
            TransportTimeout: there is none by then.
            TransportError: it is of another version, or the channels cannot be made.
        """
        self.meeting = meeting
        self._role = f"{CLIENT_PREFIX}{secrets.token_hex(4)}"
        self._lock: Lock | None = None
        self._pid = os.getpid()
        self.waiting: dict[int, Any] = {}
        self._addresses: list[Address] = []
        with ExitStack() as undo:
            undo.callback(self._remove)
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
                if is_there:
                    return Options.from_note(meeting, note)
            if deadline is not None and now_ns() >= deadline:
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
        bell = Doorbell(self.meeting.path / BELL)
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
                if left_s is not None and left_s <= _LOOK_S:
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


def open_session(owner: object, meeting: Rendezvous, deadline: int | None) -> Session:
    """Connect to the server, or to the next one if it dies meanwhile. It ends with its owner, or the interpreter.

    Raises:
        TransportTimeout: there is none by `deadline`.
        TransportError: as `Session`.
    """
    while True:
        try:
            session = Session(meeting, deadline)
        except PeerLost:
            if deadline is not None and now_ns() >= deadline:
                raise
        else:
            session.end = finalize(owner, session.close)
            return session


class _Waiting:
    """What a call waits for that a thread makes and awaits itself: a future without what that costs."""

    __slots__ = ("_failure", "_is_done", "_result")

    def __init__(self) -> None:
        self._is_done = False
        self._result: Any = None
        self._failure: BaseException | None = None

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: Any) -> None:
        self._result, self._is_done = result, True

    def set_exception(self, failure: BaseException) -> None:
        self._failure, self._is_done = failure, True

    def result(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._result


class Client:
    """Calls the methods of a server; threads may share it. Each method is an attribute: `client.matmul(a, b)`.

    A call is made at most once. If the server dies, calls under way raise PeerLost, and the next call looks for a
    server of that name again.
    """

    def __init__(self, name: str, timeout_s: float | None = None, copy: bool = True) -> None:
        """Connect; see `connect`."""
        self._meeting = meeting_of(name)
        self._timeout_s = timeout_s
        self._copy = copy
        self._numbers = count(1)
        self._sending = threading.RLock()  # what is called when a future is done may call, too
        self._turn = threading.Condition(threading.Lock())
        self._is_reading = False
        self._background: threading.Thread | None = None
        self._is_closed = False
        self._session: Session | None = open_session(self, self._meeting, deadline_ns(timeout_s))
        self.methods = tuple(self._session.methods)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        bound = partial(self.call, method)
        setattr(self, method, bound)
        return bound

    def call(self, method: str, /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call a method and return its result.

        Args:
            method: its name.
            args: its arguments: what `ipcbench.channels` can send.
            timeout_s: how long to wait; None takes that of `connect`. After it the call may still be made.
            kwargs: its keyword arguments.

        Raises:
            RemoteError: the method raised; it holds the type, the text and the traceback.
            EncodeError: an argument cannot travel; nothing was sent.
            UnknownMethod: the server has no such method.
            MessageTooLarge: the arguments, or the result, need more than the server's `max_bytes`.
            TransportTimeout: there was no reply by then.
            PeerLost: the server died; whether the call was made is not known.
            EndpointClosed: after `close`.
        """
        deadline = self._deadline(timeout_s)
        with trace.call(method, peer=self._meeting.name) as call:
            number, future, session = self._post(method, args, kwargs, deadline, call, None)
            return self._await(number, future, session, deadline, call)

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a method; return a future of its result. It waits only if the server's `depth` of calls is in flight.

        Raises:
            as `call`, but what comes back is in the future.
        """
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._post(method, args, kwargs, self._deadline(None), NO_OP, future)
        if self._background is None:
            self._background = threading.Thread(target=self._read_for_futures, name="ipcbench-rpc", daemon=True)
            self._background.start()
        return future

    def empty(self, shape: Any, dtype: Any = "float32") -> Any:
        """Return an array in the transport's memory, with undefined contents, if it can (`shm`): the next call of this
        client may have it as an argument, and it is then not copied. It must not be used after that.

        Raises:
            as `call`.
        """
        with self._sending:
            return self._connected(self._deadline(None)).line.sender.empty(shape, dtype, self._timeout_s)

    def close(self) -> None:
        """Close the connection; calls that are in flight raise EndpointClosed. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            session = self._session
            if session is not None:
                self._fail(session, self._closed())
            if self._background is not None and self._background is not threading.current_thread():
                self._background.join()

    def _deadline(self, timeout_s: float | None) -> int | None:
        return deadline_ns(self._timeout_s if timeout_s is None else timeout_s)

    def _closed(self) -> EndpointClosed:
        return EndpointClosed(f"the client of server {self._meeting.name!r} is closed")

    def _connected(self, deadline: int | None) -> Session:
        """Return the session, or begin a new one after the server's death; hold `_sending`."""
        if self._is_closed:
            raise self._closed()
        if self._session is None:
            self._session = open_session(self, self._meeting, deadline)
            self.methods = tuple(self._session.methods)
        return self._session

    def _post(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deadline: int | None,
        call: Call,
        future: Future[Any] | None,
    ) -> tuple[int, Future[Any] | _Waiting, Session]:
        """Send a call; return its number, the future of its result, and where its reply comes."""
        with self._sending:
            while not (session := self._connected(deadline)).has_room():
                why = f"the server has {session.options.depth} calls of this client"
                self._read_one(session, deadline, why, session.has_room)
            number = next(self._numbers)
            packed = packed_call(session, method, number, args, kwargs, call)
            waiting = session.waiting[number] = future or _Waiting()
            try:
                session.line.sender.write(packed, remaining_s(deadline))
            except BaseException as error:
                session.waiting.pop(number, None)
                if isinstance(error, PeerLost | EndOfStream):
                    raise self._lose(session) from error
                raise
            call.sent()
            return number, waiting, session

    def _await(
        self, number: int, future: Future[Any] | _Waiting, session: Session, deadline: int | None, call: Call
    ) -> Any:
        """Return the result of a call: read it, or have the thread read it that reads now."""
        try:
            while not future.done():
                message = self._read_one(session, deadline, "there is no reply", future.done, number, call)
                if message is not _NOTHING:
                    return message
            return future.result()
        except BaseException:
            if session.waiting.get(number) is future:
                session.waiting[number] = None  # its reply may still come
            raise

    def _read_one(
        self,
        session: Session,
        deadline: int | None,
        why: str,
        is_enough: Callable[[], bool],
        number: int = 0,
        call: Call = NO_OP,
    ) -> Any:
        """Read a reply, or wait while another thread does, unless it is enough already: another thread may have read
        the last one that comes. If it is that of the call `number`, return its result; others go to those who wait.

        Raises:
            TransportTimeout: there was none by `deadline`.
            PeerLost: the server died; all calls in flight are told.
            RemoteError, TransportError: the reply says so.
        """
        with self._turn:
            if is_enough():
                return _NOTHING
            if self._is_reading:
                if not self._turn.wait(remaining_s(deadline)):
                    raise TransportTimeout(f"server {self._meeting.name!r}: {why} within the time-out")
                return _NOTHING
            self._is_reading = True
        waiting: Future[Any] | _Waiting | None = None
        try:
            message = session.line.reader.read(remaining_s(deadline))
            kind, _, of_call = head_of(message)
            waiting = session.waiting.pop(of_call, None)
            if of_call == number:
                call.received(len(message))
                return outcome_of(kind, message, self._copy)
            outcome = None if waiting is None else _outcome(kind, message)
            if isinstance(waiting, _Waiting):  # before the turn ends: its thread must not take the next one
                _settle(waiting, outcome)
        except TransportTimeout as error:
            text = f"server {self._meeting.name!r}: {why} within the time-out; it may still come"
            raise TransportTimeout(text) from error
        except (PeerLost, EndOfStream) as error:
            raise self._lose(session) from error
        finally:
            with self._turn:
                self._is_reading = False
                self._turn.notify_all()
        if isinstance(waiting, Future):  # whose callbacks may call, too: another reads by then
            _settle(waiting, outcome)
        return _NOTHING

    def _read_for_futures(self) -> None:
        """Read replies as long as calls are in flight that no thread waits for."""
        while not self._is_closed:
            session = self._session
            if session is None or not session.waiting:
                with self._turn:
                    self._turn.wait(_LOOK_S)
                continue
            with suppress(TransportError, RemoteError):
                self._read_one(session, deadline_ns(_LOOK_S), "", partial(not_, session.waiting))

    def _lose(self, session: Session) -> PeerLost:
        """Give up a session whose server has died or stopped; return the error for its calls."""
        error = session.lost()
        self._fail(session, error)
        return error

    def _fail(self, session: Session, error: TransportError) -> None:
        if self._session is session:
            self._session = None
        waiting = [future for future in session.waiting.values() if future is not None]
        session.waiting.clear()
        for future in waiting:  # before the end: a call that finds the line closed must know why
            if not future.done():
                future.set_exception(error)
        session.end()
        with self._turn:
            self._turn.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        self.close()


_NOTHING: Any = object()


def _settle(waiting: Future[Any] | _Waiting, outcome: tuple[Any, Exception | None] | None) -> None:
    assert outcome is not None  # noqa: S101 - who waits gets one
    result, failure = outcome
    waiting.set_result(result) if failure is None else waiting.set_exception(failure)


def _outcome(kind: int, message: memoryview) -> tuple[Any, Exception | None]:
    """Return the result in a reply, copied, or the error."""
    try:
        return outcome_of(kind, message, copy=True), None
    except (RemoteError, TransportError) as error:
        return None, error


def packed_call(
    session: Session, method: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call
) -> Packed:
    """Return the message of a call.

    Raises:
        UnknownMethod: the server has no such method.
        EncodeError: an argument cannot travel.
    """
    if method not in session.numbers:
        raise UnknownMethod(session.meeting.name, method, session.methods)
    head = HEAD.pack(CALL, session.numbers[method], number) + (NO_CONTEXT if call is NO_OP else call.context())
    try:
        packed = session.line.sender.pack([args, kwargs], head, "the call")
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
