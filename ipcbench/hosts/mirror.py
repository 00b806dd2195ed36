"""A channel's folder on several hosts: what endpoints leave there on one host appears on the others.

Transports over TCP find their peers, and learn who has closed or died, by files and locks in the channel's folder. For
a channel between hosts each of them has such a folder, made by `join`, and its agent mirrors it: a file that appears
here is written there, and while an endpoint here holds its lock, the agents of the other hosts hold it in their
folders. A note that an endpoint closes always comes before the end of its lock, as on one host.
"""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipcbench.backend import Address
from ipcbench.errors import TransportError
from ipcbench.sync.directory import (
    SEPARATOR,
    as_transport_errors,
    channel_directory,
    make_joined,
    remove_directory,
    write_private,
)
from ipcbench.sync.locks import LOCK_SUFFIX, EndpointLock, lock_endpoint, lock_path, reader_roles, was_released
from ipcbench.sync.service import LOG_SUFFIX, SERVICE_SUFFIX
from ipcbench.sync.wait import Doorbell

_SOON_S, _LATER_S = 0.005, 0.05
"""How often a folder is looked at: while endpoints open, and later."""
_PASSING = (LOCK_SUFFIX, ".unfinished", SERVICE_SUFFIX, LOG_SUFFIX)
"""Suffixes of files that mean nothing on other hosts."""
_MOST_BYTES = 2**16

Push = Callable[[dict[str, Any]], None]


def contents(address: Address) -> dict[str, Any]:
    """Return what `join` needs of a channel that was just made here: its files, and the names of its bells."""
    folder = channel_directory(address)
    with as_transport_errors(f"cannot read {folder}"):
        return {"files": _files(folder), "bells": _bells(folder)}


def join(address: Address, files: dict[str, bytes], bells: list[str], host: str) -> Address:
    """Make the folder of a channel of another host here, and return the channel's address on this host.

    Args:
        address: what `create` returned there.
        files: name → content, as `contents` returned them there.
        bells: names of its bells.
        host: where other hosts reach this one.

    Raises:
        TransportError: it cannot be made.
    """
    _, token, *more = address.location.split(SEPARATOR)
    with as_transport_errors(f"cannot join channel {address.channel.name!r}"):
        folder = make_joined(address.channel.name, token)
        for name, content in files.items():
            write_private(folder / Path(name).name, content)
        for name in bells:
            Doorbell.make(folder / name)
    channel = replace(address.channel, host=host)
    return Address(address.backend, channel, SEPARATOR.join((str(folder), token, *more)))


class Mirror:
    """Mirrors the folders of channels, in a thread.

    Args:
        push: tells the other hosts of a channel what has happened here.
    """

    def __init__(self, push: Push) -> None:
        self._push = push
        self._folders: dict[str, _Folder] = {}
        self._guard = threading.Lock()
        self._changed = threading.Event()
        threading.Thread(target=self._run, name="mirror", daemon=True).start()

    def add(self, address: Address) -> None:
        """Mirror a channel from now on."""
        with self._guard:
            self._folders[address.channel.name] = _Folder(address)
        self._changed.set()

    def remove(self, name: str) -> None:
        """Mirror that channel no longer, and release what is held in its folder for other hosts."""
        with self._guard:
            folder = self._folders.pop(name, None)
            if folder is not None:
                folder.release()

    def hear(self, word: dict[str, Any]) -> None:
        """Take over what has happened on another host."""
        with self._guard, suppress(TransportError, OSError):  # the channel may be gone by now
            if (folder := self._folders.get(word["mirror"])) is not None:
                folder.take_over(word)

    def _run(self) -> None:
        while True:
            with self._guard:
                words = [word for folder in self._folders.values() for word in folder.news()]
                is_opening = any(folder.is_opening for folder in self._folders.values())
                has_any = bool(self._folders)
            for word in words:
                self._push(word)
            self._changed.wait((_SOON_S if is_opening else _LATER_S) if has_any else None)
            self._changed.clear()


class _Folder:
    """A channel's folder on this host."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.path = channel_directory(address)
        self._roles = ["writer", *reader_roles(address.channel)]
        self._known = {*_files(self.path)}
        self._here: dict[str, bool] = {}
        """Role → whether its endpoint, which was opened on this host, is still open."""
        self._held: dict[str, EndpointLock] = {}
        """Role → the lock that is held here for another host."""

    @property
    def is_opening(self) -> bool:
        """Whether endpoints are still awaited."""
        return len(self._here) + len(self._held) < len(self._roles)

    def news(self) -> list[dict[str, Any]]:
        """Return what has happened here since the last call, in its order."""
        try:
            locks = list(self._lock_news())  # first: whoever has released its lock has written its note before that
            files = {name: content for name, content in _files(self.path).items() if name not in self._known}
        except OSError:  # the folder is being removed
            return []
        self._known |= files.keys()
        name = self.address.channel.name
        return [{"mirror": name, "file": file, "content": content} for file, content in files.items()] + locks

    def _lock_news(self) -> list[dict[str, Any]]:
        news = []
        for role in self._roles:
            if role in self._held or self._here.get(role) is False:
                continue
            try:
                was_open = lock_path(self.path, role).stat().st_size > 0
            except FileNotFoundError:
                continue
            is_open = was_open and not was_released(self.path, role)
            if was_open and self._here.get(role) is not is_open:
                if role not in self._here:
                    news.append({"mirror": self.address.channel.name, "opened": role})
                self._here[role] = is_open
                if not is_open:
                    news.append({"mirror": self.address.channel.name, "ended": role})
        return news

    def take_over(self, word: dict[str, Any]) -> None:
        """Do here what has happened on another host."""
        if "file" in word:
            self._known.add(word["file"])
            write_private(self.path / Path(word["file"]).name, word["content"])
        elif "opened" in word:
            self._held[word["opened"]] = lock_endpoint(self.address, word["opened"])
        elif (lock := self._held.get(word["ended"])) is not None:
            lock.release()
        for name in _bells(self.path):
            bell = Doorbell(self.path / name)
            bell.ring()
            bell.close()

    def release(self) -> None:
        """Release what is held here."""
        for lock in self._held.values():
            lock.release()


def leave(address: Address) -> None:
    """Remove the folder that `join` made."""
    remove_directory(address)


def _files(folder: Path) -> dict[str, bytes]:
    """Return name → content of the files in a folder that mean something on other hosts."""
    found = {}
    for path in folder.iterdir():
        if not path.name.endswith(_PASSING) and stat.S_ISREG(path.lstat().st_mode):
            with suppress(FileNotFoundError):
                found[path.name] = path.read_bytes()[:_MOST_BYTES]
    return found


def _bells(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if stat.S_ISFIFO(path.lstat().st_mode)]
