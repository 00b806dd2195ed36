"""What must not be cut in two: by an exception that a signal handler raises, or by a fork of another thread."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_PACKAGE = str(Path(__file__).parent.parent)

unforked = threading.Condition()
"""Held by a thread while it opens something that belongs to an endpoint, and by one that forks."""


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


def uninterrupted(work: Callable[[], _Result]) -> _Result:
    """Do `work`, which does not wait for long, and raise only after it what signal handlers raise meanwhile.

    Python runs these handlers in the main thread, so another thread does the work. It has no `threading.Thread`, whose
    `start` and `join` bear no exceptions of handlers; so the work must not ask for the current thread, as `join` does.
    The work is done here if there can be no thread, or if this call comes from a handler that cut an opening short,
    whose lock another thread would wait for. Whoever is interrupted before the thread starts finds nothing done; two
    interrupts within a few µs may find the work under way, so it must bear to be repeated.
    """
    if threading.get_ident() != threading.main_thread().ident or sys.is_finalizing() or _is_opening():
        return work()
    outcome: list[Callable[[], _Result]] = []
    done: SimpleQueue[None] = SimpleQueue()

    def do() -> None:
        try:
            result = work()
            outcome.append(lambda: result)
        except BaseException as error:  # passed on to the caller
            outcome.append(partial(_fail, error))
        done.put(None)

    interrupt: BaseException | None = None
    has_started = False
    while not outcome:
        try:
            # No handler's exception comes between the step of an iterator in C and the first call in a loop's body.
            for _ in map(_thread.start_new_thread, () if has_started else (do,), ((),)):
                has_started = True
            done.get()
        except BaseException as error:
            if not has_started:
                if isinstance(error, RuntimeError) and not is_of_handler(error):  # there can be no thread
                    return work()
                raise
            interrupt = error
    try:
        if interrupt is not None:
            raise interrupt
        return outcome.pop()()
    finally:
        outcome.clear()
        del interrupt  # whose traceback refers to this frame


def whole(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Have calls of `method` be done `uninterrupted`. What it returns to a caller who was interrupted is dropped."""

    @wraps(method)
    def call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        return uninterrupted(lambda: method(*arguments, **named))

    return call


def _fail(error: BaseException) -> NoReturn:
    raise error


def in_background(work: Callable[[], None], name: str, wait_s: float) -> None:
    """Do `work` in a thread, which the process waits for when it ends; return when it is done, or after `wait_s`."""
    done = threading.Event()

    def do() -> None:
        try:
            work()
        finally:
            done.set()

    threading.Thread(target=do, name=name, daemon=False).start()
    done.wait(wait_s)


def _is_opening() -> bool:
    """Return whether this thread holds `unforked`."""
    with suppress(RuntimeError):
        unforked.notify()  # raises if it does not
        return True
    return False
