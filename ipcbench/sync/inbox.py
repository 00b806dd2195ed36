"""Readers of messages that a thread of the library receives, which puts them into an inbox."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque

from ipcbench.backend import Reader
from ipcbench.errors import TransportError
from ipcbench.sync.directory import as_transport_errors
from ipcbench.sync.liveness import CHECK_NS
from ipcbench.sync.loop import News
from ipcbench.sync.peers import PeerEndpoint
from ipcbench.util.clock import deadline_ns, slice_s

_CHECK_S = CHECK_NS / 1e9


class Inbox:
    """What a thread has received. It knows no endpoint, so that one which is dropped can end the thread.

    Attributes:
        messages: those that were not read.
        news: tells whoever reads that there is something.
        failure: why nothing comes after the messages.
    """

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.news = News()
        self.failure: TransportError | None = None

    def put(self, message: bytes) -> None:
        """Put a message in."""
        self.messages.append(message)
        if self.news.is_awaited:
            self.news.tell()

    def end(self, failure: TransportError) -> None:
        """Have no more messages; a reader raises that after the last one."""
        self.failure = failure.with_traceback(None)  # which would keep the channel
        self.news.tell()

    def has_news(self) -> bool:
        """Return whether there is a message, or there will be none."""
        return bool(self.messages) or self.failure is not None


class InboxReader(PeerEndpoint, Reader):
    """Takes messages from an inbox, and tells the writer so."""

    _inbox: Inbox
    _batch: int
    """After how many messages the writer is told."""

    def _receive_into(self, inbox: Inbox) -> None:
        self._inbox, self._messages = inbox, inbox.messages
        self._count, self._due_count = 0, self._batch

    @abstractmethod
    def _tell_taken(self, count: int) -> None:
        """Tell the writer that so many messages were taken in all."""

    def read(self, timeout_s: float | None = None) -> memoryview:
        messages = self._messages
        if not messages or self._failure is not None:
            self._await(timeout_s)
        view = memoryview(messages[0])
        if self._count + 1 >= self._due_count:
            self._tell_taken(self._count + 1)
            self._due_count = self._count + 1 + self._batch
        # No exception of a signal handler comes between the step of an iterator in C and the first call in the body.
        for _ in iter(messages.popleft, None):
            self._count += 1
            break
        return view

    def _await(self, timeout_s: float | None) -> None:
        """Wait until a message is there."""
        inbox, deadline = self._inbox, deadline_ns(timeout_s)
        self._require_usable()
        while not inbox.has_news():
            left_s = slice_s(deadline, _CHECK_S)
            inbox.news.wait(inbox.has_news, left_s)
            if not left_s:
                inbox.news.silence()
            if not inbox.has_news():
                self._check_writer()
                if not left_s:
                    raise self._timed_out("no message in", timeout_s)
            self._require_usable()
        if not inbox.messages and inbox.failure is not None:  # which came after all messages
            self._fail(inbox.failure)

    def _check_writer(self) -> None:
        """Raise PeerLost if the writer has died, though a child of its may keep the connection."""
        if not self._liveness.is_check_due():
            return
        self._check_note()
        # With a note of its, or with news, the end is on its way.
        is_gone = self._liveness.is_gone("writer") and self._liveness.note_of("writer") is None
        if is_gone and not self._inbox.has_news():
            self._fail(self._lost())

    def fileno(self) -> int:
        self._require_open()
        with as_transport_errors(f"cannot wait for channel {self._channel.name!r}"):
            return self._inbox.news.fileno()
