"""The trace files of one process: the folder, the limits, the names of files, and what their headers say.

If the folder cannot be written or is full, recording ends, the log says so once, and calls are still counted.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from time import CLOCK_REALTIME, clock_gettime_ns
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from ipcbench.trace.format import HEADER_BYTES, HISTOGRAMS_SUFFIX, PROCESSES_FILE, SEGMENT_SUFFIX, note_loss
from ipcbench.trace.record.budget import Costs
from ipcbench.trace.record.histograms import BLOCK_BYTES, HistogramsFile, MethodHistograms, in_memory
from ipcbench.trace.record.segment import SegmentWriter, new_segment
from ipcbench.trace.schema import Schema
from ipcbench.util.clock import now_ns
from ipcbench.util.signals import raised_by_handler

_FIRST_SEGMENT_BYTES = 2**20
_LARGEST_SEGMENT_BYTES = 2**24
_ATTEMPTS = 100
OTHER = "(other names)"
"""Names beyond what is kept apart."""

_HISTOGRAMS_ROOM_BYTES = 2**22
"""What segments leave to histograms of a folder; of a small one, a quarter."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

_Made = TypeVar("_Made")

_log = logging.getLogger("ipcbench.trace")


class ThreadFiles:
    """Which files one thread has made.

    Attributes:
        numbers: for the names of its next files.
        histograms: the file that takes its histograms; None before the first.
        others: those that all further methods share when the folder is full, by schema.
        segment_path: of its latest segment; None before the first.
    """

    __slots__ = ("histograms", "numbers", "others", "segment_path")

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.histograms: HistogramsFile | None = None
        self.others: dict[str, MethodHistograms] = {}
        self.segment_path: Path | None = None


PYZMQS_OWN = " inproc://pyzmq.gc."
"""In the methods of sockets by which pyzmq learns which frames it may free."""


def _boot_id() -> str:
    """Return an identifier of this boot of the host; a constant where the system has none."""
    try:
        with open(_BOOT_ID, "rb") as file:
            return file.read(100).decode("ascii", "replace").strip()
    except OSError:
        return f"{socket.gethostname()}-unknown"


# Found out at import, before the program runs, which may forbid or replace what that takes.
_HOST, _BOOT = socket.gethostname(), _boot_id()
BOOT = crc32(_BOOT.encode()) or 1
"""Identifies the clock, as contexts do."""
_FILE_HOST = re.sub(r"[^A-Za-z0-9.]", "_", _HOST)[:40] or "host"


class Choice(NamedTuple):
    """Which methods are recorded.

    Attributes:
        only: patterns; empty for all.
        exclude: patterns of those that are not.
    """

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def takes(self, method: str) -> bool:
        """Return whether calls of a method are recorded."""
        if PYZMQS_OWN in method:
            return False
        is_chosen = not self.only or any(fnmatchcase(method, pattern) for pattern in self.only)
        return is_chosen and not any(fnmatchcase(method, pattern) for pattern in self.exclude)


