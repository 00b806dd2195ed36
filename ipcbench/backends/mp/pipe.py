"""The ends of `mp-pipe`: a `multiprocessing.Pipe` for each reader, and one back for its receipts.

A pipe holds bytes, a channel messages: a reader sends a receipt for each batch that it has received, and the writer
stops when one is `depth` messages behind. The pipe ends when its writer's process does. Its end is in good order if
the writer has noted that it closes, which it does when the pipe has taken everything.
"""

from __future__ import annotations

import math
import os
import select
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ipcbench.backends.mp.endpoint import MpReader, MpWriter, poller, slice_s
from ipcbench.errors import PeerLost
from ipcbench.sync.interrupts import in_background, start_thread
from ipcbench.sync.locks import reader_roles
from ipcbench.util.clock import deadline_ns, remaining_s

_PATIENCE_MS = 100
"""How long a reader may take nothing before a thread sends it the rest of the message."""
_LINGER_S, _CLOSE_S = 30.0, 0.1
"""How long a closed writer waits for slow readers, and how long `close` waits for that."""
_BATCHES = 4


class _Sending(Connection):
    """A connection whose `send_bytes` does not wait for ever: a thread sends what its reader does not take."""

    def __init__(self, end: Connection) -> None:
        super().__init__(os.dup(end.fileno()), readable=False)
        os.set_inheritable(self.fileno(), False)
        os.set_blocking(self.fileno(), False)
        end.close()
        self._has_room = poller(self.fileno(), select.POLLOUT)
        self._rest: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self.settled = threading.Event()
        self.settled.set()

    def _send(self, data: bytes, write: Any = os.write) -> None:
        if not self.settled.is_set() and self._hand_over(memoryview(data), begin=False):
            return
        left = memoryview(data)
        while left:
            try:
                left = left[write(self.fileno(), left) :]
            except BlockingIOError:
                if not self._has_room(_PATIENCE_MS):
                    self._hand_over(left, begin=True)
                    return

    def _hand_over(self, piece: memoryview, *, begin: bool) -> bool:
        """Leave a piece to the thread; return False if there is none and none is to begin."""
        with self._lock:
            if self.settled.is_set() and not begin:
                return False
            self._rest.append(piece)
            if not begin:
                return True
            self.settled.clear()
        start_thread(self._send_rest)
        return True

    def _send_rest(self) -> None:
        while not self.settled.is_set():
            try:
                if self._has_room(_PATIENCE_MS):
                    self._rest[0] = self._rest[0][os.write(self.fileno(), self._rest[0]) :]
            except BlockingIOError:
                continue
            except OSError:  # the reader is gone, as the next `send_bytes` finds out; or this end is closed
                self._rest.clear()
            with self._lock:
                if self._rest and not self._rest[0]:
                    self._rest.popleft()
                if not self._rest:
                    self.settled.set()


class PipeWriter(MpWriter):
    """Sends each message to every reader."""

    def _hold(self, end: list[tuple[Connection, Connection]]) -> None:
        self._batch = max(1, self._channel.depth // _BATCHES)
        self._window = self._channel.depth + self._batch - 1
        self._room = self._sent = 0
        self._ends = {
            role: (_Sending(sending), receipts)
            for role, (sending, receipts) in zip(reader_roles(self._channel), end, strict=True)
        }
        self._all = list(self._ends.values())
        self._received = dict.fromkeys(self._ends, 0)
        for _, receipts in self._all:
            os.set_blocking(receipts.fileno(), False)

    def _send(self, message: bytes, timeout_s: float | None) -> None:
        if not self._room:
            self._make_room(timeout_s)
        self._room -= 1
        self._sent += 1
        lost = None
        for role, (sending, _) in list(self._ends.items()):
            try:
                sending.send_bytes(message)
            except BrokenPipeError:
                try:
                    self._forget(role)
                except PeerLost as error:  # the others get it
                    lost = error
        if lost is not None:
            raise lost

    def _make_room(self, timeout_s: float | None) -> None:
        deadline = deadline_ns(timeout_s)
        while True:
            for role in list(self._ends):
                self._count_receipts(role)
            slowest = min(self._ends, key=self._received.__getitem__, default=None)
            if slowest is None:
                self._room = self._window
                return
            self._room = self._received[slowest] + self._window - self._sent
            if self._room > 0:
                return
            self._room = 0
            if not poller(self._ends[slowest][1].fileno(), select.POLLIN)(math.ceil(1e3 * slice_s(deadline))):
                if self._has_closed(slowest):
                    del self._ends[slowest]
                elif remaining_s(deadline) == 0.0:
                    self._full(slowest)

    def _count_receipts(self, role: str) -> None:
        try:
            count = len(os.read(self._ends[role][1].fileno(), 65536))
        except BlockingIOError:
            return
        self._received[role] += count * self._batch
        if not count:
            self._forget(role)

    def _forget(self, role: str) -> None:
        """Forget a reader whose pipe has ended.

        Raises:
            PeerLost: it has not closed.
        """
        del self._ends[role]
        if self._liveness.note_of(role) is None:
            self._lose(role)

    def _finish(self, *, is_whole: bool) -> None:
        if not is_whole or all(sending.settled.is_set() for sending, _ in self._all):
            super()._finish(is_whole=is_whole)
        else:
            in_background(partial(super()._finish, is_whole=is_whole), f"{self._channel.name} flush", _CLOSE_S)

    def _flush(self) -> None:
        deadline = deadline_ns(_LINGER_S)
        for sending, _ in self._all:
            if not sending.settled.wait(remaining_s(deadline)):
                self._break(TimeoutError())

    def _drop(self) -> None:
        for sending, receipts in self._all:
            sending.settled.set()
            sending.close()
            receipts.close()


class PipeReader(MpReader):
    """Receives its messages, and sends receipts."""

    def _hold(self, end: tuple[Connection, Connection]) -> None:
        self._connection, self._receipts = end
        self._batch = self._owed = max(1, self._channel.depth // _BATCHES)
        self._poll = poller(self._connection.fileno(), select.POLLIN)

    def _receive(self, timeout_s: float | None) -> bytes | None:
        try:
            message = self._connection.recv_bytes()
        except EOFError:
            if self._liveness.note_of("writer") is None:
                raise
            return None
        self._owed -= 1
        if not self._owed:
            self._owed = self._batch
            with suppress(BrokenPipeError):  # the writer has closed
                os.write(self._receipts.fileno(), b"\0")
        return message

    def _drop(self) -> None:
        self._connection.close()
        self._receipts.close()
