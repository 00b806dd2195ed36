"""What the writer and the readers of a channel have in common: the frame of a message, credit, and waiting."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterable
from pathlib import Path
from struct import Struct

from ipcbench.backend import Address
from ipcbench.backends.stream.places import Places
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync import peers
from ipcbench.sync.peers import PeerEndpoint
from ipcbench.util.clock import now_ns, remaining_s

SIZE = Struct("<Q")
"""The head of a message: its size."""
END = 2**64 - 1
"""The size that ends a stream."""

HEAD_BYTES = SIZE.size
_PROMPT_BYTES = 2**16
"""From this size on, a receipt is cheap compared with a message."""
_MOST_RECEIPTS = 64


def credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return the window and the batch. The kernel has room for all receipts that can be under way."""
    return peers.credit(channel, _MOST_RECEIPTS if channel.max_message_bytes >= _PROMPT_BYTES else 4)


def doorbell_path(directory: Path) -> Path:
    """Return the path of the doorbell on which the writer waits for its readers."""
    return directory / "writer.bell"


def way_of_waiting(channel: ChannelSpec) -> WaitStrategy:
    """Return how the endpoints of a channel wait."""
    return "block" if channel.wait == "auto" else channel.wait


def wait_ready(
    sockets: Iterable[socket.socket], event: int, deadline: int | None, strategy: WaitStrategy = "block"
) -> bool:
    """Wait until one of the sockets is ready for `event` or broken; return False if none is by `deadline` (ns)."""
    poller = select.poll()
    for waiting in sockets:
        poller.register(waiting, event)
    if strategy in {"auto", "block"}:
        left_s = remaining_s(deadline)
        return bool(poller.poll(None if left_s is None else left_s * 1e3))
    while not poller.poll(0):
        if deadline is not None and now_ns() >= deadline:
            return False
        if strategy == "yield":
            os.sched_yield()
    return True


class StreamEndpoint(PeerEndpoint):
    """What both endpoints have in common."""

    def __init__(self, address: Address, places: Places, *index: int) -> None:
        self._places = places
        super().__init__(address, *index)

    @property
    def waits(self) -> WaitStrategy:
        return way_of_waiting(self._channel)
