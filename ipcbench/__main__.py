"""The program `ipcbench`, also as `python -m ipcbench`: loads the command line and runs it."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run this process's command line and return its exit code.

    Until it is loaded there is nothing to clean up: Ctrl-C then ends the process at once, as if it were no Python
    program, instead of printing where in an import it came.
    """
    handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ipcbench.cli import EXIT_INTERRUPTED
    from ipcbench.cli import main as run

    if handles:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run()
    if code == EXIT_INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough: what is left is to clean up
        # Python notes an interrupt within `exec` of a text (as of dataclasses, in imports) and, although it was caught,
        # kills the process by SIGINT at its exit, unless another `exec` takes the note back.
        exec("")  # noqa: S102 - of nothing
    return code


if __name__ == "__main__":
    sys.exit(main())
