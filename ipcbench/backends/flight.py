"""Arrow Flight, by pyarrow: the writer serves, each reader exchanges with it (DoExchange) over a Unix socket.

A message below 1 MiB travels as the opaque metadata of a Flight message, which costs a third of a record batch's
time; a larger one, and an empty one, as a record batch of one column of bytes, which Flight copies less often. Flight's
blocking calls take no time-out, and each waits for a peer's process that is stopped. So whoever calls `write` sends
only what the buffers between the processes hold for certain; the rest is sent by the thread in which Flight serves that
reader. Whoever calls `read` waits by the cursors until a message has left the writer, and takes it; one that leaves it
only in parts, as the reader takes them, a thread takes.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar
from urllib.parse import quote

from ipcbench.backend import Address, unavailable
from ipcbench.errors import TransportTimeout
from ipcbench.sync import (
    CarriedBackend,
    CarriedReader,
    CarriedWriter,
    WriterCursors,
    channel_file,
    require_socket_path,
)
from ipcbench.sync.cursors import CLOSED, WRITER_STATE, consumed_word
from ipcbench.sync.fences import make_fence
from ipcbench.sync.interrupts import is_of_handler, start_thread
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
_LEAVES_BYTES = 2**16
"""Up to here a message, whose predecessors are read, has left the writer when the call that sends it returns."""
_WINDOW_BYTES, _OVERHEAD_BYTES = 2**18, 1024
"""What a reader that takes nothing lets come, and what each message adds to what the buffers hold."""
_SENT, _PARTED = 3, 4
"""Words of a reader, after those of the cursors: how many messages it may ask for, and up to which they may have left
the writer only in part. The thread of the writer that sends stores them.
"""
_RETRY_S, _LOOK_S = 0.005, 0.1
"""Until a reader looks again whether the writer serves, and a writer whether a reader it waits for has died."""
_END_S = 1.0
"""How long `close` waits for threads, which a stopped peer may hold up; and how soon a broken stream is an error."""

_FOLDER = "pyarrow/"
"""Part of the paths of the library's files, which those in C++ give relative."""


def _location(address: Address) -> str:
    # quoted twice: Flight undoes it, and so does its gRPC
    return f"grpc+unix://{quote(quote(str(channel_file(address, 'flight'))))}"


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

    def __init__(self, sink: Any, cursors: WriterCursors, index: int) -> None:
        self._sink, self._schema = sink, pyarrow.schema([("bytes", pyarrow.uint8())])
        sink.begin(self._schema)
        self._cursors, self._index, self._word = cursors, index, consumed_word(index)
        self._fence = make_fence() if cursors.fenced else bool  # of its own: the cursors' is for the caller's thread
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._count = self._queued_count = self._dequeued_count = 0

    def send(self, message: bytes | bytearray | memoryview, *, at_once: bool) -> None:
        """Send it here, if it may be sent `at_once` and nothing is queued; else queue it."""
        if not at_once or self._queued_count != self._dequeued_count or not self._is_sent(message):
            self._queued_count += 1  # and stays ahead where the stream is broken
            self._queue.put(bytes(message))

    def end(self) -> None:
        """Have the stream end after what is queued."""
        self._queue.put(None)

    def run(self) -> None:
        """Send what is queued, until the end, or until the reader has gone."""
        # ValueError: a stopped reader has gone on only after the words were released
        with suppress(pyarrow.ArrowException, flight.FlightError, OSError, ValueError):
            for message in iter(self._queue.get, None):
                self._send(message)
                self._dequeued_count += 1

    def _is_sent(self, message: bytes | bytearray | memoryview) -> bool:
        """Send it; return False if the stream is broken."""
        try:
            self._send(message)
        except (pyarrow.ArrowException, flight.FlightError, OSError) as error:
            if is_of_handler(error, _FOLDER):
                raise
            return False
        return True

    def _send(self, message: bytes | bytearray | memoryview) -> None:
        self._count += 1
        size = len(message)
        if size > _LEAVES_BYTES:
            self._cursors.words[self._word + _PARTED] = self._count
            self._announce()
        if 0 < size < _BATCH_BYTES:
            self._sink.write_metadata(message)
        else:
            column = pyarrow.Array.from_buffers(pyarrow.uint8(), size, [None, pyarrow.py_buffer(message)])
            self._sink.write_batch(pyarrow.RecordBatch.from_arrays([column], schema=self._schema))
        if size <= _LEAVES_BYTES:
            self._announce()

    def _announce(self) -> None:
        self._fence()
        self._cursors.words[self._word + _SENT] = self._count
        self._fence()
        self._cursors.ring_sleeper(self._index)


