"""Fan-in: a channel for each writer; the reader takes what comes, from one writer after the other."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from ipcbench.backend import Address, Reader
from ipcbench.errors import EndOfStream, EndpointClosed, PeerLost, TransportTimeout
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.util.clock import deadline_ns, now_ns

LOOK_NS = 100_000_000
"""Interval of looks at all of them, since a death makes no descriptor readable."""


class FanInReader(Reader):
    """Reads the messages of all writers: of each in order, and of all that have some, in turns.

    Attributes:
        last_writer: index of the writer of the last message.
    """

    def __init__(self, channel: ChannelSpec, parts: list[Address], open_part: Callable[[Address], Reader]) -> None:
        """Open a reader of each channel.

        Raises:
            TransportError: as `Backend.open_reader`; none is left open.
        """
        self._channel = channel
        self.last_writer = -1
        self._closed = False
        with ExitStack() as undo:
            self._sources = {index: undo.enter_context(open_part(each)) for index, each in enumerate(parts)}
            self._all = list(self._sources.values())
            self._poller = select.poll()
            self._index_of = {}
            for index, source in self._sources.items():
                descriptor = source.fileno()
                if descriptor is not None:
                    self._index_of[descriptor] = index
                    self._poller.register(descriptor, select.POLLIN)
            undo.pop_all()
        self._ready = deque(self._sources)
        self._view: memoryview | None = None
        self._of_view = -1
        self._look_ns = now_ns() + LOOK_NS

    @property
    def waits(self) -> WaitStrategy:
        return "block"

    def read(self, timeout_s: float | None = None) -> memoryview:
        if self._closed:
            raise EndpointClosed(f"the reader of channel {self._channel.name!r} is closed")
        if self._view is None:  # else one is left of a call that was interrupted
            self.release()
        deadline: int | None = 0
        while True:
            while self._ready and self._view is None:
                self._take(self._ready[0])
            if self._view is not None:
                self.last_writer = self._of_view
                view, self._view = self._view, None
                return view
            if not self._sources:
                raise EndOfStream(f"all writers of channel {self._channel.name!r} have closed")
            deadline = deadline or deadline_ns(timeout_s)
            if deadline is not None and now_ns() >= deadline:
                raise TransportTimeout(f"no message in channel {self._channel.name!r} within {timeout_s} s")
            self._wait(deadline)

    def _take(self, index: int) -> None:
        """Read from the first writer that may have something, and put it to the end of the line."""
        self._of_view = index
        once = map(self._sources[index].read, (0.0,))
        try:
            for self._view in once:  # between its step, in C, and this store, no signal handler runs: nothing is lost
                pass
        except TransportTimeout:
            self._ready.popleft()
        except EndOfStream:
            self._forget(index)
        except PeerLost as error:
            self._forget(index)
            raise PeerLost(
                f"writer {index} of channel {self._channel.name!r} died without closing; the others go on"
            ) from error
        else:
            self._ready.rotate(-1)

    def _forget(self, index: int) -> None:
        self._ready.popleft()
        source = self._sources.pop(index)
        for descriptor, each in list(self._index_of.items()):
            if each == index:
                self._poller.unregister(descriptor)
                del self._index_of[descriptor]
        source.close()

    def _wait(self, deadline: int | None) -> None:
        """Wait until some may have something, or it is time to look at all of them."""
        now = now_ns()
        if now >= self._look_ns:
            self._look_ns = now + LOOK_NS
            self._ready.extend(self._sources)
            return
        until = self._look_ns if deadline is None else min(self._look_ns, deadline)
        for descriptor, _ in self._poller.poll(-(-(until - now) // 1_000_000)):
            self._ready.append(self._index_of[descriptor])

    def release(self) -> None:
        source = self._sources.get(self.last_writer)
        if source is not None:
            source.release()

    def close(self) -> None:
        self._closed = True
        with ExitStack() as closing:
            for source in self._all:
                closing.callback(source.close)
