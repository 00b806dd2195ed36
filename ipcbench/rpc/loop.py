"""A server while it serves: what it does with each client's calls."""

from __future__ import annotations

import errno
import os
import selectors
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from sys import getrefcount
from traceback import format_exception
from typing import Any

import numpy as np

from ipcbench import trace
from ipcbench.backend import Address
from ipcbench.channels.rendezvous import Lock, Rendezvous
from ipcbench.errors import (
    EncodeError,
    EndOfStream,
    EndpointClosed,
    IpcbenchError,
    MessageTooLarge,
    PeerLost,
    TransportError,
    TransportTimeout,
)
from ipcbench.registry import get_backend
from ipcbench.rpc.protocol import (
    BELL,
    CALL,
    CLIENT_PREFIX,
    CONTEXT_BYTES,
    ERROR,
    HEAD,
    HELLO,
    NO_CONTEXT,
    RESULT,
    SERVER_ROLE,
    Line,
    Options,
    addresses_in,
    head_of,
)
from ipcbench.sync.wait import Attempts, Doorbell, has_core_each
from ipcbench.trace.record.call import ServerCall
from ipcbench.trace.record.context import extract
from ipcbench.trace.record.serve import Arrival
from ipcbench.util.clock import deadline_ns, now_ns
from ipcbench.workload.objects import Packed, unpack, unpack_shared

_LOOK_S = 1.0
"""Interval of looks at all clients: the death of one makes no descriptor readable."""
_LINGER_NS, _MOST_LINGER_NS = 60_000, 1_000_000
_LINGER_GAIN_NS = 5_000
"""About what a server takes to sleep and be woken."""
_LINGER_BYTES_PER_NS = 8
"""By how much longer a server lingers after a large call: its client copies the reply, and the next request."""
_MOST_YIELD_NS = 500_000
_TURNS = 8
_NEVER = 2**62
_FULL_S = 0.002
"""The same while a reply waits for room."""
_MOST_CHARACTERS = (10_000_000, 10_000, 50)
"""Of each of an error's texts: fewer if the message is too large; the last ones fit into any."""
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}
_START_S = _END_S = 5.0
_HELLO_S = 1.0


class Served:
    """A method as it is offered."""

    __slots__ = ("function", "makes_in_place", "name", "shares")

    def __init__(self, name: str, function: Callable[..., Any], shares: bool, makes_in_place: bool) -> None:
        self.name, self.function, self.shares, self.makes_in_place = name, function, shares, makes_in_place


class ServedClient:
    """What the server knows of a client.

    Attributes:
        outbox: replies for which there was no room: number of the call and the packed message.
    """

    __slots__ = ("addresses", "line", "lock", "outbox", "role")

    def __init__(self, role: str, addresses: tuple[Address, Address], line: Line) -> None:
        self.role, self.addresses, self.line = role, addresses, line
        self.outbox: deque[bytes] = deque()
        self.lock = threading.Lock()


