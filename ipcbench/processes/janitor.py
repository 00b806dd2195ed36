"""A small process beside every run: when the run has ended, for whatever reason, it kills the processes that are left
and removes their files.

The end of its standard input is the end of the run, which writes `ENDED` before it if it ends in good order.
"""

from __future__ import annotations

import signal
import sys

from ipcbench.processes.cleanup import kill_workers, remove, remove_mpi_segments

ENDED = b"ended\n"


def main() -> None:
    """Wait for the run's end; then kill its workers and remove everything that has its name."""
    token, began_s = sys.argv[1], float(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run; the janitor waits for its end
    ended = sys.stdin.buffer.read() == ENDED
    kill_workers(token)
    if not ended:  # else the run has removed those of its ranks
        remove_mpi_segments(began_s)
    remove(token)


if __name__ == "__main__":
    main()
