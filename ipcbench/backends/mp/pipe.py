"""The ends of `mp-pipe`: a `multiprocessing.Pipe` for each reader. It holds bytes, and the cursors count messages."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

from ipcbench.backends.mp.endpoint import MpWriter, PolledReader
from ipcbench.sync.cursors import CLOSED
from ipcbench.sync.interrupts import start_thread
from ipcbench.sync.parent import close_in_children
from ipcbench.util.clock import deadline_ns, remaining_s

_PATIENCE_MS = 100
"""How long a reader may take nothing before a thread sends it the rest of the message."""
_LINGER_S = 30.0
"""How long a closed writer waits until the pipes have taken everything."""


class _Sending(Connection):
    """A connection whose `send_bytes` does not wait for ever: a thread sends what its reader does not take."""

    def __init__(self, end: Connection) -> None:
        super().__init__(os.dup(end.fileno()), readable=False)
        close_in_children(self)
        os.set_blocking(self.fileno(), False)
        end.close()
        polling = select.poll()
        polling.register(self.fileno(), select.POLLOUT)
        self._has_room = polling.poll
        self._rest, self._lock = deque[memoryview](), threading.Lock()
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
        """Leave a copy of a piece to the thread; return False if there is none and none is to begin."""
        with self._lock:
            if self.settled.is_set() and not begin:
                return False
            self._rest.append(memoryview(bytes(piece)))
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

    reaches_others = True

    def connect(self) -> list[Any]:
        return [_Sending(end) for end in super().connect()]

    def send(self, message: bytes | bytearray | memoryview) -> None:
        loss = None
        for index in self.readers():
            try:
                self.library[index].send_bytes(message)
            except BrokenPipeError as error:
                if self._cursors.words[self._states[index]] != CLOSED:
                    loss = error
        if loss is not None:  # the others have got it
            raise loss

    def is_handed_over(self) -> bool:
        deadline = deadline_ns(_LINGER_S)
        return all(sending.settled.wait(remaining_s(deadline)) for sending in self.library)

    def disconnect(self) -> None:
        for sending in self.library:
            sending.settled.set()
            sending.close()


class PipeReader(PolledReader):
    """Receives its messages."""

    def source_of(self, end: Any) -> Any:
        return end

    def take_next(self) -> bytes:
        message: bytes = self.library.recv_bytes()
        return message

    def disconnect(self) -> None:
        self.library.close()
