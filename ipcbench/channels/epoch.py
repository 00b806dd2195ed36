"""One life of the channel of a name: its transports' channels, and the places of its processes.

A place is taken once. So whoever comes when a place is spent, because its process has left or died, begins a new epoch;
nobody ever finds messages of an old one. The last process of an epoch removes what belongs to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from ipcbench.backend import Address, Backend
from ipcbench.channels.rendezvous import Lock, Rendezvous
from ipcbench.errors import ConfigError, TransportError, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.spec import NAME_PREFIX, ChannelSpec
from ipcbench.workload.objects import Slot

VERSION = 1
"""Of what a note of an epoch says."""
_PREFIX = "epoch-"
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch, as its note says."""

    number: int
    """From 1."""
    token: str
    """Part of the names of all that belongs to it."""
    places: dict[str, list[str]]
    """The places of each role."""
    options: dict[str, Any]
    """What whoever made it asked for."""
    addresses: tuple[Address, ...]
    """Of its channels; with two for a pair, the first leads from the first place to the second."""

    @classmethod
    def create(cls, meeting: Rendezvous, options: dict[str, Any], places: dict[str, list[str]]) -> Epoch:
        """Make an epoch after those that are there, and write its note; hold the folder's lock meanwhile.

        Raises:
            TransportError, ConfigError, Unsupported, BackendUnavailable: its channels cannot be made.
        """
        number = max((epoch.number for epoch in epochs(meeting)), default=0) + 1
        token = secrets.token_hex(_TOKEN_BYTES)
        kind = usable_backend(options["backend"])
        base = {key: options[key] for key in ("depth", "wait", "readers", "writers", "delivery")}
        base["max_message_bytes"] = min(2**40, options["max_message_bytes"] + Slot.ROOM_BYTES)
        patterns = {"pattern": "broadcast"} if options["pattern"] == "pair" else {"pattern": options["pattern"]}
        ends = ("-ab", "-ba") if options["pattern"] == "pair" else ("",)
        with ExitStack() as undo:
            addresses = []
            for end in ends:
                channel = ChannelSpec(name=f"{NAME_PREFIX}{meeting.name}-{token}{end}", **base, **patterns)
                addresses.append(kind().create(channel))
                undo.callback(kind().destroy, addresses[-1])
            epoch = cls(number, token, places, options, tuple(addresses))
            meeting.write(
                f"{_PREFIX}{token}",
                {"version": VERSION, "number": number, "token": token, "places": places, "options": options,
                 "addresses": [address.as_dict() for address in addresses]},
            )  # fmt: skip
            undo.pop_all()
        return epoch

    def taken(self, meeting: Rendezvous, role: str) -> Iterator[tuple[str, bool]]:
        """Yield the places of a role that were ever taken, each with whether a living process holds it."""
        for place in self.places[role]:
            if meeting.was_taken(f"{self.token}-{place}"):
                yield place, meeting.is_held(f"{self.token}-{place}")

    def take(self, meeting: Rendezvous, role: str) -> tuple[str, Lock] | None:
        """Take the first place of a role that nobody had, and its lock; None if there is none."""
        for place in self.places[role]:
            if not meeting.was_taken(f"{self.token}-{place}"):
                lock = meeting.lock(f"{self.token}-{place}")
                if lock is not None:
                    return place, lock
        return None

    def is_live(self, meeting: Rendezvous) -> bool:
        """Return whether a living process holds a place."""
        return any(is_held for role in self.places for _, is_held in self.taken(meeting, role))

    def release(self) -> None:
        """Give up what this process keeps for it, if it made it."""
        for address in self.addresses:
            get_backend(self.options["backend"])().release(address)

    def destroy(self, meeting: Rendezvous) -> None:
        """Remove all that belongs to it; hold the folder's lock meanwhile.

        Raises:
            TransportError: something cannot be removed; its note is then left.
        """
        backend = get_backend(self.options["backend"])()
        for address in self.addresses:
            backend.destroy(address)
        for role in self.places:
            for place in self.places[role]:
                meeting.forget(f"{self.token}-{place}")
        meeting.forget(f"{_PREFIX}{self.token}")


def usable_backend(name: str) -> type[Backend]:
    """Return a transport by which processes may find each other.

    Raises:
        UnknownBackend, BackendUnavailable: there is none of that name, or not here.
        ConfigError: it needs a launcher, or does not notice that a process has died.
    """
    kind = get_backend(name)
    kind.probe()
    if kind.capabilities.launcher != "spawn" or not kind.capabilities.detects_peer_exit:
        able = "one that any processes can use and that notices the death of one, as shm, pipe, tcp, zmq or lmdb"
        raise ConfigError("backend", name, able)
    return kind


def epochs(meeting: Rendezvous) -> list[Epoch]:
    """Return all epochs of a name, the newest last.

    Raises:
        TransportError: a note is damaged, or of another version.
    """
    found = []
    for name in meeting.notes(_PREFIX):
        values = meeting.read(name)
        if values is None:
            continue
        if values.get("version") != VERSION:
            raise TransportError(
                f"channel {meeting.name!r} was made by another version of ipcbench; use one version, or remove "
                f"{meeting.path} when nobody uses it"
            )
        try:
            addresses = tuple(map(Address.from_dict, values["addresses"]))
            found.append(Epoch(values["number"], values["token"], values["places"], values["options"], addresses))
        except (LookupError, TypeError) as error:
            raise TransportError(f"{meeting.path}/{name}.json is damaged; remove the folder") from error
    return sorted(found, key=lambda epoch: epoch.number)


def leave(meeting: Rendezvous, lock: Lock, deadline: int | None) -> None:
    """Give up a place. The last one of an epoch removes it, and the folder if nothing else is in it."""
    with suppress(TransportTimeout), meeting.locked(deadline):
        lock.release()
        remove_dead(meeting)
    lock.release()
    meeting.remove()


def remove_dead(meeting: Rendezvous) -> None:
    """Remove the epochs of which no living process holds a place; hold the folder's lock meanwhile."""
    for epoch in epochs(meeting):
        if not epoch.is_live(meeting):
            epoch.destroy(meeting)
