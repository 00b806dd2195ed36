"""A small process beside every run: when the run has ended, for whatever reason, it kills the processes that are left
and removes their files.

It reads process IDs from its standard input, one per line. The end of the input is the end of the run.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from ipcbench.processes.cleanup import remove

_MARK = "ipcbench.processes.worker"


def _is_worker(pid: int, token: str) -> bool:
    """Return whether the number still belongs to a worker of the run, and not to a later process."""
    import psutil

    try:
        line = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
    return _MARK in line and token in line


def main() -> None:
    """Wait for the run's end; then kill its workers and remove everything that has its name."""
    token = sys.argv[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run; the janitor waits for its end
    pids = [int(line) for line in sys.stdin if line.strip().isdigit()]
    for pid in pids:
        if _is_worker(pid, token):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    remove(token)


if __name__ == "__main__":
    main()
