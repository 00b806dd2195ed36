"""What the lanes of one process share: the folder, the limits, the names of files, and what tracing costs here.

A folder that cannot be written, or a full one, ends recording and is said once in the log; calls go on being counted.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from ipcbench.trace.format import HEADER_BYTES
from ipcbench.trace.record.budget import Costs
from ipcbench.trace.record.counts import Tally, TallyFile, in_memory
from ipcbench.trace.record.segment import Segment, new_segment
from ipcbench.util.clock import now_ns

if TYPE_CHECKING:
    from ipcbench.trace.record.thread_recorder import Lane, Site

SEGMENT_SUFFIX = ".ipct"
TALLY_SUFFIX = ".ipch"

_FIRST_SEGMENT_BYTES = 2**20
_LARGEST_SEGMENT_BYTES = 2**24
_ATTEMPTS = 100
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_Made = TypeVar("_Made")

_log = logging.getLogger("ipcbench.trace")


class Store:
    """The files of one traced process.

    Attributes:
        sample: one call in so many is recorded; with a budget this is not used.
        budget_ratio: the share of time that tracing may cost; 0.0 for no limit.
        max_bytes: size at which the folder takes no more segments.
        closed: whether recording has ended for good.
        problem: why recording stopped; empty while it goes on.
        boot: which clock this is, as contexts say it.
    """

    def __init__(
        self, folder: Path, service: str, sample: int, budget_ratio: float, max_bytes: int, costs: Costs
    ) -> None:
        self._folder = folder
        self._service = service
        self.sample = sample
        self.budget_ratio = budget_ratio
        self.max_bytes = max_bytes
        self.costs = costs
        self.closed = False
        self.problem = ""
        self._host = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())[:40] or "host"
        self._boot = _boot_id()
        self.boot = crc32(self._boot.encode()) or 1
        self._numbers = itertools.count()

    def new_segment(self, lane: Lane, full: Segment) -> Segment | None:
        """Make a lane's next segment behind `full`; None if it cannot be made."""
        size = min(_LARGEST_SEGMENT_BYTES, max(_FIRST_SEGMENT_BYTES, 2 * len(full.buffer)))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            taken = _size_bytes(self._folder)
            size = min(size, (self.max_bytes - taken) // HEADER_BYTES * HEADER_BYTES)
            if size < 2 * HEADER_BYTES:
                self._say(f"the folder holds {taken:,} bytes; {self.max_bytes:,} are allowed")
                return None
            number = next(self._numbers)
            facts = self._facts()
            return self._named("t", SEGMENT_SUFFIX, lane, lambda path: new_segment(path, size, number, facts))
        except OSError as error:
            self._say(str(error))
            return None

    def new_tally(self, lane: Lane, site: Site) -> Tally:
        """Make the tally of a site, in memory if it cannot be in a file."""
        facts = {**self._facts(), "method": site.method[:500], "schema": site.schema.text, "peer": site.peer[:500]}
        facts["role"] = site.schema.role
        try:
            if self.closed:
                return in_memory()
            self._folder.mkdir(parents=True, exist_ok=True)
            if lane.tally_file is not None:
                return Tally(lane.tally_file.new_block(facts))
            lane.tally_file, block = self._named("h", TALLY_SUFFIX, lane, lambda path: _first_block(path, facts))
            return Tally(block)
        except (OSError, ValueError) as error:
            self._say(str(error))
            return in_memory()

    def finish(self, segment: Segment) -> None:
        """Close a segment."""
        try:
            segment.close()
        except OSError as error:
            self._say(str(error))

    def _named(self, letter: str, suffix: str, lane: Lane, make: Callable[[Path], _Made]) -> _Made:
        """Make a file under a name that nobody has, processes of other hosts and of earlier times included."""
        beginning = f"{letter}-{self._host}-{self._boot[:8]}-{os.getpid()}-{threading.get_native_id()}"
        for _ in range(_ATTEMPTS):
            path = self._folder / f"{beginning}-{lane.files_count}{suffix}"
            lane.files_count += 1
            try:
                return make(path)
            except FileExistsError:
                continue
        raise FileExistsError(f"{self._folder}: there are too many files of {beginning}")

    def _facts(self) -> dict[str, Any]:
        before_ns = now_ns()
        real_ns = time.time_ns()
        costs = self.costs
        return {
            "service": self._service,
            "host": socket.gethostname()[:200],
            "boot": self._boot,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "clock": "monotonic",
            "anchor_ns": [(before_ns + now_ns()) // 2, real_ns],
            "sample": self.sample,
            "budget": self.budget_ratio,
            "costs_ns": [costs.recorded_ns, costs.timed_ns, costs.counted_ns],
            "ids": [f"{one:016x}" for one in new_ids()],
        }

    def _say(self, problem: str) -> None:
        """Keep the first problem, and log it."""
        if not self.problem:
            self.problem = " ".join(problem.split())
            _log.warning("not all calls are recorded: %s", self.problem)


def _size_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; a file may vanish meanwhile."""
    taken = 0
    for name in os.listdir(folder):
        try:
            taken += os.stat(folder / name).st_size
        except FileNotFoundError:
            continue
    return taken


def _first_block(path: Path, facts: dict[str, Any]) -> tuple[TallyFile, Any]:
    file = TallyFile(path)
    return file, file.new_block(facts)


def new_ids() -> tuple[int, int]:
    """Return the high half of a segment's trace ids, and the number from which its slots are counted."""
    high = int.from_bytes(os.urandom(8), "little")
    return high, int.from_bytes(os.urandom(4), "little") << 32 | 1


def _boot_id() -> str:
    """Return what tells one boot of one host from every other, as far as it is known."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"{socket.gethostname()}-unknown"
