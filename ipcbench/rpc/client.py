"""The client's side: calls, one after another or many in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from operator import not_
from types import TracebackType
from typing import Any, Self
from weakref import ref

from ipcbench import trace
from ipcbench.errors import EndOfStream, EndpointClosed, PeerLost, RemoteError, TransportError, TransportTimeout
from ipcbench.rpc.protocol import head_of, meeting_of
from ipcbench.rpc.session import Session, forked, open_session, outcome_of, packed_call
from ipcbench.sync.ownership import own
from ipcbench.trace.record.call import NO_OP, Call
from ipcbench.util.clock import deadline_ns, remaining_s

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


class _Pending(Future[Any]):
    """A future that keeps its client in use until it is done."""

    client: object = None

    def set_result(self, result: Any) -> None:
        self.client = None
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        self.client = None
        super().set_exception(exception)


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
        self._reading_thread = 0
        self._failed: list[Session] = []
        self._background: threading.Thread | None = None
        self._is_closed = self._is_forked = False
        self._session: Session | None = open_session(self, self._meeting, deadline_ns(timeout_s))
        self.methods = tuple(self._session.methods)
        own(self)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return partial(self.call, method)  # kept, it would keep this client

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
            MessageTooLarge: the arguments need more than the server's `max_bytes`; if the result does, RemoteError.
            TransportTimeout: there was no reply by then.
            PeerLost: the server died; whether the call was made is not known.
            EndpointClosed: after `close`.
        """
        deadline = self._deadline(timeout_s)
        with trace.call(method, peer=self._meeting.name) as call:
            number, future, session = self._post(method, args, kwargs, deadline, call, None)
            return self._await(number, future, session, deadline, call)

    def submit(self, method: str, /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Future[Any]:
        """Call a method; return a future of its result. It waits only if the server's `depth` of calls is in flight.

        Args:
            method: its name.
            args: its arguments.
            timeout_s: how long to wait then; None takes that of `connect`.
            kwargs: its keyword arguments.

        Raises:
            as `call`, but what comes back is in the future.
        """
        future = _Pending()
        future.client = self
        future.set_running_or_notify_cancel()
        self._post(method, args, kwargs, self._deadline(timeout_s), NO_OP, future)
        if self._background is None:
            self._background = threading.Thread(
                target=_read_for_futures, args=(ref(self),), name="ipcbench-rpc", daemon=True
            )
            self._background.start()
        if not self._reading_thread:
            with self._turn:
                self._turn.notify_all()  # of which the thread may be one that has had nothing to read
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
            me = threading.get_ident()
            with self._sending, self._turn:  # others look within a slice whether it has failed
                self._turn.wait_for(lambda: self._reading_thread in {0, me}, 10 * _LOOK_S)
            while self._failed:
                self._failed.pop().end()
            if self._background is not None and self._background is not threading.current_thread():
                self._background.join()

    def _deadline(self, timeout_s: float | None) -> int | None:
        return deadline_ns(self._timeout_s if timeout_s is None else timeout_s)

    def let_go(self) -> None:
        """In a forked child: be closed, whatever other threads of the parent held."""
        self._is_closed = self._is_forked = True
        self._sending, self._turn = threading.RLock(), threading.Condition(threading.Lock())
        self._reading_thread, self._background = 0, None

    def _closed(self) -> EndpointClosed:
        if self._is_forked:
            return forked(self._meeting.name)
        return EndpointClosed(f"the client of server {self._meeting.name!r} is closed")

    def _connected(self, deadline: int | None) -> Session:
        """Return the session, or begin a new one after the server's death; hold `_sending`."""
        if self._is_closed:
            raise self._closed()
        if self._session is not None and self._session.is_over():
            self._lose(self._session)
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
        try:
            with self._sending:
                while not (session := self._connected(deadline)).has_room():
                    why = f"the server has {session.options.depth} calls of this client"
                    self._read_one(session, deadline, why, session.has_room)
                number = next(self._numbers)
                packed = packed_call(session, method, number, args, kwargs, call)
                waiting = session.waiting[number] = future or _Waiting()
                try:
                    session.in_slices(deadline, partial(session.line.sender.write, packed))
                except BaseException as error:
                    session.waiting.pop(number, None)
                    if isinstance(error, PeerLost | EndOfStream):
                        raise self._lose(session) from error
                    raise
                call.sent()
                return number, waiting, session
        finally:
            if self._failed:
                self._end_failed()

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
            if self._reading_thread:
                if not self._turn.wait(remaining_s(deadline)):
                    raise TransportTimeout(f"server {self._meeting.name!r}: {why} within the time-out")
                return _NOTHING
            self._reading_thread = threading.get_ident()
        waiting: Future[Any] | _Waiting | None = None
        try:
            message = self._message(session, deadline, why)
            kind, _, of_call = head_of(message)
            waiting = session.waiting.pop(of_call, None)
            if of_call == number:
                call.received(len(message))
                return outcome_of(kind, message, self._copy)
            outcome = None if waiting is None else _outcome(kind, message)
            if isinstance(waiting, _Waiting):  # before the turn ends: its thread must not take the next one
                _settle(waiting, outcome)
        finally:
            with self._turn:
                self._reading_thread = 0
                self._turn.notify_all()
            if self._failed:
                self._end_failed()
        if isinstance(waiting, Future):  # whose callbacks may call, too: another reads by then
            _settle(waiting, outcome)
        return _NOTHING

    def _message(self, session: Session, deadline: int | None, why: str) -> memoryview:
        """Return the next message of a server."""
        try:
            message: memoryview = session.in_slices(deadline, session.line.reader.read)
        except TransportTimeout as error:
            text = f"server {self._meeting.name!r}: {why} within the time-out; it may still come"
            raise TransportTimeout(text) from error
        except (PeerLost, EndOfStream) as error:
            raise self._lose(session) from error
        except ValueError as error:
            if session.failure is None:
                raise
            raise self._closed() from error  # the interpreter ends, and has closed the session
        return message

    def read_for_futures(self) -> bool:
        """Read a reply, or wait a short time for one if calls are in flight that no thread waits for; return whether to
        go on.
        """
        with self._turn:
            session = self._session
            if session is None or not session.waiting:
                self._turn.wait(_LOOK_S)
                return not self._is_closed
        with suppress(TransportError, RemoteError):
            self._read_one(session, deadline_ns(_LOOK_S), "", partial(not_, session.waiting))
        return not self._is_closed

    def _lose(self, session: Session) -> PeerLost:
        """Give up a session whose server has died or stopped; return the error for its calls."""
        error = session.lost()
        self._fail(session, error)
        return error

    def _fail(self, session: Session, error: TransportError) -> None:
        session.failure = session.failure or error
        if session not in self._failed:
            self._failed.append(session)
        if self._session is session:
            self._session = None
        waiting = [future for future in session.waiting.values() if future is not None]
        session.waiting.clear()
        for future in waiting:  # before the end: a call that finds the line closed must know why
            if not future.done():
                future.set_exception(error)
        with self._turn:
            self._turn.notify_all()

    def _end_failed(self) -> None:
        """Close sessions that have failed, unless another thread is in a call of their endpoints: it then does so."""
        if self._sending.acquire(blocking=False):
            try:
                while self._failed and not self._reading_thread:
                    self._failed.pop().end()
            finally:
                self._sending.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        self.close()


def _read_for_futures(client_of: Callable[[], Client | None]) -> None:
    """Read replies for futures as long as the client is in use: nothing else holds it in between."""
    while True:
        client = client_of()
        if client is None or not client.read_for_futures():
            return
        del client


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
