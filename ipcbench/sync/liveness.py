"""Liveness: which endpoints of a channel are open, which have closed, and which have died.

An endpoint that closes leaves a note, a file, beside its lock. A released lock without a note means a death.
"""

from __future__ import annotations

import select
import stat
from contextlib import suppress
from pathlib import Path

from ipcbench.backend import Address
from ipcbench.errors import EndOfStream
from ipcbench.sync.directory import as_transport_errors, channel_directory, channel_file, write_private
from ipcbench.sync.locks import lock_endpoint, was_released
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

CHECK_NS = 100_000_000
"""Interval between two checks of the peers; a death is noticed within two of these."""

_CHECKS_TO_DEATH = 2
_NEWS_S, _NEWS_LOOK_S = 3.0, 0.005
"""How long news from another host may take, and how often to look for them."""


def note_path(address: Address, role: str) -> Path:
    """Return the file that an endpoint leaves when it closes."""
    return channel_file(address, f"{role}.left")


class Liveness:
    """One endpoint's lock, and its view of the other endpoints."""

    __slots__ = ("_address", "_checks", "_lock", "_next_check_ns", "directory", "role")

    def __init__(self, address: Address, role: str) -> None:
        """Lock the endpoint `role`.

        Raises:
            TransportError: there is no such channel (any more), or the endpoint is open or was open before.
        """
        self._lock = lock_endpoint(address, role)
        self.directory = channel_directory(address)
        self._address = address
        self.role = role
        self._checks: dict[str, int] = {}
        self._next_check_ns = 0

    def leave_note(self, text: str = "") -> None:
        """Note that this endpoint closes in good order.

        Raises:
            TransportError: the note cannot be left, and the peers will take this endpoint for dead.
        """
        if not self.is_current():
            return  # to tell those of a later channel would end it
        what = f"the {self.role} of channel {self.directory.name!r} cannot tell its peers that it closes"
        with as_transport_errors(what), suppress(FileNotFoundError):  # the channel is destroyed already
            write_private(note_path(self._address, self.role), text)

    def note_of(self, role: str) -> str | None:
        """Return the text that the endpoint noted when it closed; None if it has not closed.

        Raises:
            TransportError: that cannot be found out.
        """
        if not self.is_current():
            return None
        what = f"cannot find out whether the {role} of channel {self.directory.name!r} has closed"
        note = note_path(self._address, role)
        with as_transport_errors(what), suppress(FileNotFoundError):
            if stat.S_ISREG(note.lstat().st_mode):  # to look needs no descriptor, which may be short
                return note.read_text(errors="replace")
        return None

    def check_unused(self) -> None:
        """Raise EndOfStream if the writer has closed without a message, maybe before it could be found."""
        if self.note_of("writer") == "unused":
            raise EndOfStream(f"channel {self.directory.name!r} was closed without a message")

    def note_at_end(self, role: str) -> str | None:
        """Return what `note_of` does, of an endpoint whose connection has ended. Between hosts the note may still be on
        its way: this waits for it, or for the news that the endpoint died.
        """
        deadline = deadline_ns(_NEWS_S)
        while (note := self.note_of(role)) is None and self._address.channel.host and remaining_s(deadline):
            if was_released(self.directory, role):
                return self.note_of(role)  # which came before that
            select.select((), (), (), _NEWS_LOOK_S)
        return note

    def is_current(self) -> bool:
        """Return whether the channel is still the one that this endpoint was opened in."""
        return self._lock.is_current()

    def abandon(self) -> None:
        """Release the lock of an endpoint that could not be opened; it may be tried again."""
        self._lock.abandon()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        self._lock.release()

    def is_check_due(self) -> bool:
        """Return whether `CHECK_NS` have passed since it last returned True: looking at files takes time."""
        now = now_ns()
        if now < self._next_check_ns:
            return False
        self._next_check_ns = now + CHECK_NS
        return True

    def is_gone(self, role: str) -> bool:
        """Return whether the endpoint was open and is not any more: it closed, died, or the channel was destroyed.
        Call it when `is_check_due`; whether it left a note is for the caller to find out.

        Two checks in a row must find that, so that what a dead peer sent has time to arrive.
        """
        is_released = not self.is_current() or was_released(self.directory, role)
        self._checks[role] = checks = self._checks.get(role, 0) + 1 if is_released else 0
        return checks >= _CHECKS_TO_DEATH
