"""What an endpoint consumes between two readings: CPU time, waits for a core, switches, page faults, collections."""

from __future__ import annotations

import gc
import resource
import sys
import threading
from pathlib import Path

from ipcbench.machine.cgroup import read_text
from ipcbench.results.model import Usage

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class UsageMeter:
    """Reads the counters of the process, or of the calling thread if several endpoints share the process.

    A process with a single endpoint is counted as a whole, including a transport's own threads; waiting for a core is
    always that of the calling thread, whose loop is timed.
    """

    __slots__ = ("_collections", "_start", "_waited_s", "_who")

    def __init__(self) -> None:
        shared = threading.current_thread() is not threading.main_thread()
        self._who = resource.RUSAGE_THREAD if shared and sys.platform.startswith("linux") else resource.RUSAGE_SELF
        self.start()

    def start(self) -> None:
        """Take the first reading."""
        self._collections = _collections_count()
        self._waited_s = run_queue_wait_s()
        self._start = resource.getrusage(self._who)

    def stop(self) -> tuple[Usage, int]:
        """Return the usage since `start` and the number of garbage collections."""
        now, before = resource.getrusage(self._who), self._start
        waited_s = run_queue_wait_s()
        usage = Usage(
            user_cpu_s=now.ru_utime - before.ru_utime,
            system_cpu_s=now.ru_stime - before.ru_stime,
            voluntary_switches_count=now.ru_nvcsw - before.ru_nvcsw,
            involuntary_switches_count=now.ru_nivcsw - before.ru_nivcsw,
            minor_faults_count=now.ru_minflt - before.ru_minflt,
            major_faults_count=now.ru_majflt - before.ru_majflt,
            max_rss_bytes=now.ru_maxrss * _RSS_UNIT_BYTES,
            run_queue_wait_s=None if waited_s is None or self._waited_s is None else waited_s - self._waited_s,
        )
        return usage, _collections_count() - self._collections


def run_queue_wait_s(schedstat: Path = _SCHEDSTAT) -> float | None:
    """Return for how long the calling thread has been ready to run without a core; None if the system does not say."""
    words = (read_text(schedstat) or "").split()  # ns on a core, ns waiting for one, number of turns on a core
    return int(words[1]) / 1e9 if len(words) == 3 and words[1].isdigit() else None


def _collections_count() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())
