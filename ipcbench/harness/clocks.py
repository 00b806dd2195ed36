"""The clocks of a group's workers: one clock, or several whose offsets to the coordinator's are known within errors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any

from ipcbench.util.clock import now_ns
from ipcbench.util.units import format_duration_ns

MAX_ERROR_RATIO = 0.1
"""One-way latency is refused if the clocks' error is a larger share of its median than this."""

QUESTIONS = 64
"""How many a comparison of two clocks asks at most, in a row; the answer with the least delay counts, as in NTP."""
ASKING_S = 3.0
"""For how long it asks, if there is an answer then: on a long way, 64 would take too long."""

_SECRET_BYTES, _NUMBER_BYTES, _MOST_BYTES = 16, 4, 64
_TIMES = Struct("<qq")
_ANSWER_S, _MOST_UNANSWERED = 0.5, 3

_INITIAL_NAMESPACE = "time:[4026531834]"
"""How /proc names the time namespace that Linux starts with; kernels before 5.6 have no other, and do not name it."""


def clock_identity() -> str:
    """Return what only processes that share this process's monotonic clock have in common; empty if not known.

    It is the boot of the kernel and, on Linux, the time namespace.
    """
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    try:
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return f"{boot} {_INITIAL_NAMESPACE}"


@dataclass(frozen=True, slots=True)
class Offset:
    """A clock reads `offset_ns` ± `error_ns` more than the reference; exactly 0 if it is the reference: the
    coordinator's, or between hosts the writer's.
    """

    offset_ns: float = 0.0
    error_ns: float = 0.0

    @classmethod
    def of_exchange(cls, asked_ns: int, theirs_ns: int, answered_ns: int) -> Offset:
        """Return what a question and its answer say: their clock was read at some moment between the two."""
        return cls((2 * theirs_ns - asked_ns - answered_ns) / 2, (answered_ns - asked_ns) / 2)

    @classmethod
    def of_four(cls, asked_ns: int, heard_ns: int, replied_ns: int, answered_ns: int) -> Offset:
        """Return what a question and its answer say whose times are known at both ends."""
        offset_ns = ((heard_ns - asked_ns) + (replied_ns - answered_ns)) / 2
        return cls(offset_ns, ((answered_ns - asked_ns) - (replied_ns - heard_ns)) / 2)

    def until(self, later: Offset) -> Offset:
        """Return an offset that covers this one, a later one, and whatever lies between them."""
        low = min(self.offset_ns - self.error_ns, later.offset_ns - later.error_ns)
        high = max(self.offset_ns + self.error_ns, later.offset_ns + later.error_ns)
        return Offset((low + high) / 2, (high - low) / 2)


class ClockServer:
    """Tells other hosts what this process's clock reads, by UDP, from a thread that sleeps unless somebody asks.

    Args:
        address: IP address of the interface on which to listen.
    """

    def __init__(self, address: str) -> None:
        self._socket = _udp(address)
        self._secret = os.urandom(_SECRET_BYTES)
        threading.Thread(target=self._serve, name="clock", daemon=True).start()

    def place(self) -> dict[str, Any]:
        """Return what `ask_clock` needs."""
        host, port = self._socket.getsockname()[:2]
        return {"host": host, "port": port, "secret": self._secret}

    def _serve(self) -> None:
        while True:
            question, asker = self._socket.recvfrom(2 * _SECRET_BYTES)
            heard_ns = now_ns()
            if question[:_SECRET_BYTES] == self._secret:  # whoever does not know it gets no answer
                with suppress(OSError):
                    self._socket.sendto(question + _TIMES.pack(heard_ns, now_ns()), asker)


def ask_clock(host: str, port: int, secret: bytes) -> Offset | None:
    """Return the offset of another host's clock to this process's, from the answer of many with the least delay; None
    if nobody answers: UDP may be blocked.
    """
    best: Offset | None = None
    unanswered_count, begun_ns, asked_ns = 0, now_ns(), dict[bytes, int]()
    with _udp(host, connects=port) as asker:
        asker.settimeout(_ANSWER_S)
        for number in range(QUESTIONS):
            if best is not None and now_ns() - begun_ns >= 1e9 * ASKING_S:
                break
            question = secret + number.to_bytes(_NUMBER_BYTES, "little")
            asked_ns[question] = now_ns()
            try:
                asker.send(question)
                answer = asker.recv(_MOST_BYTES)
            except OSError:
                unanswered_count += 1
                if unanswered_count > _MOST_UNANSWERED:
                    break
                continue
            answered_ns = now_ns()
            if (begun := asked_ns.get(answer[: len(question)])) is not None:  # it may be that to an earlier one
                heard_ns, replied_ns = _TIMES.unpack(answer[len(question) :])
                found = Offset.of_four(begun, heard_ns, replied_ns, answered_ns)
                best = found if best is None or found.error_ns < best.error_ns else best
    return best


def _udp(host: str, connects: int = 0) -> socket.socket:
    family, _, _, _, place = socket.getaddrinfo(host, connects, type=socket.SOCK_DGRAM)[0]
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.connect(place) if connects else made.bind(place)
    return made


@dataclass(frozen=True, slots=True)
class Clocks:
    """Which clock each worker has, and the offsets of these clocks."""

    names: tuple[str, ...] = ()
    """By worker; workers with the same name share one clock."""
    offsets: Mapping[str, Offset] = field(default_factory=dict)
    """By name; empty if all workers share one clock, which then needs no comparing."""
    moved: str = ""
    """Why the offsets do not hold throughout; empty if they do."""

    def of(self, worker: int) -> Offset:
        """Return the offset of a worker's clock."""
        return self.offsets.get(self.names[worker], Offset()) if self.offsets else Offset()

    def error_ns(self, reader: int) -> float:
        """Return the error of a time from the writer, which is worker 0, to worker number `reader`."""
        if not self.offsets or self.names[0] == self.names[reader]:
            return 0.0
        return self.of(0).error_ns + self.of(reader).error_ns

    def until(self, later: Clocks) -> Clocks:
        """Return the clocks over a time, from the check before it and the one after it."""
        moved = ""
        for name, first in self.offsets.items():
            last = later.offsets[name]
            apart_ns, error_ns = abs(last.offset_ns - first.offset_ns), first.error_ns + last.error_ns
            if apart_ns > error_ns:
                moved = (
                    f"a clock moved by {format_duration_ns(apart_ns)} during the trial "
                    f"(errors together {format_duration_ns(error_ns)})"
                )
        offsets = {name: first.until(later.offsets[name]) for name, first in self.offsets.items()}
        return Clocks(self.names, offsets, moved)

    def refusal(self, medians_ns: Mapping[int, float]) -> str:
        """Return why there is no one-way latency; empty if there may be.

        Args:
            medians_ns: median one-way latency by the reader's number.
        """
        for reader, median_ns in medians_ns.items() if not self.moved else ():
            error_ns = self.error_ns(reader)
            if error_ns > max(0.0, MAX_ERROR_RATIO * median_ns):
                return (
                    f"the clocks' error of {format_duration_ns(error_ns)} is more than {MAX_ERROR_RATIO:.0%} of the "
                    f"median, {format_duration_ns(median_ns)}"
                )
        return self.moved
