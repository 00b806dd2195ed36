"""The ends of `mp-queue`: a `multiprocessing.Queue` for each reader.

A Queue of many readers would give each message to one of them; and a reader that is killed while it has the queue's
lock leaves all others waiting for ever. Here nobody else waits for a reader's lock.
"""

from __future__ import annotations

from typing import Any

from ipcbench.backends.mp.endpoint import MpWriter, PolledReader

_LOCKED_S = 1.0
"""How long the thread of a queue may hold its lock."""


class QueueWriter(MpWriter):
    """Puts each message into the queue of every reader; the queue's own thread pickles and sends it."""

    def connect(self) -> list[Any]:
        queues = super().connect()
        for queue in queues:
            queue._reader.close()  # so that the thread ends with the reader
            queue._ignore_epipe = True  # a reader may close before it has read everything
        return queues

    def disconnect(self) -> None:
        for queue in self.library:
            if not queue._notempty.acquire(timeout=_LOCKED_S):  # a handler's exception in `put` may leave it locked
                queue.cancel_join_thread()
                queue._close.cancel()
                queue._writer.close()
                continue
            queue._notempty.release()
            queue.close()  # what was put is still sent, and the process waits for that when it ends
            if queue._thread is None:
                queue._writer.close()


class QueueReader(PolledReader):
    """Gets messages from its queue."""

    def source_of(self, end: Any) -> Any:
        end._writer.close()  # or the writer's death would not be seen
        return end._reader

    def take_next(self) -> bytes:
        message: bytes = self.library.get()
        return message

    def disconnect(self) -> None:
        self.library._reader.close()
