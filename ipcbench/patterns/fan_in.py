"""Fan-in: a channel for each writer; the reader takes what comes, from one writer after the other."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ipcbench.backend import Address, Reader, require_some
from ipcbench.errors import EndOfStream, PeerLost, TransportTimeout
from ipcbench.patterns.parts import Composed, Looks
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync.directory import as_transport_errors
from ipcbench.sync.wait import Watch
from ipcbench.util.clock import deadline_ns, now_ns

_LISTEN_EVERY = 16
"""How many messages are read between two looks for writers that have something, while some are known to."""


class FanInReader(Composed, Reader):
    """Reads the messages of all writers: of each in order, and of all that have some, in turns.

    A signal handler may raise between any two steps. So what was read, and who was lost, is kept in an attribute until
    it is returned, or raised; and to forget a writer twice does nothing.

    Attributes:
        last_writer: index of the writer of the last message.
    """

    def __init__(self, channel: ChannelSpec, parts: list[Address], open_part: Callable[[Address], Reader]) -> None:
        """Open a reader of each channel.

        Raises:
            TransportError: as `Backend.open_reader`; none is left open.
        """
        super().__init__(channel)
        self.last_writer = -1
        with ExitStack() as undo:
            self._sources = {index: undo.enter_context(open_part(each)) for index, each in enumerate(parts)}
            self._all = list(self._sources.values())
            self._poller = select.poll()
            self._index_of: dict[int, int] = {}
            for index, source in self._sources.items():
                descriptor = source.fileno()
                if descriptor is not None:
                    self._index_of[descriptor] = index
                    self._poller.register(descriptor, select.POLLIN)
            undo.pop_all()
        self._watch: Watch | None = None
        self._ready = deque(self._sources)
        self._lost: deque[int] = deque()
        self._views: Sequence[memoryview] = ()
        self._of_views = -1
        self._looks = Looks()
        self._until_listening = _LISTEN_EVERY

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    def read(self, timeout_s: float | None = None) -> memoryview:
        self._fetch(1, timeout_s)
        view, self._views = self._views[0], self._views[1:]
        return view

    def read_many(self, most: int, timeout_s: float | None = None) -> list[memoryview]:
        require_some(most)
        self._fetch(most, timeout_s)
        views = list(self._views[:most])  # before it is kept nowhere else: a handler may raise as a call in C returns
        self._views = self._views[most:]
        return views

    def _fetch(self, most: int, timeout_s: float | None) -> None:
        """Read messages of one writer, unless some are left of a call that was interrupted."""
        self._require_open()
        if not self._views:
            self.release()
        deadline, is_first = deadline_ns(timeout_s), True
        while not self._views:
            self._tell_loss()
            if self._ready:
                self._take(self._ready[0], most)
                continue
            if not self._sources:
                raise EndOfStream(f"all writers of channel {self._channel.name!r} have closed")
            if not is_first and deadline is not None and now_ns() >= deadline:
                raise TransportTimeout(f"no message in channel {self._channel.name!r} within {timeout_s} s")
            is_first = False
            self._listen(deadline)
        self._until_listening -= 1
        if self._until_listening <= 0:  # a writer that always has something must not hide the others
            self._until_listening = _LISTEN_EVERY
            self._listen(0)
        self.last_writer = self._of_views

    def _take(self, index: int, most: int) -> None:
        """Read from the first writer that may have something, and put it to the end of the line."""
        source = self._sources.get(index)
        if source is None:
            self._ready.popleft()
            return
        self._of_views = index
        once = zip(map(source.read, (0.0,))) if most == 1 else map(source.read_many, (most,), (0.0,))
        try:
            for self._views in once:  # between its step, in C, and this store, no signal handler runs: nothing is lost
                pass
        except TransportTimeout:
            self._ready.popleft()
        except EndOfStream:
            self._forget(index)
        except PeerLost:
            self._lost.append(index)
        else:
            self._ready.rotate(-1)

    def _tell_loss(self) -> None:
        if self._lost:
            index = self._lost[0]
            self._forget(index)
            loss = PeerLost(f"writer {index} of channel {self._channel.name!r} died without closing; the others go on")
            self._lost.popleft()
            raise loss

    def _forget(self, index: int) -> None:
        for descriptor, each in list(self._index_of.items()):
            if each == index:
                del self._index_of[descriptor]
                self._poller.unregister(descriptor)
        source = self._sources.pop(index, None)
        if source is not None:
            source.close()

    def _listen(self, deadline: int | None) -> None:
        """Wait until some may have something, or it is time to look."""
        now = now_ns()
        if now >= self._looks.due_ns:
            self._ready.extend(index for index in self._looks.take(now, self._sources) if index not in self._ready)
            return
        until = self._looks.due_ns if deadline is None else min(self._looks.due_ns, deadline)
        for descriptor, _ in self._poller.poll(max(0, -(-(until - now) // 1_000_000))):
            index = self._index_of.get(descriptor)
            if index is not None and index not in self._ready:
                self._ready.append(index)

    def fileno(self) -> int:
        self._require_open()
        if self._watch is None:
            with as_transport_errors(f"cannot wait for channel {self._channel.name!r}"):
                self._watch = Watch()
            for descriptor in self._index_of:
                self._watch.add(descriptor)
        return self._watch.fileno()

    def release(self) -> None:
        source = self._sources.get(self.last_writer)
        if source is not None and not self._views:  # what waits for the next `read` is not to be given up
            source.release()

    def close(self) -> None:
        self._closed = True
        with ExitStack() as closing:
            if self._watch is not None:
                closing.callback(self._watch.close)
            for source in self._all:
                closing.callback(source.close)
