"""Every error that ipcbench raises on purpose.

IpcbenchError
├── ConfigError            a value that was given is wrong: field, value, what is allowed
├── UnknownBackend         no backend of that name: lists the known ones
├── BackendUnavailable     known, but cannot run here: reason and how to install
├── Unsupported            the backend does not have that capability
├── TransportError
│   ├── TransportTimeout   the time-out passed; nothing was lost, the call may be repeated
│   ├── EndpointClosed     the endpoint was used after its own close
│   ├── EndOfStream        the writer has closed and everything was read
│   ├── PeerLost           the other side died without closing
│   └── MessageTooLarge    nothing was sent, the channel is usable
├── TrialError
│   ├── WorkerCrashed      a process of the group ended: role, exit code, last lines of its stderr
│   └── WorkerTimeout      a process of the group did not answer by its deadline
├── IntegrityError         messages were lost, duplicated, reordered or torn: the counts
└── StoreError             a results folder that cannot be read or written
└── SchemaMismatch     written by another version of the format
"""

from __future__ import annotations

from collections.abc import Iterable


class IpcbenchError(Exception):
    """Base of all errors raised by ipcbench; its text is one line, fit to be shown to a user."""


class ConfigError(IpcbenchError):
    """A value given by the user is wrong.

    Attributes:
        field: name of the option or key, as the user writes it.
        value: what was given.
        allowed: what would be accepted, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {value!r} is not valid; allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        """Pickle by the three parts, not by the text made from them."""
        return type(self), (self.field, self.value, self.allowed)


class UnknownBackend(IpcbenchError):
    """No backend is registered under that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(f"unknown backend {name!r}; known: {', '.join(self.known)}")

    def __reduce__(self) -> tuple[type[UnknownBackend], tuple[str, tuple[str, ...]]]:
        """Pickle by the two parts, not by the text made from them."""
        return type(self), (self.name, self.known)


class BackendUnavailable(IpcbenchError):
    """The backend is known but cannot run here.

    Attributes:
        name: the backend.
        reason: what is missing.
        hint: a command or a step that would make it available.
    """

    def __init__(self, name: str, reason: str, hint: str) -> None:
        super().__init__(f"backend {name!r} is not available: {reason}; {hint}")
        self.name = name
        self.reason = reason
        self.hint = hint

    def __reduce__(self) -> tuple[type[BackendUnavailable], tuple[str, str, str]]:
        """Pickle by the three parts, not by the text made from them."""
        return type(self), (self.name, self.reason, self.hint)


class Unsupported(IpcbenchError):
    """The backend does not have a capability that was asked for; the text names it."""


class TransportError(IpcbenchError):
    """Moving a message failed."""


class TransportTimeout(TransportError):
    """The time-out passed. Nothing was lost or half done: the call may be repeated."""


class EndpointClosed(TransportError):
    """The endpoint was used after its own `close`."""


class EndOfStream(TransportError):
    """The writer has closed, and every message was read."""


class PeerLost(TransportError):
    """The other side is gone without having closed."""


class MessageTooLarge(TransportError):
    """The message does not fit the channel. Nothing was sent; the channel stays usable."""

    def __init__(self, message_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"message of {message_bytes} bytes; the channel takes at most {limit_bytes}")
        self.message_bytes = message_bytes
        self.limit_bytes = limit_bytes

    def __reduce__(self) -> tuple[type[MessageTooLarge], tuple[int, int]]:
        """Pickle by the two numbers, not by the text made from them."""
        return type(self), (self.message_bytes, self.limit_bytes)


class TrialError(IpcbenchError):
    """A trial could not be carried out; the sweep goes on."""


class WorkerCrashed(TrialError):
    """A process of the worker group ended before its work did."""


class WorkerTimeout(TrialError):
    """A process of the worker group did not answer by its deadline."""


class IntegrityError(IpcbenchError):
    """What arrived is not what was sent; the text holds the counts."""


class StoreError(IpcbenchError):
    """A results folder cannot be read or written."""


class SchemaMismatch(StoreError):
    """A results folder was written by another version of the format."""
