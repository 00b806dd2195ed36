"""The decorator: functions, coroutines, generators and asynchronous generators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ipcbench.trace.record.call import NO_OP, Call
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.schema import FUNCTION, GENERATOR
from ipcbench.util.clock import now_ns

_Function = TypeVar("_Function", bound=Callable[..., Any])


def traced(name: str = "") -> Callable[[_Function], _Function]:
    """Return a decorator that records every call of a function under `name`, by default the function's own name.

    A coroutine's call ends with it. A generator's call ends when it is exhausted, closed or raises; it has two
    stages: its own time, and the time for which it was suspended.
    """

    def decorate(function: _Function) -> _Function:
        method = name or str(getattr(function, "__qualname__", function))
        if inspect.isasyncgenfunction(function):
            wrapped: Any = _async_generator(function, method)
        elif inspect.iscoroutinefunction(function):
            wrapped = _coroutine(function, method)
        elif inspect.isgeneratorfunction(function):
            wrapped = _generator(function, method)
        else:
            wrapped = _function(function, method)
        decorated: Any = functools.wraps(function)(wrapped)
        return decorated  # type: ignore[no-any-return] # it has the function's own type

    return decorate


def _function(function: Callable[..., Any], method: str) -> Callable[..., Any]:
    state = STATE

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        recorder = state.recorder
        if not recorder.enabled:
            return function(*args, **kwargs)
        call = recorder.call(method, FUNCTION)
        if call is NO_OP:
            return function(*args, **kwargs)
        with call:
            return function(*args, **kwargs)

    return wrapper


def _coroutine(function: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with STATE.recorder.call(method, FUNCTION):
            return await function(*args, **kwargs)

    return wrapper


class _Turns:
    """Adds up a generator's two stages, and reports them to its call as one mark."""

    __slots__ = ("_call", "_entered_ns", "_run_ns")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._run_ns = self._entered_ns = 0

    def __enter__(self) -> None:
        self._entered_ns = now_ns()

    def __exit__(self, *error: object) -> None:
        self._run_ns += now_ns() - self._entered_ns

    def finish(self) -> None:
        """Mark the end of the first stage where it would be if the generator had run without a break."""
        if self._call is not NO_OP:
            self._call._stamp(self._call._begin_ns + self._run_ns)


def _generator(function: Callable[..., Any], method: str) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with STATE.recorder.call(method, GENERATOR) as call:
            turns = _Turns(call)
            inner = function(*args, **kwargs)
            step, argument = inner.send, None
            try:
                while True:
                    try:
                        with turns:
                            value = step(argument)
                    except StopIteration as end:
                        return end.value
                    try:
                        step, argument = inner.send, (yield value)
                    except GeneratorExit:
                        inner.close()
                        return None
                    except BaseException as error:  # whatever is thrown in is for the generator
                        step, argument = inner.throw, error
            finally:
                turns.finish()

    return wrapper


def _async_generator(function: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with STATE.recorder.call(method, GENERATOR) as call:
            turns = _Turns(call)
            inner = function(*args, **kwargs)
            step, argument = inner.asend, None
            try:
                while True:
                    try:
                        with turns:
                            value = await step(argument)
                    except StopAsyncIteration:
                        return
                    try:
                        step, argument = inner.asend, (yield value)
                    except GeneratorExit:
                        await inner.aclose()
                        return
                    except BaseException as error:  # whatever is thrown in is for the generator
                        step, argument = inner.athrow, error
            finally:
                turns.finish()

    return wrapper
