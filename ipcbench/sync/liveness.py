"""Who has taken a place in a channel, who has left it politely, and who has died.

An endpoint that closes leaves a note, `<role>.left`, beside its seat. A free seat without a note is a death.
"""

from __future__ import annotations

from contextlib import suppress

from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.locks import Seat, channel_directory, is_held
from ipcbench.util.clock import now_ns

LOOK_NS = 100_000_000
"""Time between two looks at the others: how soon a death is noticed is two of these."""

_LOOKS_TO_DEATH = 3


def reader_role(channel: ChannelSpec, index: int) -> str:
    """Return the role of reader `index`.

    Raises:
        TransportError: the channel has no such reader.
    """
    if not 0 <= index < channel.readers:
        raise TransportError(f"channel {channel.name!r} has readers 0 to {channel.readers - 1}, not {index}")
    return f"reader-{index}"


def reader_roles(channel: ChannelSpec) -> list[str]:
    """Return the roles of all readers, in order."""
    return [f"reader-{index}" for index in range(channel.readers)]


class Presence:
    """One endpoint's place in its channel, and its view of the others' places."""

    __slots__ = ("_looks", "_next_look_ns", "_seat", "directory", "role")

    def __init__(self, channel: ChannelSpec, role: str) -> None:
        """Take the seat.

        Raises:
            TransportError: there is no such channel, the seat is taken, or its holder has closed before.
        """
        self.directory = channel_directory(channel.name)
        self.role = role
        self._seat = Seat(self.directory, role)
        if self.note_of(role) is not None:
            self._seat.leave()
            raise TransportError(f"the {role} of channel {channel.name!r} has closed; it cannot open again")
        self._looks: dict[str, int] = {}
        self._next_look_ns = 0

    def leave_note(self, text: str = "") -> None:
        """Say that this endpoint closes of its own will; if the channel is destroyed already, nobody asks."""
        with suppress(FileNotFoundError):
            unfinished = self.directory / f"{self.role}.leaving"
            unfinished.write_text(text)
            unfinished.rename(self.directory / f"{self.role}.left")

    def note_of(self, role: str) -> str | None:
        """Return what that endpoint noted when it closed; None if it has not closed."""
        try:
            return (self.directory / f"{role}.left").read_text()
        except FileNotFoundError:
            return None

    def vacate(self) -> None:
        """Free the seat; twice is fine."""
        self._seat.leave()

    def is_time_to_look(self) -> bool:
        """Return whether `LOOK_NS` have passed since it was true last: files are too dear to look at always."""
        now = now_ns()
        if now < self._next_look_ns:
            return False
        self._next_look_ns = now + LOOK_NS
        return True

    def is_gone(self, role: str) -> bool:
        """Return whether nobody is at that place any more: closed, dead, or the channel destroyed. Ask it when
        `is_time_to_look`; whether a note was left is the caller's question.

        The first look only sees that the seat exists: asking for its lock could disturb the process that is just taking
        it. Then two looks in a row must find it free, so that what the dead had sent has had time to arrive.
        """
        looks = self._looks.get(role, 0)
        if looks:
            looks = 1 if is_held(self.directory, role) else looks + 1
        elif (self.directory / f"{role}.seat").exists() or not self.directory.exists():
            looks = 1
        self._looks[role] = looks
        return looks >= _LOOKS_TO_DEATH
