"""Links between emulated hosts: a switch that holds back each frame as long as the link takes, and loses some.

Kernels without `netem` cannot delay packets, so this process carries them itself, between the TAP devices of the hosts.
A frame goes on when it has been sent at the link's rate, behind the frames before it, and has travelled for the delay;
where more than `queue_bytes` wait, it is dropped, as in a router.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from time import monotonic_ns

_SET_INTERFACE, _SET_OFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_INFO, _WITH_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUMS, _SEGMENTS_4, _SEGMENTS_6 = 1, 2, 4
_REQUEST = Struct("16sH22x")
_HEADER_BYTES = 10
"""Of the kernel's note before each frame, which says how to cut it; it goes on with the frame."""
_MOST_BYTES = _HEADER_BYTES + 65_550
_FRAMES_A_LOOK = 64


@dataclass(frozen=True, slots=True)
class Link:
    """How frames leave a host."""

    delay_s: float = 0.0
    """How long a frame travels."""
    bits_per_s: float = 0.0
    """0: no limit."""
    loss_ratio: float = 0.0
    """Share of frames that are lost."""
    queue_bytes: int = 4 * 2**20
    """How much may wait to be sent."""


def open_tap(name: str, *, in_one_piece: bool) -> int:
    """Make a TAP device in this network namespace and return its descriptor, which stays valid wherever it is moved.

    Args:
        name: the device's.
        in_one_piece: whether frames larger than the MTU may pass whole, which saves most of the switch's work.

    Raises:
        OSError: the kernel has no TAP devices, or this process may make none.
    """
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tap, _SET_INTERFACE, _REQUEST.pack(name.encode(), _TAP | _NO_INFO | _WITH_HEADER))
        fcntl.ioctl(tap, _SET_OFFLOAD, _CHECKSUMS | _SEGMENTS_4 | _SEGMENTS_6 if in_one_piece else 0)
    except OSError:
        os.close(tap)
        raise
    return tap


def mac_of(port: int) -> str:
    """Return the hardware address of the host at a port."""
    return f"02:00:00:00:00:{port + 1:02x}"


class Switch:
    """Carries frames between TAP devices.

    Args:
        taps: their descriptors; the device of port i has `mac_of(i)`.
        links: how frames leave each port.
        seed: of what is lost.
    """

    def __init__(self, taps: Sequence[int], links: Sequence[Link], seed: int = 0) -> None:
        self._taps, self._links = taps, links
        self._ports = {bytes.fromhex(mac_of(port).replace(":", "")): port for port in range(len(taps))}
        self._free_ns = [0] * len(taps)  # when the sender of a port has sent all before
        self._due: list[tuple[int, int, int, bytes]] = []  # when, number, to which port, frame
        self._number = 0
        self._random = random.Random(seed)  # noqa: S311 - not a secret

    def run(self, until: int) -> None:
        """Carry frames until the descriptor `until` can be read."""
        poll = select.epoll()
        for tap in (*self._taps, until):
            poll.register(tap, select.EPOLLIN)
        while True:
            ready = self._wait(poll)
            for port, tap in enumerate(self._taps):
                if tap in ready:
                    self._take(port)
            self._deliver()
            if until in ready:
                return

    def _wait(self, poll: select.epoll) -> set[int]:
        """Wait until there is something to do; return the descriptors to read."""
        if self._due and (left_ns := self._due[0][0] - monotonic_ns()) > 0:
            select.select([poll], (), (), left_ns / 1e9)  # epoll's own time-out counts milliseconds
        return {descriptor for descriptor, _ in poll.poll(0 if self._due else -1)}

    def _take(self, port: int) -> None:
        """Read what a host sends."""
        link = self._links[port]
        for _ in range(_FRAMES_A_LOOK):
            try:
                frame = os.read(self._taps[port], _MOST_BYTES)
            except OSError:  # no more, or the device is down
                return
            now_ns = monotonic_ns()
            free_ns = max(now_ns, self._free_ns[port])
            if link.bits_per_s:
                waiting_bytes = (free_ns - now_ns) * link.bits_per_s / 8e9
                if waiting_bytes > link.queue_bytes:
                    continue
                free_ns += int(8e9 * (len(frame) - _HEADER_BYTES) / link.bits_per_s)
            self._free_ns[port] = free_ns
            if link.loss_ratio and self._random.random() < link.loss_ratio:
                continue
            self._send(port, frame, free_ns + int(1e9 * link.delay_s))

    def _send(self, port: int, frame: bytes, due_ns: int) -> None:
        there = self._ports.get(frame[_HEADER_BYTES : _HEADER_BYTES + 6])
        for target in range(len(self._taps)) if there is None else (there,):
            if target != port:
                self._number += 1
                heapq.heappush(self._due, (due_ns, self._number, target, frame))

    def _deliver(self) -> None:
        while self._due and self._due[0][0] <= monotonic_ns():
            _, _, port, frame = heapq.heappop(self._due)
            try:
                os.write(self._taps[port], frame)
            except OSError:  # the device is down, or has no room: the frame is lost, as on a real link
                continue
