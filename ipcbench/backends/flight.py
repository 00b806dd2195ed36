"""Arrow Flight, by pyarrow: the writer serves, each reader exchanges with it (DoExchange) over a Unix socket.

A message below 1 MiB travels as the opaque metadata of a Flight message, which costs a third of a record batch's
time; a larger one, and an empty one, as a record batch of one column of bytes, which Flight copies less often. Flight's
blocking calls take no time-out, and one that sends waits for a reader's process that is stopped. So whoever calls
`write` sends only what the buffers between the processes hold for certain; the rest is sent by the thread in which
Flight serves that reader. On the other side a thread takes what comes.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from ipcbench.backend import Address, unavailable
from ipcbench.errors import TransportTimeout
from ipcbench.sync import (
    CarriedBackend,
    CarriedReader,
    CarriedWriter,
    channel_file,
    require_socket_path,
)
from ipcbench.sync.interrupts import start_thread
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

for _name, _value in {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}.items():
    os.environ.setdefault(_name, _value)  # read as Flight's gRPC starts: errors are raised, not printed
absence: ModuleNotFoundError | None = None
try:
    import pyarrow
    from pyarrow import flight
except ModuleNotFoundError as error:
    pyarrow = flight = None
    absence = error

_BATCH_BYTES = 2**20
"""From here on a message is a record batch."""
_BUFFERED_BYTES, _OVERHEAD_BYTES = 2**16 - 1, 512
"""What HTTP/2's first window and a socket's buffer hold for a reader that takes nothing, and what each message adds."""
_RETRY_S, _LOOK_S = 0.005, 0.1
"""Until a reader looks again whether the writer serves, and a writer whether a reader it waits for has died."""
_END_S = 1.0
"""How long `close` waits for threads, which a stopped peer may hold up; and how soon a broken stream is an error."""

_users: list[int] = []
"""The process that uses Flight."""


def _location(address: Address) -> str:
    return f"grpc+unix://{channel_file(address, 'flight')}"


def _require_first_user() -> None:
    _users[:] = _users or [os.getpid()]
    if _users != [os.getpid()]:
        raise OSError("Flight cannot be used in a forked child of a process that has used it: start it by `spawn`")


class _Bell:
    """What one thread waits for and another rings. `SimpleQueue.get` may wait for ever if a signal interrupts it as its
    time-out ends (Python 3.11); a lock does not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Have `wait` return, now or when it is called; only one thread rings, or all hold a lock."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, timeout_s: float) -> None:
        """Return when it rings, has rung since the last call, or `timeout_s` have passed."""
        self._lock.acquire(timeout=timeout_s)


class _Stream:
    """What goes to a reader. Either the caller's thread sends, or Flight's, if anything is queued."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._schema = sink, pyarrow.schema([("bytes", pyarrow.uint8())])
        sink.begin(self._schema)
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._queued_count = self._sent_count = 0

    def send(self, message: bytes | bytearray | memoryview, *, at_once: bool) -> None:
        """Send it here, if it may be sent `at_once` and nothing is queued; else queue it."""
        if at_once and self._queued_count == self._sent_count:
            with suppress(pyarrow.ArrowException, flight.FlightError, OSError):
                self._send(message)
                return
        self._queued_count += 1  # and stays ahead where the stream is broken
        self._queue.put(bytes(message))

    def end(self) -> None:
        """Have the stream end after what is queued."""
        self._queue.put(None)

    def run(self) -> None:
        """Send what is queued, until the end, or until the reader has gone."""
        with suppress(pyarrow.ArrowException, flight.FlightError, OSError):
            for message in iter(self._queue.get, None):
                self._send(message)
                self._sent_count += 1

    def _send(self, message: bytes | bytearray | memoryview) -> None:
        if 0 < len(message) < _BATCH_BYTES:
            self._sink.write_metadata(message)
            return
        column = pyarrow.Array.from_buffers(pyarrow.uint8(), len(message), [None, pyarrow.py_buffer(message)])
        self._sink.write_batch(pyarrow.RecordBatch.from_arrays([column], schema=self._schema))


class _Server(flight.FlightServerBase if flight else object):  # type: ignore[misc] # whose base is Any
    """The writer's server; Flight calls `do_exchange` in a thread for each reader."""

    def __init__(self, location: str) -> None:
        self.streams: dict[int, _Stream] = {}
        self.arrival = _Bell()
        self._lock, self._has_ended = threading.Lock(), False
        super().__init__(location)
        # At its end the process would wait for a stream that a stopped reader holds up; nor may it free the server.
        for each in gc.get_referents(self):
            if isinstance(each, weakref.finalize):
                each.atexit = False
        start_thread(self.wait)

    def do_exchange(self, _context: Any, descriptor: Any, _reader: Any, writer: Any) -> None:
        stream = _Stream(writer)
        with self._lock:
            if self._has_ended:
                return
            self.streams[int(descriptor.command)] = stream
            self.arrival.ring()
        stream.run()

    def end(self) -> None:
        """End all streams and the server; a thread does so in the end if a stopped reader holds it up."""
        with self._lock:
            self._has_ended = True
        for stream in self.streams.values():
            stream.end()
        done = threading.Event()

        def shut_down() -> None:
            self.shutdown()
            done.set()

        start_thread(shut_down)
        done.wait(_END_S)


