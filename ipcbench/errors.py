"""Every error that ipcbench raises on purpose.

IpcbenchError
├── ConfigError            a value that was given is wrong: field, value, what is allowed
├── UnknownBackend         no backend of that name: lists the known ones
├── BackendUnavailable     known, but cannot run here: reason and how to install
├── HostError              a host cannot take part: which, and why
├── Unsupported            the backend lacks a capability that was asked for
├── TransportError
│   ├── TransportTimeout   the time-out passed; nothing was lost, the call may be repeated
│   ├── EndpointClosed     the endpoint was used after its own close
│   ├── EndOfStream        the writer has closed and everything was read
│   ├── PeerLost           the peer died without closing
│   ├── MessageTooLarge    nothing was sent; the channel stays usable
│   ├── PayloadTypeError   what was to be written has no bytes to send; also a TypeError
│   └── EncodeError        an object, or something in it, cannot travel: its path; also a TypeError
├── UnknownMethod          a server has no method of that name: lists those that it has
├── RemoteError            a method that was called in another process raised: type, text, traceback
├── TrialError
│   ├── WorkerCrashed      a process of the group ended: role, exit code, last lines of its stderr
│   └── WorkerTimeout      a process of the group did not answer by its deadline
├── IntegrityError         messages were lost, duplicated, reordered or torn: the counts
└── StoreError             a results folder cannot be read or written
    └── SchemaMismatch     written by another version of the format
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MOST_CHARACTERS = 200
"""Of a value in a text."""
_LEAST_LIKENESS = 0.65
"""Of a wrong value and the name that was probably meant."""


class IpcbenchError(Exception):
    """Base of all errors raised by ipcbench; its text is one line that can be shown to a user."""

    _parts: tuple[Any, ...] = ()
    """Arguments of a constructor that makes the text from them."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle such an error by its parts, not by its text."""
        return (type(self), self._parts) if self._parts else super().__reduce__()


def _shortened(value: object) -> str:
    """Return a value as Python writes it; the middle of a long one is left out."""
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS // 2]} … {text[-20:]}"


def closest(value: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant, of equally like ones the first; None if none is like it, or if the value
    is several names.
    """
    from difflib import SequenceMatcher  # slow to load, and only errors need it

    if set(value) & {",", ";"}:
        return None
    likeness = {name: SequenceMatcher(None, name.lower(), value.lower()).ratio() for name in known}
    name = max(likeness, key=likeness.__getitem__, default="")
    return name if likeness.get(name, 0.0) >= _LEAST_LIKENESS else None


def did_you_mean(name: str | None) -> str:
    """Return that question, to stand behind a wrong value; nothing without a name."""
    return f" (did you mean {name!r}?)" if name else ""


class ConfigError(IpcbenchError):
    """A value given by the user is wrong.

    Attributes:
        field: name of the option or key, as the user writes it.
        value: what was given.
        allowed: what would be accepted, in words, or every value that would be.
    """

    def __init__(self, field: str, value: object, allowed: str | Iterable[str]) -> None:
        known = () if isinstance(allowed, str) else tuple(allowed)
        words = allowed if isinstance(allowed, str) else " or ".join(filter(None, (", ".join(known[:-1]), *known[-1:])))
        super().__init__(
            f"{field}: {_shortened(value)} is not valid{did_you_mean(closest(str(value), known))}; allowed: {words}"
        )
        self.field, self.value, self.allowed = self._parts = (field, value, known or allowed)


class UnknownBackend(IpcbenchError):
    """No backend is registered under that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = self._parts = (name, tuple(known))
        meant = did_you_mean(closest(name, self.known))
        known_words = ", ".join((*self.known, "or your own, module:Class"))
        super().__init__(f"unknown backend {_shortened(name)}{meant}; known: {known_words}")


class BackendUnavailable(IpcbenchError):
    """The backend is known but cannot run here.

    Attributes:
        name: the backend.
        reason: what is missing.
        hint: a command or a step that would make it available.
    """

    def __init__(self, name: str, reason: str, hint: str) -> None:
        super().__init__(f"backend {name!r} is not available: {reason}; {hint}")
        self.name, self.reason, self.hint = self._parts = (name, reason, hint)


class HostError(IpcbenchError):
    """A host cannot take part.

    Attributes:
        host: its name.
        reason: why, as the end of the sentence "host a …".
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"host {host}: {reason}")
        self.host, self.reason = self._parts = (host, reason)


class Unsupported(IpcbenchError):
    """The backend lacks a capability that was asked for; the text names it."""


class TransportError(IpcbenchError):
    """Moving a message failed."""


class TransportTimeout(TransportError):
    """The time-out passed. Nothing was lost; the call may be repeated."""


class EndpointClosed(TransportError):
    """The endpoint was used after its own `close`."""


class EndOfStream(TransportError):
    """The writer has closed and every message was read."""


class PeerLost(TransportError):
    """The peer died without closing."""


class MessageTooLarge(TransportError):
    """The message does not fit the channel. Nothing was sent; the channel stays usable."""

    def __init__(self, message_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"message of {message_bytes} bytes; the channel takes at most {limit_bytes}: send less at a time, or "
            "make it for larger ones"
        )
        self.message_bytes, self.limit_bytes = self._parts = (message_bytes, limit_bytes)


class PayloadTypeError(TransportError, TypeError):
    """What was to be written is not a contiguous buffer of plain values. Nothing was sent; the channel stays usable."""

    def __init__(self, type_name: str, reason: str) -> None:
        super().__init__(f"a message must be a contiguous buffer, such as bytes; {type_name} is not: {reason}")
        self.type_name, self.reason = self._parts = (type_name, reason)


class EncodeError(TransportError, TypeError):
    """An object cannot be sent, or something in it. Nothing was sent; the channel stays usable.

    Attributes:
        path: where it is: `args[0]['layers'][3]`.
        type_name: its type.
        reason: why it cannot travel, and what can.
    """

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        super().__init__(f"{path} ({type_name}) cannot be sent: {reason}")
        self.path, self.type_name, self.reason = self._parts = (path, type_name, reason)


class UnknownMethod(IpcbenchError):
    """A server has no method of that name."""

    def __init__(self, server: str, name: str, known: Iterable[str]) -> None:
        self.server, self.name, self.known = self._parts = (server, name, tuple(known))
        meant = did_you_mean(closest(name, self.known))
        super().__init__(f"server {server!r} has no method {name!r}{meant}; it has: {', '.join(self.known) or 'none'}")


class RemoteError(IpcbenchError):
    """A method that was called in another process raised.

    Attributes:
        type_name: name of the exception's type.
        text: its text.
        traceback: as Python would have printed it there.
    """

    def __init__(self, type_name: str, text: str, traceback: str) -> None:
        super().__init__(f"{type_name}: {text}" if text else type_name)
        self.type_name, self.text, self.traceback = self._parts = (type_name, text, traceback)
        self.add_note(f"In the other process:\n{traceback.rstrip()}")


class TrialError(IpcbenchError):
    """A trial failed; the sweep continues."""


class WorkerCrashed(TrialError):
    """A process of the worker group ended before its work did."""


class WorkerTimeout(TrialError):
    """A process of the worker group did not answer by its deadline."""


class IntegrityError(IpcbenchError):
    """The messages received are not those sent; the text holds the counts."""


class StoreError(IpcbenchError):
    """A results folder cannot be read or written."""


class SchemaMismatch(StoreError):
    """A results folder was written by another version of the format."""
