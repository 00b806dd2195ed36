"""The link between the coordinator and the agent of a host: frames over what their launcher carries, with a sign of
life in each direction every second, so that a link that was cut in silence is noticed at both ends.

A frame is its size in four bytes and a msgpack list: the number of a stream, then what happens on it. Stream 0 is the
agent's; each worker of the host has one of its own.
"""

from __future__ import annotations

import select
import threading
from struct import Struct
from typing import Any

import msgpack

from ipcbench.hosts.sealed import Bare, LinkLost, is_ready
from ipcbench.util.clock import deadline_ns

BEAT_S, SILENCE_S = 1.0, 5.0
"""How often each side gives a sign of life; without one for so long, the other side is lost."""
AGENT = 0
"""The agent's stream."""
_SIZE = Struct("<I")
_ALIVE = _SIZE.pack(0)


class Link:
    """One end of a link.

    Args:
        carrier: what carries it; it becomes the link's.
        who: the other side, in errors.
    """

    def __init__(self, carrier: Bare, who: str) -> None:
        self._carrier, self._who = carrier, who
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
                self._carrier.close()

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
            while True:
                if self._ends.is_set():
                    raise LinkLost(f"{self._who}: the link is closed")
                try:
                    while left:
                        left = left[self._carrier.write(left) :]
                        deadline = deadline_ns(SILENCE_S)
                    return self._carrier.flush()
                except BlockingIOError:
                    if not is_ready(self._carrier.outgoing, select.POLLOUT, deadline):
                        raise LinkLost(f"{self._who} takes nothing any more") from None
                except OSError as error:
                    raise LinkLost(f"{self._who} is gone") from error

    def _take(self, size: int, silence_s: float = SILENCE_S) -> bytes:
        """Return the next bytes that were sent."""
        deadline = deadline_ns(silence_s)
        while len(self._received) < size:
            try:
                more = self._carrier.read()
            except BlockingIOError:
                if not is_ready(self._carrier.incoming, select.POLLIN, deadline):
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
