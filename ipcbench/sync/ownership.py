"""Whose an endpoint is: what its process holds of it goes when it is dropped, and a forked child owns none.

Both times the process lets go of it without a word to the peers. To them, a dropped endpoint has died (law C13), and
one that a child inherited is still its parent's. A thread that opens something must not be interrupted by a fork of
another thread: the child would hold what nobody has written down yet, and its parent's death would not show.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import warnings
from abc import ABCMeta, abstractmethod
from types import FrameType
from typing import Any, Protocol
from weakref import WeakSet

from ipcbench.errors import TransportError
from ipcbench.sync.interrupts import no_fork, unforked, uninterrupted

_CALLS = {
    **{name: name for name in ("read", "read_many", "write", "write_many", "write_parts", "reserve", "commit")},
    "_await": "read",
    "_await_room": "write",
}
"""Methods that are under way during a call, and the call; one in C has no frame of its own."""


class Releasable(Protocol):
    """Something that belongs to this process and not to its children."""

    def let_go(self) -> None:
        """Release what this process holds; see `Owned.let_go`."""


_owned: WeakSet[Releasable] = WeakSet()


def own(resource: Releasable) -> None:
    """Have every forked child let go of it."""
    _owned.add(resource)


def keep_for_ever(inherited: object) -> None:
    """Keep what a forked child has of its parent's until its process ends, whatever a destructor of a library would do
    to it or wait for, also in the interpreter's last collection.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _before_fork() -> None:
    """Wait for `unforked`, whatever signal handlers raise meanwhile: a fork would go on without it."""
    is_held = False
    while not is_held:
        try:
            # No exception comes between the step of an iterator in C and the assignment of a loop.
            for is_held in map(unforked.acquire, (True,)):  # noqa: B007 # the outer loop uses it
                pass
        except BaseException as error:
            _raised.append(error)


def _tell() -> None:
    while _raised:
        raise _raised.pop()  # which Python can only print


def _let_go_of_all() -> None:
    """Let go of everything in a child, whatever signal handlers raise meanwhile: its parent's death would not show."""
    _raised.clear()
    if not unforked._is_owned():  # type: ignore[attr-defined] # as it is where this thread forks within an opening
        unforked._at_fork_reinit()  # type: ignore[attr-defined] # if a thread of the parent holds it, for ever
    left, failures_count = list(_owned), 0
    while left:
        try:
            while left:
                left[-1].let_go()
                left.pop()
        except BaseException as error:
            failures_count += 1
            if failures_count > _MOST_FAILURES:
                left.pop()
            _raised.append(error)
    _owned.clear()


_raised: list[BaseException] = []
_MOST_FAILURES = 100
"""After so many exceptions in a child, what cannot be let go is left as it is."""

# What is in C cannot be interrupted; what is not is done again, in case an exception of a handler comes at its begin.
os.register_at_fork(before=_before_fork, after_in_parent=unforked.release, after_in_child=unforked.release)
os.register_at_fork(after_in_parent=_tell, after_in_child=_let_go_of_all)
os.register_at_fork(after_in_child=_let_go_of_all)
os.register_at_fork(after_in_child=_let_go_of_all)


class _Whole(ABCMeta):
    """A class whose instances a fork finds complete, or not at all."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        with no_fork():
            return super().__call__(*args, **kwargs)


class Owned(metaclass=_Whole):
    """An endpoint of this process; call `opened` at the end of its construction."""

    _is_open = False
    _is_released = False
    """Whether it was closed or let go; `let_go` sets it."""

    def opened(self) -> None:
        """Own it from now on."""
        self._closing = threading.RLock()
        self._is_open = True
        own(self)

    def close(self) -> None:
        """Close to the end, whatever signal handlers raise; a second call does nothing.

        Raises:
            TransportError: a signal handler calls it within a call of this endpoint, which could not go on.
        """
        if not self._is_released:
            self._require_no_call()
            uninterrupted(self._close_once)

    def _require_no_call(self) -> None:
        """Raise TransportError if this thread is in a call of this endpoint."""
        frame: FrameType | None = sys._getframe()
        while (frame := frame and frame.f_back) is not None:
            if frame.f_code.co_name in _CALLS and frame.f_locals.get("self") is self:
                raise TransportError(
                    f"a signal handler cannot close an endpoint whose `{_CALLS[frame.f_code.co_name]}` it interrupts: "
                    "let it raise an exception, or set a flag, and close after the call"
                )

    def _close_once(self) -> None:
        with self._closing:
            if not self._is_released:
                self._is_released = True
                self._close()

    def _close(self) -> None:
        """Tell the peers that this endpoint closes, and release what this process holds of it."""
        raise NotImplementedError

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Return whether this process has closed it or let go of it."""

    @abstractmethod
    def let_go(self) -> None:
        """Release what this process holds of it and tell the peers nothing; from now on it is closed."""

    def __del__(self) -> None:
        if self._is_open and not self.closed and not sys.is_finalizing():
            try:
                uninterrupted(self.let_go)
            finally:  # a warning may be an error
                warnings.warn(f"{type(self).__name__} was dropped without `close`", ResourceWarning, 2, self)