class TraceFiles:
    """The files of one traced process. Its methods are called by the thread that the files are for.

    Attributes:
        folder: where they are.
        sample: one in `sample` calls is recorded, on average; not used with a budget.
        budget_ratio: the share of time that tracing may cost; 0.0 for no limit.
        costs: what tracing a call costs here.
        chosen: which methods are recorded.
        max_bytes: size at which the folder takes no more segments.
        closed: whether recording has ended for good.
        problem: why recording stopped; empty while it goes on.
        boot: identifies the clock, as contexts do.
    """

    def __init__(
        self,
        folder: Path,
        service: str,
        sample: int,
        budget_ratio: float,
        max_bytes: int,
        costs: Costs,
        chosen: Choice = Choice(),  # noqa: B008 # it is immutable
    ) -> None:
        self.folder = folder
        self._service = service
        self.sample = sample
        self.chosen = chosen
        self.budget_ratio = budget_ratio
        self.max_bytes = max_bytes
        self.costs = costs
        self.closed = False
        self.problem = ""
        self._boot = _BOOT
        self.boot = BOOT
        self.renew()

    def renew(self) -> None:
        """Begin anew in the child after a fork: a thread that it does not have may have held the lock."""
        self._room = threading.RLock()  # of all threads, one at a time takes of what is left of `max_bytes`

    def new_segment(self, thread: ThreadFiles, full_bytes: int) -> SegmentWriter | None:
        """Make a thread's next segment after a full one of `full_bytes`; None if it cannot be made."""
        size = min(_LARGEST_SEGMENT_BYTES, max(_FIRST_SEGMENT_BYTES, 2 * full_bytes))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._room:
                taken = _size_bytes(self.folder)
                room = self.max_bytes - taken - min(self.max_bytes // 4, _HISTOGRAMS_ROOM_BYTES)
                size = min(size, room // HEADER_BYTES * HEADER_BYTES)
                if size < 2 * HEADER_BYTES:
                    self._report(f"the folder holds {taken:,} bytes; {self.max_bytes:,} are allowed")
                    return None
                facts = self._facts()
                place = f"/proc/self/task/{threading.get_native_id()}"
                made = self._named("t", SEGMENT_SUFFIX, thread, lambda path: new_segment(path, size, facts, place))
        except Exception as error:  # of whatever the program has put into the way, such as hooks that refuse files
            if raised_by_handler(error):
                raise
            self._report(str(error))
            return None
        thread.segment_path = made.path
        return made

    def new_histograms(self, thread: ThreadFiles, method: str, schema: Schema, peer: str) -> MethodHistograms:
        """Make the histograms of a method, in memory if they cannot be in a file; in a full folder, all further methods
        of a thread share some.
        """
        try:
            if self.closed:
                return in_memory()
            self.folder.mkdir(parents=True, exist_ok=True)
            if thread.histograms is None:
                thread.histograms = self._named("h", HISTOGRAMS_SUFFIX, thread, HistogramsFile)
            elif _size_bytes(self.folder) + BLOCK_BYTES > self.max_bytes:
                method, peer = OTHER, ""
                if (shared := thread.others.get(schema.text)) is not None:
                    return shared
            facts = {**self._facts(), "method": method[:500], "schema": schema.text, "peer": peer[:500]}
            made = MethodHistograms(thread.histograms.new_block({**facts, "role": schema.role}))
            if method == OTHER:
                thread.others[schema.text] = made
        except Exception as error:
            if raised_by_handler(error):
                raise
            self.lose(thread, error)
            return in_memory()
        return made

    def lose(self, thread: ThreadFiles, error: BaseException) -> None:
        """Report why calls of a thread are missing, and let readers of the folder know."""
        self._report(str(error) or type(error).__name__)
        self._note_loss(thread)

    def close_segment(self, segment: SegmentWriter) -> None:
        """Close a segment; a failure is reported."""
        try:
            segment.close()
        except Exception as error:
            if raised_by_handler(error):
                raise
            self._report(str(error))

    def _named(self, letter: str, suffix: str, thread: ThreadFiles, make: Callable[[Path], _Made]) -> _Made:
        """Make a file under an unused name; processes of other hosts and of earlier times share the folder."""
        beginning = f"{letter}-{_FILE_HOST}-{self._boot[:8]}-{os.getpid()}-{threading.get_native_id()}"
        for _ in range(_ATTEMPTS):
            try:
                return make(self.folder / f"{beginning}-{next(thread.numbers)}{suffix}")
            except FileExistsError:
                continue
        raise FileExistsError(f"{self.folder}: too many files are named {beginning}-…")

    def _facts(self) -> dict[str, Any]:
        before_ns = now_ns()
        real_ns = clock_gettime_ns(CLOCK_REALTIME)  # a test may have stopped `time.time_ns`
        costs = self.costs
        return {
            "service": self._service,
            "host": _HOST[:200],
            "boot": self._boot,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "clock": "monotonic",
            "anchor_ns": [(before_ns + now_ns()) // 2, real_ns],
            "sample": self.sample,
            "budget": self.budget_ratio,
            "costs_ns": [costs.recorded_ns, costs.timed_ns, costs.counted_ns],
            "ids": [f"{half:016x}" for half in _new_ids()],
        }

    def _report(self, problem: str) -> None:
        """Keep the first problem, and log it."""
        if not self.problem:
            self.problem = " ".join(problem.split()) or "an error without a text"
            _log.warning("not all calls are recorded: %s", self.problem)

    def _note_loss(self, thread: ThreadFiles) -> None:
        """Let whoever reads the folder know that calls are missing: in a segment, which has room for that on a full
        disk, or else in the file of processes.
        """
        try:
            if thread.segment_path is not None:
                note_loss(thread.segment_path)
                return
            with (self.folder / PROCESSES_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": "lost", "pid": os.getpid(), "ppid": os.getppid()}) + "\n")
        except Exception as error:
            if raised_by_handler(error):
                raise


def _size_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; a file may vanish meanwhile."""
    taken = 0
    for name in os.listdir(folder):
        try:
            taken += os.stat(folder / name).st_size
        except FileNotFoundError:
            continue
    return taken


def _new_ids() -> tuple[int, int]:
    """Return the high half of a segment's trace ids, and the number from which its slots are counted."""
    high = int.from_bytes(os.urandom(8), "little")
    return high, int.from_bytes(os.urandom(4), "little") << 32 | 1
