"""The ends of `mp-queue`: a `multiprocessing.Queue` for each reader.

A Queue of many readers would give each message to one of them; and a reader that is killed while it has the queue's
lock leaves all others waiting for ever. Here nobody else waits for a reader's lock.
"""

from __future__ import annotations

import os
import select
from typing import Any

from ipcbench.backends.mp.endpoint import MpReader, MpWriter, poller, slice_s
from ipcbench.sync.locks import reader_roles
from ipcbench.util.clock import deadline_ns, remaining_s


class QueueWriter(MpWriter):
    """Puts each message into the queue of every reader; the queue's own thread pickles and sends it."""

    def _hold(self, end: list[Any]) -> None:
        self._pid = os.getpid()
        self._queues = dict(zip(reader_roles(self._channel), end, strict=True))
        self._all = end
        for queue in self._all:
            queue._reader.close()  # or no reader's death would be seen
            queue._ignore_epipe = True  # a reader may close before it has read everything
            queue._sem.acquire(False)  # the room for what ends the stream

    def _send(self, message: bytes, timeout_s: float | None) -> None:
        queues = self._queues.values()
        for queue in queues:
            if queue.full():
                self._make_room(timeout_s)
                break
        for queue in queues:
            queue.put(message)

    def _make_room(self, timeout_s: float | None) -> None:
        """Wait until every queue has room; nobody else fills it. `put` itself would wait for one after the other."""
        deadline = deadline_ns(timeout_s)
        for role, queue in list(self._queues.items()):
            room: Any = queue._sem
            while not room.acquire(True, slice_s(deadline)):
                if self._has_closed(role):
                    del self._queues[role]
                    break
                if remaining_s(deadline) == 0.0:
                    self._full(role)
            else:
                room.release()

    def _flush(self) -> None:
        for queue in self._all:
            queue._sem.release()
            queue.put(None)

    def _drop(self) -> None:
        for queue in self._all:
            if os.getpid() == self._pid:  # in a forked child, there is no thread
                queue.close()  # what was put is still sent, and the process waits for that when it ends
            if queue._thread is None or os.getpid() != self._pid:
                queue._writer.close()


class QueueReader(MpReader):
    """Gets messages from its queue."""

    def _hold(self, end: Any) -> None:
        self._queue = end
        end._writer.close()  # or the writer's death would not be seen
        self._poll = poller(end._reader.fileno(), select.POLLIN)

    def _receive(self, timeout_s: float | None) -> bytes | None:
        message: bytes | None = self._queue.get()
        return message

    def _drop(self) -> None:
        self._queue._reader.close()
