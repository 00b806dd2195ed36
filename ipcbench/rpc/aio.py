"""Calls with asyncio: a server whose methods may be coroutines, and a client whose calls are awaited.

>>> from ipcbench.rpc import aio
>>> server = aio.Server("shm", "gpu")
>>> @server.method
... async def wait(seconds):
...     await asyncio.sleep(seconds)
>>> await server.serve()                                  # in one process

>>> async with aio.connect("gpu", timeout_s=10) as client:   # in others
...     await asyncio.gather(*(client.wait(1) for _ in range(10)))
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self

import numpy as np

from ipcbench import trace
from ipcbench.channels.aio import look_s
from ipcbench.channels.rendezvous import LOOK_S
from ipcbench.errors import EndOfStream, EndpointClosed, IpcbenchError, PeerLost, TransportError, TransportTimeout
from ipcbench.rpc import server as blocking
from ipcbench.rpc.loop import Loop, Served, ServedClient
from ipcbench.rpc.protocol import SERVER_ROLE, head_of, meeting_of
from ipcbench.rpc.session import Session, open_session, outcome_of, packed_call
from ipcbench.trace.record.serve import Arrival
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

_FULL_S = 0.002


def connect(name: str, timeout_s: float | None = None) -> Client:
    """Return a client of the server of that name on this host; it connects when it is entered, or at the first call.

    Args:
        name: of the server.
        timeout_s: how long to wait for it to be there; and for each call, if that has no time-out of its own. None
            waits forever.
    """
    return Client(name, timeout_s)


class Client:
    """Calls the methods of a server from one event loop. Each method is an attribute: `await client.matmul(a, b)`."""

    def __init__(self, name: str, timeout_s: float | None = None) -> None:
        self._meeting = meeting_of(name)
        self._timeout_s = timeout_s
        self._numbers = count(1)
        self._session: Session | None = None
        self._sending = asyncio.Lock()
        self._room = asyncio.Event()
        self._looks: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[Any] | None = None
        self._is_closed = False

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return partial(self.call, method)  # kept, it would keep this client

    async def call(self, method: str, /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call a method and return its result; see `ipcbench.rpc.Client.call`."""
        deadline = deadline_ns(self._timeout_s if timeout_s is None else timeout_s)
        with trace.call(method, peer=self._meeting.name) as call:
            async with self._sending:
                session = await self._with_room(deadline)
                number = next(self._numbers)
                packed = packed_call(session, method, number, args, kwargs, call)
                future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                session.waiting[number] = future
                try:
                    await self._write(session, packed, deadline)
                except BaseException:
                    session.waiting.pop(number, None)
                    if future.done() and not future.cancelled():
                        future.exception()  # the same one; nobody awaits it
                    raise
                call.sent()
            try:
                size_bytes, result = await asyncio.wait_for(future, remaining_s(deadline))
            except TimeoutError as error:
                raise TransportTimeout(f"server {self._meeting.name!r}: there is no reply within the time-out; it may "
                                       "still come") from error  # fmt: skip
            finally:
                if number in session.waiting:
                    session.waiting[number] = None  # its reply may still come
            call.received(size_bytes)
            return result

    async def _connected(self, deadline: int | None) -> Session:
        if self._is_closed:
            raise EndpointClosed(f"the client of server {self._meeting.name!r} is closed")
        if self._session is not None and self._session.is_over():
            self._lose(self._session)
        if self._session is None:
            self._session = session = await self._open(deadline)
            asyncio.get_running_loop().add_reader(session.line.fileno(), self._read, session)
            self._looks = asyncio.create_task(self._look(session))
        return self._session

    async def _open(self, deadline: int | None) -> Session:
        """Connect in a thread, which is to have no server to wait for: there are few of them."""
        while not self._meeting.is_noted(SERVER_ROLE):
            if deadline is not None and now_ns() >= deadline:
                break
            await asyncio.sleep(LOOK_S)
        is_wanted = True
        opening = asyncio.get_running_loop().run_in_executor(
            None, open_session, self, self._meeting, deadline, lambda: is_wanted
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            is_wanted = False
            opening.add_done_callback(_end_unwanted)
            raise

    async def _with_room(self, deadline: int | None) -> Session:
        """Return the session once it may have a further call in flight."""
        while True:
            session = await self._connected(deadline)
            await self._await_room(session, deadline)
            if session.failure is None:
                return session

    async def _await_room(self, session: Session, deadline: int | None) -> None:
        while len(session.waiting) >= session.options.depth:
            self._room.clear()
            try:
                await asyncio.wait_for(self._room.wait(), remaining_s(deadline))
            except TimeoutError as error:
                raise TransportTimeout(
                    f"server {self._meeting.name!r} has {session.options.depth} calls of this client, and none ends"
                ) from error

    async def _write(self, session: Session, packed: Any, deadline: int | None) -> None:
        sender = session.line.sender
        while self._writing is not None:  # for a call that was cancelled meanwhile
            await asyncio.wait((self._writing,))
        session.require_live()
        try:
            sender.write(packed, 0.0)
        except TransportTimeout:  # large ones may have to wait for room
            await self._write_in_thread(session, partial(sender.write, packed), deadline)
        except (PeerLost, EndOfStream) as error:
            raise self._lose(session) from error

    async def _write_in_thread(self, session: Session, write: Callable[[float], Any], deadline: int | None) -> None:
        """Write with a thread's patience; the session stays open until the thread has noticed that it is not to be."""
        writing = asyncio.get_running_loop().run_in_executor(None, session.in_slices, deadline, write)
        self._writing = writing
        writing.add_done_callback(partial(self._end_written, session))
        try:
            await asyncio.shield(writing)
        except (PeerLost, EndOfStream) as error:
            raise self._lose(session) from error

    def _end_written(self, session: Session, writing: asyncio.Future[Any]) -> None:
        if not writing.cancelled():
            writing.exception()  # who awaits it gets it, if anybody does
        self._writing = None
        if session.failure is not None:
            session.end()

    def _read(self, session: Session) -> None:
        """Hand all replies that are there to their calls."""
        try:
            while session is self._session:
                message = session.line.reader.read(0.0)
                kind, _, number = head_of(message)
                future = session.waiting.pop(number, None)
                self._room.set()
                if future is None or future.done():
                    continue
                try:
                    future.set_result((len(message), outcome_of(kind, message, copy=True)))
                except IpcbenchError as error:
                    future.set_exception(error)
        except TransportTimeout:
            pass
        except TransportError as error:
            self._lose(session).__cause__ = error

    async def _look(self, session: Session) -> None:
        """See to it that the calls in flight notice the death of the server."""
        while self._session is session:
            await asyncio.sleep(look_s(session))
            if session.waiting:
                self._read(session)

    def _lose(self, session: Session) -> PeerLost:
        error = session.lost()
        self._end(session, error)
        return error

    def _end(self, session: Session, error: TransportError) -> None:
        if self._session is session:
            self._session = None
            with suppress(IpcbenchError, RuntimeError):
                asyncio.get_running_loop().remove_reader(session.line.fileno())
        session.failure = session.failure or error
        waiting = [future for future in session.waiting.values() if future is not None and not future.done()]
        session.waiting.clear()
        if self._writing is None:
            session.end()
        self._room.set()
        for future in waiting:
            future.set_exception(error)

    async def close(self) -> None:
        """Close the connection; calls in flight raise EndpointClosed. A second call does nothing."""
        self._is_closed = True
        if self._session is not None:
            self._end(self._session, EndpointClosed(f"the client of server {self._meeting.name!r} is closed"))
        if self._looks is not None:
            self._looks.cancel()

    async def __aenter__(self) -> Self:
        async with self._sending:
            await self._connected(deadline_ns(self._timeout_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        await self.close()


def _end_unwanted(opening: asyncio.Future[Session]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().end()


class Server(blocking.Server):
    """Serves methods from an event loop; those that are coroutines run at the same time, others one after another."""

    _shares = False

    async def serve(self) -> None:  # type: ignore[override]
        """Serve until `stop`, or until the task is cancelled.

        Raises:
            TransportError: a server of that name is running, or the folder is another user's.
        """
        with self._serving(_AsyncLoop) as loop:
            assert isinstance(loop, _AsyncLoop)  # noqa: S101 - as asked for
            await loop.served()

    def start(self) -> Self:
        raise TransportError("a server of asyncio serves in its event loop: use asyncio.create_task(server.serve())")


class _AsyncLoop(Loop):
    """A server while it serves in an event loop."""

    def watch(self, descriptor: int) -> None:
        self._events = asyncio.get_running_loop()
        self._events.add_reader(descriptor, self._notice, descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._events.remove_reader(descriptor)

    def _empty(self, client: ServedClient, shape: Any, dtype: Any = "float32") -> Any:
        return np.empty(shape, dtype)  # others reply meanwhile

    def end(self) -> None:
        super().end() if self._events.is_running() else self.close()

    async def served(self) -> None:
        """Return when it is to stop, and no method runs."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._end = asyncio.Event()
        look_ns = 0
        try:
            while not self.is_stopping:
                waits = any(client.outbox for client in self.clients.values())
                if waits or now_ns() >= look_ns:
                    look_ns = now_ns() + 1_000_000_000
                    self._serve([*self.clients.values(), *self.welcome()])
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), _FULL_S if waits else 1.0)
        finally:
            self.is_stopping = True
            self.unwatch(self.bell.fileno())
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _notice(self, descriptor: int) -> None:
        if descriptor == self.bell.fileno():
            self.bell.sleep(0)
            self._end.set() if self.is_stopping else self._serve(self.welcome())
        elif descriptor in self.clients:
            self._serve([self.clients[descriptor]])

    def _serve(self, ready: list[ServedClient]) -> None:
        """Serve what is there; the rest after others have had their turn."""
        if (left := self.serve(ready)) and not self.is_stopping:
            asyncio.get_running_loop().call_soon(self._serve, left)

    def execute(self, client: ServedClient, number: int, served: Served, arrival: Arrival, body: list[Any]) -> None:
        task = asyncio.ensure_future(self._run_async(client, number, served, arrival, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_async(
        self, client: ServedClient, number: int, served: Served, arrival: Arrival, body: list[Any]
    ) -> None:
        args, kwargs = body
        with trace.serve(arrival, served.name, self.meeting.name) as call:
            try:
                if served.makes_in_place:
                    kwargs["out"] = partial(self._empty, client)
                result = served.function(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = await result
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) or (
                    self.is_stopping and isinstance(error, asyncio.CancelledError)
                ):
                    raise
                self.fail(client, number, error)
                return
            self.reply(client, number, result, call)
