"""What an endpoint consumes: CPU time, context switches, page faults, garbage collections; as differences of two
readings.
"""

from __future__ import annotations

import gc
import resource
import sys
import threading

from ipcbench.results.model import Usage

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


class UsageMeter:
    """Reads the process's counters, or the calling thread's where several endpoints share a process.

    A process that holds one endpoint is counted whole, so that a transport's own threads are on the bill.
    """

    __slots__ = ("_collections", "_start", "_who")

    def __init__(self) -> None:
        shared = threading.current_thread() is not threading.main_thread()
        self._who = resource.RUSAGE_THREAD if shared and sys.platform.startswith("linux") else resource.RUSAGE_SELF
        self.start()

    def start(self) -> None:
        """Take the first reading."""
        self._collections = sum(one["collections"] for one in gc.get_stats())
        self._start = resource.getrusage(self._who)

    def stop(self) -> tuple[Usage, int]:
        """Return what was used since `start`, and how many garbage collections ran."""
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
        return usage, sum(one["collections"] for one in gc.get_stats()) - self._collections
