"""A channel, as asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from ipcbench.errors import ConfigError
from ipcbench.spec.checks import require_choice, whole_number

Delivery = Literal["every_message", "latest_value"]
Pattern = Literal["broadcast", "queue", "fan_in"]
"""`broadcast`: one writer, every reader gets every message. `queue`: one writer, each message goes to one of the
readers. `fan_in`: many writers, one reader gets the messages of all."""
WaitStrategy = Literal["auto", "spin", "yield", "block"]

DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
WAIT_STRATEGIES: tuple[WaitStrategy, ...] = get_args(WaitStrategy)

NAME_PREFIX = "ipcb-"
"""Prefix of the name of every resource that ipcbench makes (segment, socket, directory, process group)."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
MAX_DEPTH = 2**16


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """A live path from one writer to N readers, as asked for."""

    name: str
    """Prefix of every resource of the channel: letters, digits, `-` and `_`, at most 48; unique on the host."""
    readers: int = 1
    """Exact number of readers."""
    max_message_bytes: int = 2**20
    """Size of the largest message that it must carry."""
    delivery: Delivery = "every_message"
    depth: int = 16
    """For every_message: how many messages a reader may be behind before the writer is held (2 to 65,536). A backend
    may hold fewer large messages, and more small ones if buffers on the way take them (docs/contract.md)."""
    wait: WaitStrategy = "auto"
    """How a blocked endpoint waits."""
    processes: tuple[int, ...] = ()
    """Process numbers of the writer and of each reader in their group; empty means 0, 1, 2 … Only a transport that
    names processes (MPI: ranks) uses them."""
    pattern: Pattern = "broadcast"
    """Who gets a message. In a queue, `readers` is the largest number of workers in the life of the channel, which may
    come and go, and `depth` is how many messages each of them may hold that it has not finished."""
    writers: int = 1
    """Exact number of writers; above 1 for a fan-in only."""
    host: str = ""
    """Where processes on other hosts reach this one, a name or an IP address; empty for a channel of one host."""
    near: tuple[int, ...] = ()
    """Between hosts: which readers run on the writer's. Only `hybrid` needs to know."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                "channel name", self.name, "1 to 48 letters, digits, '-' or '_', not beginning with a sign"
            )
        limits = (("readers", 1, 1024), ("writers", 1, 1024), ("max_message_bytes", 0, 2**40), ("depth", 2, MAX_DEPTH))
        for field, low, high in limits:
            object.__setattr__(self, field, whole_number(field, getattr(self, field), low, high))
        require_choice("delivery", self.delivery, DELIVERIES)
        require_choice("wait", self.wait, WAIT_STRATEGIES)
        require_choice("pattern", self.pattern, PATTERNS)
        self._require_pattern()
        if not isinstance(self.host, str) or not (self.host.isprintable() and " " not in self.host):
            raise ConfigError("host", self.host, "the name or the IP address of this host, or nothing")
        if not isinstance(self.processes, tuple) or (self.processes and len(set(self.processes)) != self.readers + 1):
            raise ConfigError("processes", self.processes, f"a tuple of {self.readers + 1} different numbers, or none")
        if not isinstance(self.near, tuple) or not set(self.near) <= set(range(self.readers)):
            raise ConfigError("near", self.near, f"a tuple of numbers of readers, from 0 to {self.readers - 1}")
        numbers = tuple(whole_number("processes", number, 0, 2**31) for number in self.processes)
        object.__setattr__(self, "processes", numbers)

    def _require_pattern(self) -> None:
        if self.pattern == "broadcast" and self.writers != 1:
            raise ConfigError("writers", self.writers, "1, but for pattern fan_in")
        if self.pattern == "queue" and self.writers != 1:
            raise ConfigError("writers", self.writers, "1 for a queue")
        if self.pattern == "fan_in" and self.readers != 1:
            raise ConfigError("readers", self.readers, "1 for a fan_in")
        if self.pattern != "broadcast" and self.delivery != "every_message":
            raise ConfigError("delivery", self.delivery, f"every_message for a {self.pattern}")

    def process_numbers(self) -> tuple[int, ...]:
        """Return the process numbers of the writer and of readers 0, 1, 2 …"""
        return self.processes or tuple(range(self.readers + 1))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for msgpack, JSON and `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a channel from what `as_dict` returned; ConfigError for anything else."""
        try:
            return cls(**{**values, **{name: tuple(values[name]) for name in ("processes", "near") if name in values}})
        except (LookupError, TypeError) as error:
            raise ConfigError("channel", values, "what `ChannelSpec.as_dict` returned") from error
