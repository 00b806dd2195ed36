"""What an endpoint consumes between two readings: CPU time, context switches, page faults, garbage collections."""

from __future__ import annotations

import gc
import resource
import sys
import threading

from ipcbench.results.model import Usage

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


class UsageMeter:
    """Reads the counters of the process, or of the calling thread if several endpoints share the process.

    A process with a single endpoint is counted as a whole, including a transport's own threads.
    """

    __slots__ = ("_collections", "_start", "_who")

    def __init__(self) -> None:
        shared = threading.current_thread() is not threading.main_thread()
        self._who = resource.RUSAGE_THREAD if shared and sys.platform.startswith("linux") else resource.RUSAGE_SELF
        self.start()

    def start(self) -> None:
        """Take the first reading."""
        self._collections = _collections_count()
        self._start = resource.getrusage(self._who)

    def stop(self) -> tuple[Usage, int]:
        """Return the usage since `start` and the number of garbage collections."""
        now, before = resource.getrusage(self._who), self._start
        usage = Usage(
            user_cpu_s=now.ru_utime - before.ru_utime,
            system_cpu_s=now.ru_stime - before.ru_stime,
            voluntary_switches_count=now.ru_nvcsw - before.ru_nvcsw,
            involuntary_switches_count=now.ru_nivcsw - before.ru_nivcsw,
            minor_faults_count=now.ru_minflt - before.ru_minflt,
            major_faults_count=now.ru_majflt - before.ru_majflt,
            max_rss_bytes=now.ru_maxrss * _RSS_UNIT_BYTES,
        )
        return usage, _collections_count() - self._collections


def _collections_count() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())