class FlightWriter(CarriedWriter):
    """The writer, which serves in the channel's folder."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (pyarrow.ArrowException,) if pyarrow else ()
    library_folder = "/pyarrow/"

    def connect(self) -> _Server:
        _require_first_user()
        self._sizes, self._unread_bytes, self._read_count = deque[int](), 0, 0
        return _Server(_location(self.address))

    def await_peers(self, timeout_s: float | None) -> None:
        deadline = deadline_ns(timeout_s)
        while not self.library.streams.keys() >= set(self.readers()):
            left_s = remaining_s(deadline)
            self._check_peers()
            if left_s == 0.0:
                raise TransportTimeout(f"channel {self.address.channel.name!r} has not all of its readers yet")
            self.library.arrival.wait(_LOOK_S if left_s is None else min(left_s, _LOOK_S))

    def send(self, message: bytes | bytearray | memoryview) -> None:
        streams = self.library.streams
        if self._cursors.closed:
            for stream in streams.values():
                stream.end()
            return
        at_once = self._has_room(len(message) + _OVERHEAD_BYTES)
        if not at_once:
            message = bytes(message)
        for index in self.readers():
            if index in streams:  # or it has closed since
                streams[index].send(message, at_once=at_once)

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether the buffers of the slowest reader hold a further message."""
        sizes, slowest = self._sizes, self._cursors.slowest()
        while sizes and self._read_count < slowest:
            self._unread_bytes -= sizes.popleft()
            self._read_count += 1
        sizes.append(size_bytes)
        self._unread_bytes += size_bytes
        return self._unread_bytes <= _BUFFERED_BYTES

    def disconnect(self) -> None:
        self.library.end()


class _Inbox:
    """A reader's stream, and the thread that takes what comes."""

    def __init__(self, address: Address, index: int) -> None:
        self._path, self._whose = channel_file(address, "flight"), flight.FlightDescriptor.for_command(str(index))
        options = [(f"grpc.{which}_reconnect_backoff_ms", 1) for which in ("initial", "min", "max")]
        self._client = flight.FlightClient(_location(address), generic_options=options)
        self._has_ended, self._ended = threading.Event(), threading.Event()
        self._sink: Any = None
        self._stream: Any = None
        self.messages, self.arrival = deque[memoryview](), _Bell()
        self.end_ns: int | None = None
        self.cause: BaseException | None = None
        start_thread(self._run)

    def _run(self) -> None:
        try:
            while not self._has_ended.wait(_RETRY_S):
                if self._path.exists():
                    with suppress(flight.FlightUnavailableError):  # it does not listen yet
                        self._sink, self._stream = self._client.do_exchange(self._whose)
                        break
            self._take_all()
        except (StopIteration, pyarrow.ArrowException, flight.FlightError, OSError) as error:
            self.cause, self.end_ns = error, now_ns()
            self.arrival.ring()
        finally:
            with suppress(pyarrow.ArrowException, flight.FlightError, OSError):
                if self._sink is not None:
                    self._sink.close()  # or its error is printed when it is freed
            self._ended.set()

    def _take_all(self) -> None:
        while not self._has_ended.is_set():
            chunk = self._stream.read_chunk()
            held = chunk.data.column(0).buffers()[1] if chunk.app_metadata is None else chunk.app_metadata
            self.messages.append(memoryview(held or b"").cast("B"))
            self.arrival.ring()
        if self._stream is not None:
            self._stream.cancel()

    def end(self) -> None:
        """Leave the stream; a stopped writer may hold the thread up, which then does it in the end."""
        self._has_ended.set()
        if self._stream is not None:
            self._stream.cancel()
        if self._ended.wait(_END_S):
            self._client.close()


class FlightReader(CarriedReader):
    """A reader, whose thread takes what comes."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (pyarrow.ArrowException,) if pyarrow else ()
    library_folder = "/pyarrow/"

    def connect(self) -> _Inbox:
        _require_first_user()
        return _Inbox(self.address, self.index)

    def receive(self, timeout_s: float) -> memoryview | None:
        inbox: _Inbox = self.library
        if not inbox.messages and timeout_s:
            inbox.arrival.wait(0.0)  # it may have rung for what was taken without waiting
            if not inbox.messages and inbox.end_ns is None:
                inbox.arrival.wait(timeout_s)
        if inbox.messages:
            return inbox.messages.popleft()
        if inbox.end_ns is not None:
            if now_ns() > inbox.end_ns + _END_S * 1e9:  # by now the death of the writer would show
                raise OSError(f"the stream broke: {inbox.cause}") from inbox.cause
            inbox.arrival.wait(min(timeout_s, _RETRY_S))
        return None

    def disconnect(self) -> None:
        self.library.end()


class Flight(CarriedBackend):
    """Arrow Flight over Unix sockets."""

    name: ClassVar[str] = "flight"
    summary: ClassVar[str] = "Arrow Flight (pyarrow), an exchange with each reader over a Unix socket"
    writer, reader = FlightWriter, FlightReader

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            raise unavailable(cls.name, absence, "pyarrow", "pip install 'ipcbench[flight]'") from absence

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        require_socket_path(str(channel_file(address, "flight")))
