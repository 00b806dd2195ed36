"""A small process beside every run: when the run has ended, for whatever reason, it kills the processes that are left
and removes their files.

It reads process IDs from its standard input, one per line. The end of the input is the end of the run.
"""

from __future__ import annotations

import signal
import sys

from ipcbench.processes.cleanup import kill_worker, remove


def main() -> None:
    """Wait for the run's end; then kill its workers and remove everything that has its name."""
    token = sys.argv[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run; the janitor waits for its end
    pids = [int(line) for line in sys.stdin if line.strip().isdigit()]
    for pid in pids:
        kill_worker(pid, token)
    remove(token)


if __name__ == "__main__":
    main()