class Loop:
    """A server while it serves.

    Attributes:
        meeting: where its clients find it.
        bell: rung by new clients, and by `stop`.
        clients: by the descriptors of their requests.
        is_stopping: whether it is to end.
    """

    def __init__(self, meeting: Rendezvous, options: Options, methods: dict[str, Served], threads: int) -> None:
        """Take the name.

        Raises:
            TransportError: another process has it.
        """
        self.meeting = meeting
        self._options = options
        self._pid = os.getpid()
        self._names = sorted(methods)
        self._methods = [methods[name] for name in self._names]
        self.clients: dict[int, ServedClient] = {}
        self._known: set[str] = set()
        self.is_stopping = False
        self._ended = threading.Event()
        self._look_ns = self._calls_count = self._moved_bytes = 0
        self._selector = selectors.DefaultSelector()
        self._attempts = Attempts(_NEVER if options.wait == "block" or not has_core_each(2) else 0, _LINGER_GAIN_NS)
        with ExitStack() as undo:
            undo.callback(self._selector.close)
            self._lock = self._take(undo)
            self.watch(self.bell.fileno())
            self._pool = ThreadPoolExecutor(threads, "ipcbench-rpc") if threads > 1 else None
            undo.pop_all()

    def watch(self, descriptor: int) -> None:
        """Take notice of a descriptor that becomes readable."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def unwatch(self, descriptor: int) -> None:
        """Take no more notice of it."""
        self._selector.unregister(descriptor)

    def _take(self, undo: ExitStack) -> Lock:
        meeting = self.meeting
        with meeting.locked(deadline_ns(_START_S)):
            lock = meeting.lock(SERVER_ROLE)
            if lock is None:
                note = meeting.read(SERVER_ROLE) or {}
                raise TransportError(
                    f"a server {meeting.name!r} is running already (process {note.get('pid', 'unknown')}); stop it, or "
                    "choose another name"
                )
            undo.callback(lock.release)
            self._remove_dead()
            bell = meeting.path / BELL
            bell.unlink(missing_ok=True)
            Doorbell.make(bell)
            self.bell = Doorbell(bell)
            undo.callback(self.bell.close)
            meeting.write(SERVER_ROLE, self._options.note())
        return lock

    def _remove_dead(self) -> None:
        """Remove what clients have left that are dead."""
        for role in self.meeting.notes(CLIENT_PREFIX):
            if not self.meeting.is_held(role):
                self._forget(role)

    def _forget(self, role: str) -> None:
        with suppress(IpcbenchError):
            note = self.meeting.read(role)
            for address in addresses_in(note) if note is not None else ():
                get_backend(address.backend)().destroy(address)
        self.meeting.forget(role)

    def run(self) -> None:
        """Serve until `stop`."""
        recent: list[ServedClient] = []
        left: list[ServedClient] = []
        while not self.is_stopping:
            left = left or self._linger(recent)
            late = [client for client in self.clients.values() if client.outbox]
            timeout_s = 0.0 if left else _FULL_S if late else max(0.0, (self._look_ns - now_ns()) / 1e9)
            events = [key.fd for key, _ in self._selector.select(timeout_s)]
            ready = left + late + [self.clients[descriptor] for descriptor in events if descriptor in self.clients]
            if self.bell.fileno() in events:
                self.bell.sleep(0)
                ready += self.welcome()
            if now_ns() >= self._look_ns:
                self._look_ns = now_ns() + int(_LOOK_S * 1e9)
                ready = [*self.clients.values(), *self.welcome()]
            recent = list(dict.fromkeys(ready))
            left = self.serve(recent)

    def _linger(self, recent: list[ServedClient]) -> list[ServedClient]:
        """Look for a short time whether those that have just called call again, if that has paid lately; return them if
        one has.
        """
        attempts = self._attempts
        if not recent or attempts.skips_count:
            attempts.skips_count -= bool(attempts.skips_count)
            return []
        count, start_ns = self._calls_count, now_ns()
        before_ns, last_ns = start_ns, 0
        end_ns = start_ns + min(_MOST_LINGER_NS, _LINGER_NS + self._moved_bytes // _LINGER_BYTES_PER_NS)
        while before_ns < end_ns:
            self.serve(recent)
            if self._calls_count > count:
                attempts.yielded(before_ns - start_ns, last_ns)
                return recent
            os.sched_yield()
            now = now_ns()
            last_ns, before_ns = now - before_ns, now
            if last_ns > _MOST_YIELD_NS:  # to a process that has nothing to do with this
                break
        attempts.failed(before_ns - start_ns)
        return []

    def serve(self, ready: list[ServedClient]) -> list[ServedClient]:
        """Serve a few calls of each, in turns; return those that may have more. Others must not wait for them."""
        for _ in range(_TURNS):
            ready = [client for client in ready if not client.line.is_closed and self._is_served(client)]
            if not ready or self.is_stopping:
                break
        return ready

    def _is_served(self, client: ServedClient) -> bool:
        try:
            return self._serve_one(client)
        except (EndOfStream, PeerLost) as error:
            self._drop(client, isinstance(error, PeerLost))
        except TransportError as error:
            _warn(f"a client of server {self.meeting.name!r} is dropped: {error}")
            self._drop(client, is_dead=True)
        return False

    def _serve_one(self, client: ServedClient) -> bool:
        """Serve the next call of a client; return whether there was one, and there may be another."""
        if client.outbox and not self._empty_outbox(client):
            return False
        asked_ns = now_ns()
        try:
            message = client.line.reader.read(0.0)
        except TransportTimeout:
            return False
        received_ns = now_ns()
        self._calls_count += 1
        self._moved_bytes = len(message)
        kind, method, number = head_of(message)
        if kind != CALL or method >= len(self._methods):
            raise TransportError(f"it sent a message of kind {kind}")
        served = self._methods[method]
        context = message[HEAD.size : HEAD.size + CONTEXT_BYTES].tobytes()
        arrival = Arrival(None if context == NO_CONTEXT else extract(context), asked_ns, received_ns)
        shared: object = None
        try:
            if served.shares:
                body, shared = unpack_shared(message, HEAD.size + CONTEXT_BYTES)
            else:
                body = unpack(message, HEAD.size + CONTEXT_BYTES)
        except TransportError as error:
            self.fail(client, number, error)
            return True
        self.execute(client, number, served, arrival, body)
        if shared is not None and getrefcount(shared) > _OWN_REFERENCES:
            _warn(
                f"method {served.name!r} keeps an array that it was given, which is valid only until the method "
                "returns: keep a copy, or offer the method without copy=False"
            )
        client.line.reader.release()
        return True

    def execute(self, client: ServedClient, number: int, served: Served, arrival: Arrival, body: list[Any]) -> None:
        """Carry out a call, here or in another thread."""
        if self._pool is None:
            self._run(client, number, served, arrival, body)
        else:
            try:
                self._pool.submit(self._run, client, number, served, arrival, body)
            except RuntimeError:  # the interpreter ends
                self.is_stopping = True

    def _run(self, client: ServedClient, number: int, served: Served, arrival: Arrival, body: list[Any]) -> None:
        """Carry out a call and send what comes of it."""
        args, kwargs = body
        body.clear()
        with trace.serve(arrival, served.name, self.meeting.name) as call:
            try:
                if served.makes_in_place:
                    kwargs["out"] = partial(self._empty, client)
                result = served.function(*args, **kwargs)
            except BaseException as error:  # SystemExit ends that call only
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                self.fail(client, number, error)
            else:
                self.reply(client, number, result, call)
            finally:
                args = kwargs = result = None

    def reply(self, client: ServedClient, number: int, result: Any, call: ServerCall) -> None:
        """Send the result of a call."""
        try:
            with client.lock:
                if client.line.is_closed:
                    return
                packed = client.line.sender.pack(result, HEAD.pack(RESULT, 0, number), "the result")
                call.replying(packed.size_bytes)
                self._moved_bytes += packed.size_bytes
                self._send(client, packed)
        except (EncodeError, MessageTooLarge) as error:
            self.fail(client, number, error)

    def _empty(self, client: ServedClient, shape: Any, dtype: Any = "float32") -> Any:
        if self._pool is None and not client.outbox:
            with suppress(TransportTimeout):
                return client.line.sender.empty(shape, dtype, 0.0)
        return np.empty(shape, dtype)

    def fail(self, client: ServedClient, number: int, error: BaseException) -> None:
        """Tell a client what a method raised, or why it was not called."""
        text, where = _texts_of(error)
        with client.lock:
            for most in _MOST_CHARACTERS:
                obj = [type(error).__name__[:most], text[:most], where[-most:]]
                with suppress(MessageTooLarge):
                    self._send(client, client.line.sender.pack(obj, HEAD.pack(ERROR, 0, number)))
                    return

    def _send(self, client: ServedClient, packed: Packed) -> None:
        """Send a reply, now or as soon as there is room: a client that does not read must not stop the others."""
        try:
            if not client.outbox:
                client.line.sender.write(packed, 0.0)
                return
        except TransportTimeout:
            pass
        except (PeerLost, EndOfStream, EndpointClosed):
            return  # which the next look at it tells, or has told
        client.outbox.append(b"".join(packed.buffers))

    def _empty_outbox(self, client: ServedClient) -> bool:
        """Send the replies that wait for room; return whether all are sent."""
        with client.lock:
            while client.outbox:
                try:
                    client.line.writer.write(client.outbox[0], 0.0)
                except TransportTimeout:
                    return False
                client.outbox.popleft()
        return True

    def welcome(self) -> list[ServedClient]:
        """Open the channels of new clients, and return these."""
        came, roles = [], set(self.meeting.notes(CLIENT_PREFIX))
        for role in sorted(roles - self._known):
            with _said(self.meeting.name), ExitStack() as undo:
                note = self.meeting.read(role)
                if note is None:
                    continue
                addresses = addresses_in(note)
                backend = get_backend(addresses[0].backend)()
                reader = undo.enter_context(backend.open_reader(addresses[0], 0))
                line = Line(undo.enter_context(backend.open_writer(addresses[1])), reader)
                line.send(HELLO, 0, {"methods": self._names}, _HELLO_S)
                descriptor = line.fileno()
                self.watch(descriptor)
                self.clients[descriptor] = client = ServedClient(role, addresses, line)
                came.append(client)
                undo.pop_all()
        self._known = roles
        return came

    def _drop(self, client: ServedClient, is_dead: bool) -> None:
        if client.line.is_closed:
            return
        for descriptor, each in list(self.clients.items()):
            if each is client:
                self.unwatch(descriptor)
                del self.clients[descriptor]
        with client.lock:
            client.line.close()
        if is_dead:
            self._forget(client.role)

    def stop(self) -> None:
        """Have `run` return soon."""
        self.is_stopping = True
        self.bell.ring()

    def end(self) -> None:
        """Have `run` end before the interpreter does, unless a method takes too long. A forked child has no `run`."""
        if self._pid == os.getpid():
            self.stop()
            self._ended.wait(_END_S)

    def close(self) -> None:
        """Let the methods that run come to their end, and give up the name."""
        if self._pool is not None:
            self._pool.shutdown()
        for client in list(self.clients.values()):
            with suppress(TransportError):
                self._empty_outbox(client)
            self._drop(client, is_dead=False)
        self._selector.close()
        with suppress(TransportTimeout), self.meeting.locked(deadline_ns(_START_S)):
            self.meeting.forget(SERVER_ROLE)
            (self.meeting.path / BELL).unlink(missing_ok=True)
        self._lock.release()
        self.bell.close()
        self.meeting.remove()
        self._ended.set()


def _texts_of(error: BaseException) -> tuple[str, str]:
    """Return an error's text and its traceback, whatever they hold and whatever making them raises."""
    texts = []
    for make in (str, lambda each: "" if isinstance(each, TransportError) else "".join(format_exception(each))):
        try:
            texts.append(make(error).encode(errors="backslashreplace").decode())
        except Exception as failure:
            texts.append(f"(making its text raised {type(failure).__name__})")
    return texts[0], texts[1]


@contextmanager
def _said(server: str) -> Iterator[None]:
    """Warn if something is short, and a client is not served for that; else it has left, or was another server's."""
    try:
        yield
    except IpcbenchError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _SHORTAGES:
            _warn(f"a client of server {server!r} is not served: {error}")


def _warn(text: str) -> None:
    with suppress(RuntimeWarning):  # an error where all warnings are; the server goes on
        warnings.warn(text, RuntimeWarning, stacklevel=3)


_OWN_REFERENCES = 2
"""Of the loop to a message's memory: the variable, and the argument of `getrefcount`."""
