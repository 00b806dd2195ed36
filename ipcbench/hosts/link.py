"""The link between the coordinator and the agent of a host: frames over pipes or a socket, with a sign of life in each
direction every second, so that a link that was cut in silence is noticed at both ends.

A frame is its size in four bytes and a msgpack list: the number of a stream, then what happens on it. Stream 0 is the
agent's; each worker of the host has one of its own.
"""

from __future__ import annotations

import os
import select
import threading
from struct import Struct
from typing import Any

import msgpack

from ipcbench.errors import TrialError
from ipcbench.util.clock import deadline_ns, remaining_s

BEAT_S, SILENCE_S = 1.0, 5.0
"""How often each side gives a sign of life; without one for so long, the other side is lost."""
AGENT = 0
"""The agent's stream."""
_SIZE = Struct("<I")
_ALIVE = _SIZE.pack(0)
_CHUNK_BYTES = 2**18


class LinkLost(TrialError):
    """The other side of a link is gone, or silent."""


class Link:
    """One end of a link.

    Args:
        incoming: descriptor to read from; it becomes the link's.
        outgoing: descriptor to write to; it becomes the link's.
        who: the other side, in errors.
    """

    def __init__(self, incoming: int, outgoing: int, who: str) -> None:
        self._incoming, self._outgoing, self._who = incoming, outgoing, who
        for descriptor in (incoming, outgoing):
            os.set_blocking(descriptor, False)
        self._sends = threading.Lock()
        self._ends = threading.Event()
        self._received = bytearray()
        threading.Thread(target=self._beat, name=f"signs of life to {who}", daemon=True).start()

    def send(self, stream: int, *words: Any) -> None:
        """Send a frame; from any thread.

        Raises:
            LinkLost: the other side is gone, or takes nothing for `SILENCE_S`.
        """
        frame = msgpack.packb([stream, *words], use_bin_type=True)
        self._send(_SIZE.pack(len(frame)) + frame)

    def receive(self, silence_s: float = SILENCE_S) -> list[Any]:
        """Return the next frame; from one thread.

        Raises:
            LinkLost: the other side is gone, or gave no sign of life for `silence_s`.
        """
        while True:
            (size,) = _SIZE.unpack(self._take(_SIZE.size, silence_s))
            if size:
                try:
                    frame: list[Any] = msgpack.unpackb(self._take(size), raw=False)
                except (msgpack.UnpackException, ValueError) as error:
                    raise LinkLost(f"{self._who} sent something that is no frame: {error}") from error
                return frame

    def close(self) -> None:
        """End the link; the other side notices. Twice is fine."""
        if not self._ends.is_set():
            self._ends.set()
            with self._sends:
                for descriptor in {self._incoming, self._outgoing}:
                    os.close(descriptor)

    def _beat(self) -> None:
        while not self._ends.wait(BEAT_S):
            try:
                self._send(_ALIVE)
            except LinkLost:
                return  # whoever receives notices it, too

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        with self._sends:
            deadline = deadline_ns(SILENCE_S)
            while left:
                if self._ends.is_set():
                    raise LinkLost(f"{self._who}: the link is closed")
                try:
                    left = left[os.write(self._outgoing, left) :]
                    deadline = deadline_ns(SILENCE_S)
                except BlockingIOError:
                    if not self._is_ready(self._outgoing, select.POLLOUT, deadline):
                        raise LinkLost(f"{self._who} takes nothing any more") from None
                except OSError as error:
                    raise LinkLost(f"{self._who} is gone") from error

    def _take(self, size: int, silence_s: float = SILENCE_S) -> bytes:
        """Return the next bytes that were sent."""
        deadline = deadline_ns(silence_s)
        while len(self._received) < size:
            try:
                more = os.read(self._incoming, _CHUNK_BYTES)
            except BlockingIOError:
                if not self._is_ready(self._incoming, select.POLLIN, deadline):
                    raise LinkLost(f"{self._who} gave no sign of life for {silence_s:.0f} s") from None
                continue
            except OSError as error:
                raise LinkLost(f"{self._who} is gone") from error
            if not more:
                raise LinkLost(f"{self._who} is gone")
            self._received += more
            deadline = deadline_ns(SILENCE_S)
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    @staticmethod
    def _is_ready(descriptor: int, event: int, deadline: int | None) -> bool:
        poll = select.poll()
        poll.register(descriptor, event)
        left_s = remaining_s(deadline)
        return bool(poll.poll(None if left_s is None else 1e3 * left_s))
