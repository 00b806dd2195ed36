"""The channels that a pattern consists of, and what the endpoints that are made of theirs have in common."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from ipcbench.backend import Address, Backend, Endpoint
from ipcbench.errors import ConfigError, EndpointClosed, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.ownership import own

NUMBER_BYTES = 8
"""Of the number before each task, and of a count of finished ones."""

LONGEST_NAME = 43
"""Of a channel with a pattern: its parts' names have up to five characters more."""


_LOOK_NS = 200_000_000
_ROUND = 4
"""How many looks it takes to see every place, if there are so many."""

Place = TypeVar("Place")


class Looks:
    """Looks at places whose descriptors do not tell everything: a death makes none readable. To look costs system
    calls, and a pattern may have hundreds of places; so it looks at all at first, and then at a part of them in turns,
    at each every 0.8 s.

    Attributes:
        due_ns: when the next one is due.
    """

    def __init__(self) -> None:
        self.due_ns = 0
        self._turn = -1

    def take(self, now: int, places: Collection[Place]) -> list[Place]:
        """Return what to look at now, and wait for the next turn."""
        self.due_ns = now + _LOOK_NS
        self._turn += 1
        every = min(_ROUND, len(places)) if self._turn else 1
        return list(places)[self._turn % every :: every] if places else []


class Composed(Endpoint):
    """An endpoint that is made of endpoints, and that a forked child can no more use than these."""

    def __init__(self, channel: ChannelSpec) -> None:
        self._channel = channel
        self._closed = False
        own(self)

    def let_go(self) -> None:
        """Be closed from now on, in a forked child; the parts let go of what they hold."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise EndpointClosed(f"this endpoint of channel {self._channel.name!r} is closed")


def parts_of(channel: ChannelSpec) -> Iterator[ChannelSpec]:
    """Yield the channels, in order: of a queue two a worker, for tasks and for what it has finished, which may all be
    under way at once; of a fan-in one a writer.

    Raises:
        ConfigError: the name is too long.
    """
    if len(channel.name) > LONGEST_NAME:
        raise ConfigError("channel name", channel.name, f"1 to {LONGEST_NAME} characters for a {channel.pattern}")
    plain = replace(channel, pattern="broadcast", readers=1, writers=1, processes=(), near=())
    if channel.pattern == "fan_in":
        for index in range(channel.writers):
            yield replace(plain, name=f"{channel.name}-w{index}")
        return
    for index in range(channel.readers):
        task_bytes = channel.max_message_bytes + NUMBER_BYTES
        yield replace(plain, name=f"{channel.name}-t{index}", max_message_bytes=task_bytes, depth=channel.depth + 1)
        done_depth = channel.depth + 2
        yield replace(
            plain, name=f"{channel.name}-d{index}", max_message_bytes=NUMBER_BYTES, depth=done_depth, wait="block"
        )


def create_parts(backend: Backend, channel: ChannelSpec) -> Address:
    """Make all channels; none is left if one cannot be made.

    Raises:
        TransportError, ConfigError: as `Backend.create`.
    """
    with ExitStack() as undo:
        made = []
        for part in parts_of(channel):
            made.append(backend.create(part))
            undo.callback(backend.destroy, made[-1])
        undo.pop_all()
    return Address(backend.name, channel, json.dumps([address.location for address in made]))


def addresses_of(address: Address) -> list[Address]:
    """Return the addresses of the channels, in the order of `parts_of`.

    Raises:
        TransportError: it is not an address of such a channel.
    """
    parts = list(parts_of(address.channel))
    try:
        locations = json.loads(address.location)
        return [Address(address.backend, *each) for each in zip(parts, locations, strict=True)]
    except (ValueError, TypeError, ConfigError) as error:
        raise TransportError(
            f"the address of channel {address.channel.name!r} is none of a {address.channel.pattern}, but "
            f"{address.location!r}; pass the address that `create` returned"
        ) from error


def destroy_parts(backend: Backend, address: Address) -> None:
    """Remove all channels, also where some cannot be removed; then the first error is raised."""
    with ExitStack() as all_of_them:
        for part in addresses_of(address):
            all_of_them.callback(backend.destroy, part)
