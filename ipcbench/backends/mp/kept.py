"""What the parent has made of each channel, until the processes of its ends have taken it. All of this runs there.

An end is handed over once and not kept: a pipe ends only when nobody has its other end any more.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.managers import SyncManager
from multiprocessing.process import current_process
from typing import Any

from ipcbench.backend import Address
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_directory, channel_file, channel_token, open_directory, require_socket_path
from ipcbench.sync.locks import reader_role
from ipcbench.sync.parent import close_in_children
from ipcbench.sync.service import SERVICE_SUFFIX

_CONTEXT = get_context("forkserver")
"""Whose semaphores have names, so that a process that runs already can open them; what they do is the same."""
_PR_SET_PDEATHSIG = 1

SOCKET, KEY, LOCK = "manager", "key", f"manager{SERVICE_SUFFIX}"
"""Files of a channel: where its manager listens, what a process has to know that connects, and what makes it a service:
the manager holds its lock as long as it lives, and it has the number of the manager's process group.
"""

_kept: dict[str, tuple[Address, dict[str, Any]]] = {}
_managers: dict[str, SyncManager] = {}


def semaphore_prefix(address: Address) -> str:
    """Return how the names of the channel's semaphores begin, as long as not all of its ends are open."""
    return f"{address.channel.name}.{channel_token(address)}-"


def batch_of(channel: ChannelSpec) -> int:
    """Return after how many messages a reader says how many it has."""
    return max(1, channel.depth // 4)


def _most_held(channel: ChannelSpec) -> int:
    """Return how many messages a queue may hold, with what ends the stream."""
    return channel.depth + batch_of(channel)


def make_queues(address: Address) -> None:
    """Make a Queue for each reader, with room for one more: what ends the stream."""
    names = current_process()._config  # type: ignore[attr-defined] # so that what a killed parent leaves can be found
    before, names["semprefix"] = names["semprefix"], f"/{semaphore_prefix(address)[:-1]}"
    try:
        queues = [_CONTEXT.Queue(_most_held(address.channel)) for _ in range(address.channel.readers)]
    finally:
        names["semprefix"] = before
    _keep(address, queues, queues)


def make_pipes(address: Address) -> None:
    """Make a Pipe for each reader."""
    receiving, sending = zip(*(_CONTEXT.Pipe(duplex=False) for _ in range(address.channel.readers)), strict=True)
    _keep(address, sending, receiving)


def make_manager(address: Address) -> None:
    """Start a manager, a process of its own, with a Queue for each reader."""
    require_socket_path(channel_file(address, SOCKET))
    key = os.urandom(32)
    channel_file(address, KEY).write_bytes(key)
    # this process has no threads, so that it may fork
    manager = SyncManager(str(channel_file(address, SOCKET)), key, ctx=get_context("fork"))
    manager.start(_end_with_parent, (str(channel_directory(address) / LOCK),))
    queues = [manager.Queue(_most_held(address.channel)) for _ in range(address.channel.readers)]
    _keep(address, queues, queues)
    _managers[address.location] = manager


def _end_with_parent(lock: str) -> None:
    """Have the manager, in a group of its own, hold a lock and die with this process, whose handlers it forgets."""
    os.setsid()
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, b"%d" % os.getpid())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _keep(address: Address, of_writer: Sequence[Any], of_readers: Sequence[Any]) -> None:
    drop_destroyed()
    close_in_children(*of_writer, *of_readers)
    ends = {reader_role(address.channel, index): end for index, end in enumerate(of_readers)}
    _kept[address.location] = address, {"writer": of_writer, **ends}


def take(address: Address, role: str) -> Any:
    """Return an end, and keep it no longer.

    Raises:
        TransportError: this process has not made it, or it was taken before.
    """
    _, ends = _kept.get(address.location, (address, {}))
    if role not in ends:
        channel = address.channel.name
        raise TransportError(f"the parent of this process has no {role} of channel {channel!r}: another made it")
    return ends.pop(role)


def drop_destroyed() -> None:
    """Drop what belongs to channels that are gone, and reap their managers."""
    for location, (address, _) in list(_kept.items()):
        try:
            open_directory(address)
        except TransportError:
            del _kept[location]
            if location in _managers:
                _managers.pop(location).shutdown()
