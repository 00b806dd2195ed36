"""Exceptions that signal handlers raise: they are meant for the application, whatever was under way."""

from __future__ import annotations

import signal
from typing import Any


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal handler that is set now raised an exception, or called what raised it."""
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    handlers += [getattr(handler, "func", None) for handler in handlers]  # of functools.partial
    handlers += [getattr(type(handler), "__call__", None) for handler in handlers]  # noqa: B004 # its code is wanted
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
