"""Failures in a check: an exception described in plain values, and the exceptions that end a law."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ipcbench.errors import IpcbenchError

_MOST_TRACE_LINES = 12


@dataclass(frozen=True, slots=True)
class Failure:
    """One exception that left a backend, described so that it can be sent to another process."""

    kind: str
    """Name of its class."""
    kinds: tuple[str, ...]
    """Names of all its classes from ipcbench.errors, most specific first; empty if it is no IpcbenchError."""
    text: str
    cause: str
    """Name of the class of its `__cause__`; empty if it has none."""
    hidden: str
    """Name of the class of a foreign exception that it replaces without naming it as `__cause__`; empty if none."""
    trace: str
    """The last lines of its traceback."""

    def is_a(self, kind: str) -> bool:
        """Return whether it is an instance of that class of ipcbench.errors."""
        return kind in self.kinds

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for msgpack."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Failure:
        """Make a failure from what `as_dict` returned."""
        return cls(**{**values, "kinds": tuple(values["kinds"])})

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception that was caught."""
        context = error.__context__
        hides = error.__cause__ is None and context is not None and not isinstance(context, IpcbenchError)
        lines = "".join(traceback.format_exception(error)).splitlines()
        return cls(
            kind=type(error).__name__,
            kinds=tuple(kind.__name__ for kind in type(error).__mro__ if issubclass(kind, IpcbenchError)),
            text=str(error),
            cause="" if error.__cause__ is None else type(error.__cause__).__name__,
            hidden=type(context).__name__ if hides else "",
            trace="\n".join(lines[-_MOST_TRACE_LINES:]),
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class LawBroken(Exception):
    """The backend does not do what the law says; the text says what was seen."""


class LawSkipped(Exception):
    """The law does not apply to the backend; the text names the capability that says so."""


class AgentError(LawBroken):
    """A call in an agent raised where the law expects a value."""

    def __init__(self, agent: str, failure: Failure) -> None:
        super().__init__(f"{agent} raised {failure}\n{failure.trace}")
        self.failure = failure


class AgentHung(LawBroken):
    """A call in an agent has not returned by its deadline; the text ends with the stacks of its threads."""


class AgentLost(LawBroken):
    """An agent ended without having been killed; the text ends with the last lines of its stderr."""


def require(condition: bool, what: str) -> None:
    """Raise LawBroken(what) unless `condition` holds."""
    if not condition:
        raise LawBroken(what)
