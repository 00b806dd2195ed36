"""What the ends have in common: the parent of their process hands them over, and a broken one means a death.

A reader says only after each batch how many messages it has, so that each look of the writer finds room for several;
the channel may hold so many more than `depth`, less one.
"""

from __future__ import annotations

import math
import select
from abc import abstractmethod
from contextlib import suppress
from queue import Full
from typing import Any, ClassVar

from ipcbench.backends.mp.kept import batch_of, take
from ipcbench.errors import PeerLost, TransportError
from ipcbench.sync import CarriedReader, CarriedWriter, reader_role
from ipcbench.sync.parent import in_parent


class MpWriter(CarriedWriter):
    """Hands each message to every reader that has not closed."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (EOFError,)

    def connect(self) -> list[Any]:
        self.depth += batch_of(self.address.channel) - 1
        ends: list[Any] = in_parent(take, self.address, "writer")
        return ends

    def send(self, message: bytes | bytearray | memoryview) -> None:
        message = bytes(message)
        for index in self.readers():
            with suppress(Full):  # only the queue of a reader that has just closed
                self.library[index].put(message, False)

    def is_handed_over(self) -> bool:
        return True

    def lost(self, error: BaseException) -> TransportError:
        return PeerLost(f"a reader of channel {self.address.channel.name!r} died without closing")


class MpReader(CarriedReader):
    """Has an end of its own."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (EOFError,)

    def connect(self) -> Any:
        self._batch = batch_of(self.address.channel)
        return in_parent(take, self.address, reader_role(self.address.channel, self.index))

    def _done(self, count: int) -> None:
        if count % self._batch == 0:
            self._cursors.done_with(count)

    def lost(self, error: BaseException) -> TransportError:
        return PeerLost(f"the writer of channel {self.address.channel.name!r} died without closing")


class PolledReader(MpReader):
    """Waits for a connection and then receives; no time-out ends the wait for the rest of a message."""

    def connect(self) -> Any:
        end = super().connect()
        polling = select.poll()
        polling.register(self.source_of(end), select.POLLIN)
        self._poll = polling.poll
        return end

    @abstractmethod
    def source_of(self, end: Any) -> Any:
        """Return the connection that the messages come by."""

    @abstractmethod
    def take_next(self) -> bytes:
        """Receive what is there or on its way."""

    def receive(self, timeout_s: float) -> bytes | None:
        self.is_waiting = True
        if not self._poll(math.ceil(1e3 * timeout_s)):
            return None
        self.is_waiting = False
        return self.take_next()
