"""A reader: it listens until the writer connects, and receives into one buffer that it keeps."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path

from ipcbench.backend import Reader
from ipcbench.backends.stream.endpoint import (
    END,
    HEAD_BYTES,
    SIZE,
    StreamEndpoint,
    credit,
    doorbell_path,
    wait_ready,
    way_of_waiting,
)
from ipcbench.backends.stream.places import Knocking
from ipcbench.errors import EndOfStream, TransportError, TransportTimeout
from ipcbench.sync.directory import as_transport_errors, channel_file
from ipcbench.sync.interrupts import is_of_handler, no_fork, uninterrupted
from ipcbench.sync.liveness import CHECK_NS
from ipcbench.sync.wait import Doorbell, Watch
from ipcbench.util.clock import deadline_ns, now_ns
from ipcbench.util.files import advice_on

_CHUNK_BYTES = 2**16
"""How much a reader receives at once while messages are small."""
_TRY_S = 0.01
"""While messages are small, a read with this time-out or a longer one first waits so long inside the standard library's
receive, which costs less than waiting and receiving apart, and keeps its time-out whatever signals come. The parts of a
large message follow one another: to look first is cheaper."""


def _ring(directory: Path) -> None:
    doorbell = Doorbell(doorbell_path(directory))
    doorbell.ring()
    doorbell.close()


class StreamReader(StreamEndpoint, Reader):
    """Listens, and receives into one buffer that it keeps."""

    def _open(self, undo: contextlib.ExitStack) -> None:
        self._place = path = channel_file(self._address, self._liveness.role)
        try:
            doorbell = Doorbell(doorbell_path(self._liveness.directory))
            undo.callback(doorbell.close)
            self._socket = self._places.listen(
                path, self._channel.host, undo
            )  # last: from now on the writer may connect, and write
        except (OSError, TransportError) as error:
            advice = advice_on(error) if isinstance(error, OSError) else ""
            raise TransportError(f"cannot listen at {path}: {error}{advice}") from error
        doorbell.ring()
        doorbell.close()
        self._listening, self._looking = True, self._socket
        self._watch: Watch | None = None
        self._knocking: list[Knocking] = []
        self._buffer = bytearray(_CHUNK_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._ask_bytes = _CHUNK_BYTES
        self._until_receipt = self._batch = credit(self._channel)[1]
        self._sleeps = way_of_waiting(self._channel) == "block"

    def read(self, timeout_s: float | None = None) -> memoryview:
        start = self._start + HEAD_BYTES
        if start > self._end or (stop := start + SIZE.unpack_from(self._buffer, self._start)[0]) > self._end:
            self._fill(timeout_s)
            start = self._start + HEAD_BYTES
            stop = start + SIZE.unpack_from(self._buffer, self._start)[0]
        if self._until_receipt <= 1:
            self._send_receipt()
        self._until_receipt -= 1
        self._start = stop  # last: whoever is interrupted before gets the message again
        return self._view[start:stop]

    def fileno(self) -> int | None:
        self._require_open()
        if self._watch is None:
            with as_transport_errors(f"cannot wait for channel {self._channel.name!r}"):
                self._watch = Watch()
            self._watch.add(self._socket)
            if self._listening:
                with contextlib.suppress(EndOfStream):
                    self._check_note()
        return self._watch.fileno()

    def _send_receipt(self) -> None:
        try:
            for _ in map(self._socket.send, (b"\1",), (socket.MSG_DONTWAIT,)):  # counted once, see `_fill`
                self._until_receipt += self._batch
        except OSError as error:  # the writer may have closed
            if is_of_handler(error):
                raise
            self._until_receipt += self._batch

    def _fill(self, timeout_s: float | None) -> None:
        """Receive until a whole message is in the buffer."""
        self._require_usable()
        deadline = deadline_ns(timeout_s)
        if self._listening:
            self._accept(deadline)
        sleepy = self._sleeps and (timeout_s is None or timeout_s >= _TRY_S)
        need = self._needed()
        while self._end - self._start < need:
            self._make_space(need)
            stop = max(self._start + need, min(self._start + self._ask_bytes, len(self._buffer)))
            waits = sleepy and need == HEAD_BYTES and self._ask_bytes == _CHUNK_BYTES
            room = self._view[self._end : stop]
            got = -1
            try:
                # A signal handler may raise an exception after any call, but not between the steps of a loop over an
                # iterator in C and the first call of its body: so what was received is always counted.
                for got in map((self._socket if waits else self._looking).recv_into, (room,)):
                    self._end += got
            except OSError as error:
                if is_of_handler(error):
                    raise
                got = -1 if isinstance(error, TimeoutError | BlockingIOError) else 0
            if got > 0:
                need = self._needed()
            elif got == 0:
                self._fail(self._lost())
            elif not self._ready(deadline):
                raise self._timed_out("no message in", timeout_s)
        self._ask_bytes = max(_CHUNK_BYTES, need)  # the next message is probably as large: receive it at once, no more

    def _ready(self, deadline: int | None) -> bool:
        """Wait until there is something to receive; return False if there is not by `deadline` (ns)."""
        if not self._sleeps:
            return wait_ready([self._socket], select.POLLIN, deadline, self._channel.wait)
        if deadline is None:
            return bool(self._poll())
        left_ns = deadline - now_ns()
        return bool(self._poll(left_ns / 1e6 if left_ns > 0 else 0))

    def _needed(self) -> int:
        """Return the size of the next message with its head, or of the head if that is not complete yet."""
        if self._end - self._start < HEAD_BYTES:
            return HEAD_BYTES
        size_bytes: int = SIZE.unpack_from(self._buffer, self._start)[0]
        if size_bytes == END:
            self._fail(EndOfStream(f"channel {self._channel.name!r} has ended"))
        if size_bytes > self._channel.max_message_bytes:
            self._fail(TransportError(f"another program writes to channel {self._channel.name!r}: this is no message"))
        return HEAD_BYTES + size_bytes

    def _make_space(self, need: int) -> None:
        """Make sure that `need` bytes fit behind the start; views returned earlier become invalid."""
        have = self._end - self._start
        if self._start + need <= len(self._buffer) and have:
            return
        buffer, view = self._buffer, self._view
        if need > len(buffer):
            buffer = bytearray(max(need, 2 * len(buffer)))
            view = memoryview(buffer)
        view[:have] = self._view[self._start : self._end]
        self._buffer, self._view, self._start, self._end = buffer, view, 0, have  # at once, whatever signals come

    def _accept(self, deadline: int | None) -> None:
        """Wait for the writer's connection."""
        is_first = True
        while self._listening:
            if not is_first and self._liveness.is_check_due():
                self._check_writer()
            if not is_first and deadline is not None and now_ns() >= deadline:
                raise TransportTimeout(f"the writer of channel {self._channel.name!r} has not written yet")
            is_first, slice_end = False, now_ns() + CHECK_NS
            sockets = [self._socket, *(each.connection for each in self._knocking)]
            if wait_ready(sockets, select.POLLIN, slice_end if deadline is None else min(slice_end, deadline)):
                uninterrupted(self._take_connection)

    def _take_connection(self) -> None:
        with as_transport_errors(f"cannot connect to the writer of channel {self._channel.name!r}"), no_fork():
            if not self._listening:
                return
            listener = self._socket
            looking = listener.dup()  # before there is a connection, whose end would be a death to the writer
            try:
                connection = self._places.accept(listener, self._place, self._knocking)
            except OSError:
                looking.close()
                raise
            if connection is None:  # it has not said who it is, or was somebody else
                looking.close()
                if self._watch is not None:
                    for each in self._knocking:
                        self._watch.add(each.connection)
                return
            os.dup2(connection.fileno(), looking.fileno(), inheritable=False)
            poller = select.poll()  # kept, since making one costs as much as the wait
            poller.register(connection, select.POLLIN)
            self._poll = poller.poll
            connection.settimeout(_TRY_S)
            looking.setblocking(False)
            self._socket, self._looking, self._listening = connection, looking, False
            listener.close()
            self._forget_knocking()
            if self._watch is not None:
                self._watch.add(connection)

    def _forget_knocking(self) -> None:
        for each in self._knocking:
            each.connection.close()
        self._knocking.clear()

    def _check_note(self) -> None:
        try:
            super()._check_note()
        except EndOfStream:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # from now on, the descriptor is readable
            raise

    def _check_writer(self) -> None:
        self._check_note()
        if self._liveness.is_gone("writer"):
            self._fail(self._lost())

    def _refuse(self, failure: TransportError) -> None:
        super()._refuse(failure)
        self._start = self._end = 0

    def _drop(self) -> None:
        self._socket.close()
        self._looking.close()
        self._forget_knocking()
        if self._watch is not None:
            self._watch.close()

    def _say_goodbye(self) -> None:
        with contextlib.suppress(OSError):
            self._place.unlink(missing_ok=True)
        super()._say_goodbye()
        with contextlib.suppress(TransportError):  # the channel was destroyed before
            _ring(self._liveness.directory)
