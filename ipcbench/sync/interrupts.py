"""Exceptions that signal handlers raise in the middle of a call, told from those of the call itself."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = str(Path(__file__).parent.parent)


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised `error`, and not a call of this package's.

    An alarm is often a TimeoutError, which is an OSError, as a socket's own time-out is. A handler is a function, and
    the innermost frame of the traceback is then its own; and it gives no number, which all errors of the system have.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)
