"""Latest values: a thread that reads, and a reader that waits for it."""

from __future__ import annotations

import subprocess
import sys

UNDER_SIGNALS = """
import signal, threading
from ipcbench.errors import TransportTimeout
from ipcbench.sync.latest import LatestValueReader

class Silent:
    closed = threading.Event()
    def read(self, timeout_s=None):
        self.closed.wait(timeout_s)
        raise TransportTimeout("nothing")
    def close(self): pass
    def let_go(self): pass

signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.00013)  # some come just when a time-out ends
reader = LatestValueReader(Silent, "silent", views_last=True)
for _ in range(2000):
    try:
        reader.read(0.001)
    except TransportTimeout:
        continue
    raise AssertionError("there was no value")
signal.setitimer(signal.ITIMER_REAL, 0)
reader.close()
"""


def test_time_outs_end_whatever_signals_come() -> None:
    command = [sys.executable, "-c", UNDER_SIGNALS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