class _Server(flight.FlightServerBase if flight else object):  # type: ignore[misc] # whose base is Any
    """The writer's server; Flight calls `do_exchange` in a thread for each reader."""

    def __init__(self, location: str, cursors: WriterCursors) -> None:
        self._cursors = cursors
        self.streams: dict[int, _Stream] = {}
        self.arrival = _Bell()
        self._lock, self._has_ended = threading.Lock(), False
        super().__init__(location)
        atexit.register(self.end)  # before Flight's own, which would wait for streams that a stopped reader holds up

    def do_exchange(self, _context: Any, descriptor: Any, _reader: Any, writer: Any) -> None:
        index = int(descriptor.command)
        stream = _Stream(writer, self._cursors, index)
        with self._lock:
            if self._has_ended:
                return
            self.streams[index] = stream
            self.arrival.ring()
        stream.run()

    def end(self) -> None:
        """End all streams and the server; a thread does so in the end if a stopped reader holds it up."""
        atexit.unregister(self.end)
        with self._lock:
            self._has_ended = True
        for stream in self.streams.values():
            stream.end()
        done = threading.Event()

        def shut_down() -> None:
            self.__exit__(None, None, None)  # shuts down, which the end of the process then does not do again
            done.set()

        start_thread(shut_down)
        done.wait(_END_S)


class FlightWriter(CarriedWriter):
    """The writer, which serves in the channel's folder."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (pyarrow.ArrowException,) if pyarrow else ()
    descriptors: ClassVar[tuple[int, int]] = 8, 1
    bears_fork: ClassVar[bool] = False
    library_folder = _FOLDER

    def connect(self) -> _Server:
        self._sizes, self._unread_bytes, self._read_count = deque[int](), 0, 0
        with socket.socket(socket.AF_UNIX) as example:  # of whose buffer small messages waste a part
            self._buffered_bytes = min(_WINDOW_BYTES, 3 * example.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 4)
        return _Server(_location(self.address), self._cursors)

    def await_peers(self, timeout_s: float | None) -> None:
        deadline = deadline_ns(timeout_s)
        while not self.library.streams.keys() >= set(self._not_closed()):  # one may close before it comes
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
            self._cursors.ring_sleepers()
            return
        at_once = self._has_room(len(message) + _OVERHEAD_BYTES)
        if not at_once:
            message = bytes(message)
        for index in self.readers():
            if index in streams:  # or it has closed since
                streams[index].send(message, at_once=at_once)

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether the buffers of the slowest reader hold a further message."""
        sizes = self._sizes
        sizes.append(size_bytes)
        self._unread_bytes += size_bytes
        if self._unread_bytes > self._buffered_bytes:
            slowest = min(self._cursors.slowest(), self._count - 1)
            while self._read_count < slowest:
                self._unread_bytes -= sizes.popleft()
                self._read_count += 1
        return self._unread_bytes <= self._buffered_bytes

    def disconnect(self) -> None:
        self.library.end()


