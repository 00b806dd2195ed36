"""What must not be cut in two: by an exception that a signal handler raises, or by a fork of another thread."""

from __future__ import annotations

import _thread
import sys
import sysconfig
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, partial, wraps
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import ref

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_PACKAGE = str(Path(__file__).parent.parent)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")

_LOOK_S = 1.0
"""Between two looks whether the thread still lives that one waits for."""

_BEGIN_S = 5.0
"""How long to wait for a thread to begin: without memory it may never."""

unforked = threading.RLock()
"""Held by a thread while it opens something that belongs to an endpoint, and by one that forks. A lock in C, as no
exception of a handler comes between its acquisition and the block of a `with`; in Python's code it may."""


def no_fork() -> AbstractContextManager[object]:
    """Return `unforked`; but nothing while the interpreter ends, when whoever holds it may have stopped for ever."""
    return nullcontext() if sys.is_finalizing() else unforked


def is_of_handler(error: BaseException, own: str = "") -> bool:
    """Return whether a signal handler raised `error`, and not a call of this package's.

    An alarm is often a TimeoutError, which is an OSError, as a socket's own time-out is; and a handler may write to a
    pipe that is full. A handler is a function, so the traceback leads from this package to a frame of neither this
    package nor the standard library, which a call of the system has not; nor of a file whose path holds `own`.
    """
    trace, inside = error.__traceback__, False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            inside = True
        elif inside and not _is_of_standard_library(file) and not (own and own in file):
            return True
        trace = trace.tb_next
    return False


@cache
def _is_of_standard_library(file: str) -> bool:
    installed = "site-packages" in file or "dist-packages" in file
    return file.startswith(("<frozen ", _STANDARD_LIBRARY)) and not installed


def uninterrupted(work: Callable[[], _Result], undo: Callable[[_Result], object] = id) -> _Result:
    """Do `work`, which does not wait for long, and raise only after it what signal handlers raise meanwhile.

    Python runs these handlers in the main thread, so another thread does the work. It has no `threading.Thread`, whose
    `start` and `join` bear no exceptions of handlers; so the work must not ask for the current thread, as `join` does.
    The work is done here if there can be no thread, or if this call comes from a handler that cut an opening short,
    whose lock another thread would wait for. Whoever is interrupted before the thread starts finds nothing done; two
    interrupts within a few µs may find the work under way, so it must bear to be repeated.

    Args:
        work: what to do.
        undo: what to do with the result if an exception of a handler prevents that it is returned.
    """
    if threading.get_ident() != threading.main_thread().ident or sys.is_finalizing() or _is_opening():
        return work()
    task = _Task(work, undo)
    try:
        task.carry_out()
        if not task.has_started:
            return work()
        if task.interrupts:
            for result in task.results:
                _for_certain(partial(undo, result))
            raise task.interrupts.pop()  # no task holds what is raised, whose traceback holds the task
        if task.failures:
            raise task.failures.pop()
        return task.results[0]
    finally:
        del task  # since a traceback that it holds refers to this frame


def _for_certain(work: Callable[[], object]) -> None:
    """Have `work` done whatever exceptions handlers raise; if it fails, there is nobody to tell."""
    task = _Task(work, id)
    try:
        task.carry_out()
    finally:
        with suppress(BaseException):
            task.carry_out()  # if one came before it had started
            if not task.has_started:
                work()


class _Thread:
    """Stands for a thread that holds it."""


