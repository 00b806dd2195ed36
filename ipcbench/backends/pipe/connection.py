"""The writer's connection to one reader, and the thread that sends later what the kernel did not take at once."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterable

_MOST_PIECES = 64
_LOOK_MS = 50
"""How soon the thread takes care of a lane that is handed over while it waits for another one."""


class Lane:
    """A connection to one reader.

    Attributes:
        role: the reader's.
        socket: the connection.
        read: how many messages the reader has said it has read.
        held: whether the pump has something to send here, so that everything else must queue behind it.
    """

    __slots__ = ("backlog", "held", "read", "role", "socket")

    def __init__(self, role: str, connection: socket.socket) -> None:
        self.role = role
        self.socket = connection
        self.read = 0
        self.held = False
        self.backlog: list[memoryview] = []

    def push(self, pieces: list[memoryview]) -> bool:
        """Send as much as the kernel takes now and cut it off `pieces`; return whether that was all.

        Raises:
            OSError: the reader is gone.
        """
        try:
            sent = self.socket.sendmsg(pieces[:_MOST_PIECES], (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.pop(0))
        if sent:
            pieces[0] = pieces[0][sent:]
        return not pieces


class Pump:
    """Sends backlogs from a thread, which lives while there are any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []
        self._thread: threading.Thread | None = None

    def add(self, lane: Lane, pieces: Iterable[memoryview], *, start: bool) -> bool:
        """Copy `pieces` and send them after all that is held for this lane.

        Args:
            start: False to do so only if something is held for it still.

        Returns:
            Whether they were taken.
        """
        with self._lock:
            if not (lane.held or start):
                return False
            lane.backlog.append(memoryview(b"".join(pieces)))
            if not lane.held:
                lane.held = True
                self._lanes.append(lane)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            return True

    def join(self, timeout_s: float) -> bool:
        """Wait until all is sent; return whether it is."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return self._thread is None

    def _run(self) -> None:
        while True:
            poller = select.poll()
            with self._lock:
                self._lanes = [lane for lane in self._lanes if not self._is_done(lane)]
                if not self._lanes:
                    self._thread = None
                    return
                for lane in self._lanes:
                    poller.register(lane.socket, select.POLLOUT)
            poller.poll(_LOOK_MS)

    @staticmethod
    def _is_done(lane: Lane) -> bool:
        try:
            lane.held = not lane.push(lane.backlog)
        except OSError:  # the writer will find out for itself, and say so
            lane.backlog.clear()
            lane.held = False
        return not lane.held
