"""The call that is not timed. Standard library only; with sampling or a budget, most calls are this one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from ipcbench.trace.record.call import Call
from ipcbench.trace.record.context import NO_CONTEXT
from ipcbench.trace.record.hot import HotNothing

if TYPE_CHECKING:
    from ipcbench.trace.record.context import Context


class Nothing(HotNothing, Call):
    """A call that is not timed: everything is accepted, nothing happens."""

    __slots__ = ()

    def __init__(self) -> None:
        """Hold nothing; what is set is forgotten."""
        self.sent_bytes = self.recv_bytes = 0

    def context(self) -> bytes:
        """Return a context that asks for no record."""
        return NO_CONTEXT

    def buffers(self, *request: object) -> None:
        """Ignore it."""

    def reply_buffers(self, *reply: object) -> None:
        """Ignore it."""

    def follow(self, context: Context | None) -> None:
        """Ignore it."""

    def forget(self) -> None:
        """Ignore it."""


NOTHING = Nothing()

# A `with` statement calls these quicker than any method, which is bound first. Most calls are such a nothing.
Nothing.__enter__ = ref(NOTHING)  # type: ignore[method-assign, assignment] # returns it
Nothing.__exit__ = "".format  # type: ignore[method-assign, assignment] # takes anything, returns what is false
