"""Schemas: the stages that a traced call goes through, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ipcbench.errors import ConfigError

MAX_STAGES = 7
"""How many stages a record has room for."""

LOCAL: Final = 0
CLIENT: Final = 1
SERVER_SIDE: Final = 2
RECEIVER: Final = 3
"""The side of a call that its recorder is on; LOCAL for a call without sides. A receiver takes a message that nobody
answers; the sender of that is a client."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The stages of one kind of call.

    Attributes:
        name: of the schema in reports.
        stages: names of the stages in order, 1 to 7; each ends where the next begins, the last with the call.
        role: LOCAL, CLIENT, SERVER_SIDE or RECEIVER.
    """

    name: str
    stages: tuple[str, ...]
    role: int = LOCAL

    def __post_init__(self) -> None:
        if not 1 <= len(self.stages) <= MAX_STAGES or len(set(self.stages)) != len(self.stages):
            raise ConfigError("stages", ", ".join(self.stages), f"1 to {MAX_STAGES} names, all different")
        for word in (self.name, *self.stages):
            if not word or len(word) > 40 or not word.isprintable() or set(word) & set(":,"):
                raise ConfigError("schema", word, "1 to 40 printable characters without `:` and `,`")

    def __hash__(self) -> int:
        """Hash the name alone: every call of this schema is looked up by its hash, so this must be quick."""
        return hash(self.name)

    @property
    def text(self) -> str:
        """The schema as text: `rpc:serialize,send,wait,deserialize`."""
        return f"{self.name}:{','.join(self.stages)}"


def parse_schema(text: str) -> Schema:
    """Return the schema that `text` describes (see `Schema.text`).

    Raises:
        ConfigError: it does not describe a schema.
    """
    name, _, stages = text.partition(":")
    return Schema(name, tuple(stages.split(",")))


RPC = Schema("rpc", ("serialize", "send", "wait", "deserialize"), CLIENT)
"""A remote call as its client sees it; `wait` includes both ways and the server."""

SERVER = Schema("server", ("queue", "work", "reply"), SERVER_SIDE)
"""The same call at its server: the time until it is taken up, the work, and sending the reply."""

EXCHANGE = Schema("exchange", ("send", "wait"), CLIENT)
"""A request and its reply at a socket, which does not see them serialized."""

SEND = Schema("send", ("send",), CLIENT)
"""Sending a message that nobody answers."""

RECEIVE = Schema("receive", ("receive",), RECEIVER)
"""Receiving such a message, including the wait for it."""

QUEUE_PUT = Schema("put", ("put",), CLIENT)
"""Putting an object into a queue, which pickles it later: its bytes are unknown."""

QUEUE_GET = Schema("get", ("get",), RECEIVER)
"""Taking an object out of a queue, including the wait for it."""

PLANNED = Schema("planned", ("wait",), CLIENT)
"""A remote call that nobody made: its bytes were computed, and no time of it is known. Its record has zeros there."""

TIMELESS: Final = frozenset({PLANNED.name})
"""The schemas whose calls have no times."""

COUNTED: Final = frozenset(schema.name for schema in (EXCHANGE, SEND, RECEIVE, PLANNED))
"""The schemas whose calls always note their bytes. With any other, 0 both ways means that nobody did, unless a record's
flag says otherwise."""

PIPELINE = Schema("pipeline", ("get", "compute", "put"))
"""A step that fetches its input, works, and passes its output on."""

FUNCTION = Schema("function", ("run",))
"""A decorated function or coroutine."""

GENERATOR = Schema("generator", ("run", "suspended"))
"""A decorated generator: the time in its own code, and the time its consumer took between two values."""