class _Task(Generic[_Result]):
    """Work that another thread does: what came of it, and the exceptions of handlers in the thread that waits."""

    def __init__(self, work: Callable[[], _Result], undo: Callable[[_Result], object]) -> None:
        self._work, self._undo = work, undo
        self._done: SimpleQueue[None] = SimpleQueue()
        self._thread: Callable[[], object] = _Thread  # a weak reference, once there is one
        self.has_started = self._has_begun = self._has_ended = False
        self.results: list[_Result] = []
        self.failures: list[BaseException] = []
        self.interrupts: list[BaseException] = []

    def carry_out(self) -> None:
        """Have the work done, and wait until it is; if there can be no thread, it has not started.

        Raises:
            BaseException: of a handler, before the work has started.
        """
        try:
            self._carry_out()
        except BaseException as error:
            if not self.has_started:
                raise
            self.interrupts.append(error)  # between two steps of the loop there
            self._carry_out()

    def _carry_out(self) -> None:
        while not self._has_ended:
            try:
                # No handler's exception comes between the step of an iterator in C and the first call in a loop's body.
                for _ in map(_thread.start_new_thread, () if self.has_started else (self._do,), (self._arguments(),)):
                    self.has_started = True
                with suppress(Empty):
                    self._done.get(timeout=_LOOK_S)
                if self._thread() is None and not self._has_ended:  # without memory it may die anywhere
                    self.has_started, self._has_ended = self._has_begun, True
                    self.failures += [] if self.results else [MemoryError()]
            except BaseException as error:
                if self.has_started:
                    self.interrupts.append(error)
                elif isinstance(error, RuntimeError) and not is_of_handler(error):
                    return
                else:
                    raise

    def _arguments(self) -> tuple[_Thread, ...]:
        """Return what the thread is to hold as long as it lives, before it has started."""
        if self.has_started:
            return ()
        thread = _Thread()
        self._thread = ref(thread)
        return (thread,)

    def _do(self, *_: _Thread) -> None:
        self._has_begun = True
        try:
            result = self._work()
            if self.interrupts:  # here nothing can interrupt it
                self._undo(result)
            else:
                self.results.append(result)
        except BaseException as error:  # passed on to the caller
            self.failures.append(error)
        self._has_ended = True
        self._done.put(None)


def whole(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Have calls of a backend's `method` be done `uninterrupted`. An address or an endpoint that it returns to a caller
    who was interrupted is destroyed or let go.
    """

    @wraps(method)
    def call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        def undo(result: Any) -> None:
            if hasattr(result, "let_go"):
                result.let_go()
            elif result is not None:
                arguments[0].destroy(result)  # type: ignore[attr-defined]

        result: _Result = uninterrupted(lambda: method(*arguments, **named), undo)
        return result

    return call


def start_thread(work: Callable[[], object]) -> None:
    """Do `work` in a thread, which the process does not wait for when it ends; return as soon as it runs.

    `threading.Thread.start` waits for ever for a thread that dies before its first step, as one may without memory.

    Raises:
        RuntimeError: there can be no thread.
    """
    runs = threading.Lock()
    runs.acquire()

    def do(_: _Thread) -> None:
        runs.release()
        work()

    if sys.is_finalizing():
        raise RuntimeError("no thread runs while the interpreter ends")
    held = _Thread()
    thread = ref(held)
    _thread.start_new_thread(do, (held,))
    del held
    while not runs.acquire(timeout=_LOOK_S):
        if thread() is None and not runs.acquire(blocking=False):
            raise RuntimeError("a new thread finds no memory")


def in_background(work: Callable[[], None], name: str, wait_s: float) -> None:
    """Do `work` in a thread, which the process waits for when it ends; return when it is done, or after `wait_s`. Where
    no thread can start, or the process does not wait any more, as in exit handlers, the work is done here.
    """
    claim, begun, done = threading.Lock(), threading.Event(), threading.Event()

    def do() -> None:
        if claim.acquire(blocking=False):
            begun.set()
            try:
                work()
            finally:
                done.set()

    def start() -> None:
        try:
            threading.Thread(target=do, name=name, daemon=False).start()
        except RuntimeError:  # there can be none
            begun.set()

    if threading.main_thread().is_alive():
        with suppress(RuntimeError):
            start_thread(start)
            begun.wait(_BEGIN_S)
    do()
    done.wait(wait_s)


def _is_opening() -> bool:
    """Return whether this thread holds `unforked`."""
    return unforked._is_owned()  # type: ignore[attr-defined, no-any-return] # as threading.Condition asks it