class _Inbox:
    """A reader's stream, and the thread that takes each message for which it is asked."""

    def __init__(self, address: Address, index: int) -> None:
        self._path, self._whose = channel_file(address, "flight"), flight.FlightDescriptor.for_command(str(index))
        options = [(f"grpc.{which}_reconnect_backoff_ms", 1) for which in ("initial", "min", "max")]
        options.append(("grpc.http2.lookahead_bytes", _WINDOW_BYTES))
        self._client = flight.FlightClient(_location(address), generic_options=options)
        self._has_ended, self._ended = threading.Event(), threading.Event()
        self._sink: Any = None
        self.stream: Any = None
        self._wanted, self.arrival = _Bell(), _Bell()
        self.is_asked = False
        self.messages = deque[memoryview]()
        self.end_ns: int | None = None
        self.cause: BaseException | None = None
        start_thread(self._run)

    def take(self) -> memoryview:
        """Return the next message; waits for it without end."""
        chunk = self.stream.read_chunk()
        held = chunk.data.column(0).buffers()[1] if chunk.app_metadata is None else chunk.app_metadata
        return memoryview(held or b"").cast("B")

    def ask(self) -> None:
        """Have the thread take the next message, when there is one."""
        self.is_asked = True
        self._wanted.ring()

    def fail(self, error: BaseException) -> None:
        """Record what broke the stream."""
        self.cause, self.end_ns, self.is_asked = error, now_ns(), True

    def _run(self) -> None:
        try:
            while not self._has_ended.wait(_RETRY_S):
                if self._path.exists():
                    with suppress(flight.FlightUnavailableError):  # it does not listen yet
                        self._sink, self.stream = self._client.do_exchange(self._whose)
                        break
            self._take_all()
        except (StopIteration, pyarrow.ArrowException, flight.FlightError, OSError) as error:
            self.fail(error)
            self.arrival.ring()
        finally:
            with suppress(pyarrow.ArrowException, flight.FlightError, OSError):
                if self._sink is not None:
                    self._sink.close()  # or its error is printed when it is freed
            self._ended.set()

    def _take_all(self) -> None:
        while not self._has_ended.is_set():
            self._wanted.wait(-1)
            if not self._has_ended.is_set():
                self.messages.append(self.take())
                self.arrival.ring()
        if self.stream is not None:
            self.stream.cancel()

    def end(self) -> None:
        """Leave the stream; a stopped writer may hold the thread up, which then does it in the end."""
        self._has_ended.set()
        self._wanted.ring()
        if self.stream is not None:
            self.stream.cancel()
        if self._ended.wait(_END_S):
            self._client.close()


class FlightReader(CarriedReader):
    """A reader, which takes itself what has left the writer."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (pyarrow.ArrowException,) if pyarrow else ()
    descriptors: ClassVar[tuple[int, int]] = 8, 1
    bears_fork: ClassVar[bool] = False
    library_folder = _FOLDER

    def connect(self) -> _Inbox:
        self.wakes_after = max(1, self.depth // 4)
        self._sent_word = consumed_word(self.index) + _SENT
        self._parted_word = consumed_word(self.index) + _PARTED
        return _Inbox(self.address, self.index)

    def _may_ask(self) -> bool:
        return bool(self._cursors.words[self._sent_word] > self._count)

    def _wait(self, timeout_s: float) -> None:
        try:
            self._cursors.wait_until(self._may_ask, timeout_s)
        except TransportTimeout as error:
            if self._is_of_handler(error):
                raise

    def receive(self, timeout_s: float) -> memoryview | None:
        inbox: _Inbox = self.library
        if not inbox.is_asked:
            words = self._cursors.words
            if words[self._sent_word] <= self._count:
                if not timeout_s:
                    return None
                self._wait(timeout_s)
                if not self._may_ask() and words[WRITER_STATE] != CLOSED:
                    return None
            if words[self._parted_word] <= self._count < words[self._sent_word] and inbox.stream is not None:
                return self._take(inbox)
            inbox.ask()
        return self._take_asked(inbox, timeout_s)

    def _take(self, inbox: _Inbox) -> memoryview | None:
        try:
            return inbox.take()
        except (StopIteration, pyarrow.ArrowException, flight.FlightError, OSError) as error:
            if self._is_of_handler(error):
                raise
            inbox.fail(error)
            return None

    def _take_asked(self, inbox: _Inbox, timeout_s: float) -> memoryview | None:
        if not inbox.messages and timeout_s and inbox.end_ns is None:
            inbox.arrival.wait(timeout_s)
        if inbox.messages:
            inbox.arrival.wait(0.0)  # or the next wait would end with what rang for this one
            inbox.is_asked = False
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
        require_socket_path(channel_file(address, "flight"), without=",")
