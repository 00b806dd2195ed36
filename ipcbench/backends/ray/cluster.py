"""Which cluster a channel is in: one that RAY_ADDRESS names, or one that this user's channels share as their service.

A process can be connected to only one cluster at a time, so that each channel cannot have its own: a round trip is two
channels. The first `create` starts one, the last `destroy` ends it, and so does its own process (`head.py`) as soon as
all its channels are gone.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import threading
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ipcbench.backend import Address
from ipcbench.backends.ray import head
from ipcbench.errors import PeerLost, TransportError
from ipcbench.spec import NAME_PREFIX
from ipcbench.sync.directory import channel_directory, channel_file, require_ours, require_socket_path
from ipcbench.sync.locks import is_locked
from ipcbench.sync.server import Server
from ipcbench.sync.service import SERVICE_SUFFIX, end_services, start_service

SERVER = Server("ray", (), variable="RAY_ADDRESS")
"""By Ray's own variable: it names a cluster that is there already (host:port)."""

_LONGEST_SOCKET = f"{head.RAYS}/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_START_S = 120.0
_NAMED = "named "
"""In the channel's file before the address of a cluster that was there already."""
_FIND = "auto"
"""In place of an address: Ray looks for a cluster on this host."""
_HOST_AND_PORT = re.compile(r"\[?(?P<host>[^/\]]+)\]?:(?P<port>\d{1,5})")
_CONNECT_S, _MOST_PORT = 5.0, 2**16 - 1

_lock = threading.RLock()
_users: list[Cluster] = []
"""Those of the endpoints of this process, if this module has connected it."""


def require_listening(address: str) -> None:
    """Raise OSError unless somebody listens at a cluster's address; Ray would wait for minutes."""
    if address == _FIND:
        return
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or int(match["port"]) > _MOST_PORT:
        raise OSError(f"{address!r} is no HOST:PORT")
    socket.create_connection((match["host"], int(match["port"])), _CONNECT_S).close()


def _folder_of(address: Address) -> Path:
    """Return the folder of this user's cluster, which lies beside that of the channel."""
    return channel_directory(address).with_name(f"{NAME_PREFIX}cluster-{os.geteuid()}")


def add(address: Address, undo: ExitStack) -> None:
    """Say in the channel's folder which cluster is named, and start one if none is.

    Raises:
        OSError: it cannot be started; or TransportError.
    """
    file = channel_file(address, head.CHANNEL)
    if named := SERVER.named_url:
        require_listening(named)
        file.write_text(f"{_NAMED}{named}")
        return
    file.touch()
    folder = _folder_of(address)
    require_socket_path(folder / _LONGEST_SOCKET)
    with ExitStack() as held:
        _hold(folder, held)
        undo.callback(remove, address)
        (folder / file.name).symlink_to(file)
        service, place = folder / f"{SERVER.service}{SERVICE_SUFFIX}", folder / head.ADDRESS
        if not is_locked(service):
            shutil.rmtree(folder / head.RAYS, ignore_errors=True)  # of a cluster that was killed
            for left in (service, place):
                left.unlink(missing_ok=True)
            command = [sys.executable, "-P", head.__file__, str(folder)]
            start_service(folder, SERVER.service, command, place.is_symlink, within_s=_START_S)
        file.write_text(os.readlink(place))


def _hold(folder: Path, held: ExitStack) -> None:
    """Make the cluster's folder if there is none, and hold its lock."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            require_ours(folder)
        except TransportError as error:
            what = f"{folder}, where this user's cluster of Ray would be, is not a folder of this user alone"
            raise TransportError(f"{what}; remove it, or set TMPDIR to another folder") from error
        with suppress(FileNotFoundError):  # its last channel may be destroyed meanwhile
            held.enter_context(head.locked(folder))
            return


def remove(address: Address) -> None:
    """End the channel's cluster, if it is one of ours and has no other channel; a second call does nothing."""
    file, folder = channel_file(address, head.CHANNEL), _folder_of(address)
    with suppress(FileNotFoundError):
        if not file.read_text().startswith(_NAMED):
            (folder / file.name).unlink(missing_ok=True)
            head.end_unused(folder, partial(end_services, folder))


def _stay_here() -> None:
    """Have Ray, when it is imported, do what a cluster on the loopback interface needs.

    Raises:
        TransportError: it was imported before, without that.
    """
    if "ray" in sys.modules and not head.ONLY_HERE.items() <= os.environ.items():
        raise TransportError(
            f"ray was imported before the channel was opened, so it cannot be in a cluster of its own: start one (ray "
            f"start --head) and set {SERVER.variable}, or open the channel first"
        )
    os.environ.update(head.ONLY_HERE)


class Cluster:
    """A channel's cluster, for one endpoint.

    Attributes:
        address: host and port.
        folder: its folder; None if it was there already.
    """

    def __init__(self, address: Address) -> None:
        """Find it.

        Raises:
            OSError: there is no such channel; or PeerLost: its cluster has died.
        """
        where = channel_file(address, head.CHANNEL).read_text()
        self._name, self.address = address.channel.name, where.removeprefix(_NAMED)
        self.folder = None if where.startswith(_NAMED) else _folder_of(address)
        self._life: Future[None] = Future()
        self.check()

    def is_lost(self) -> bool:
        """Return whether the cluster has died, if it is one of ours; another may be in its place by now."""
        if self.folder is None:
            return False
        place = self.folder / head.ADDRESS
        is_there = is_locked(self.folder / f"{SERVER.service}{SERVICE_SUFFIX}") and place.is_symlink()
        return not is_there or os.readlink(place) != self.address

    def watch(self, actor: Any) -> None:
        """Have `check` look at the actor, too, by a call that returns only if it dies."""
        self._life = actor.live.remote().future()

    def check(self) -> None:
        """Raise PeerLost if the cluster or the actor has died."""
        if self.is_lost():
            raise PeerLost(f"the cluster of channel {self._name!r} has died")
        if self._life.done():
            raise PeerLost(f"the actor of channel {self._name!r} has died")

    def connect(self) -> Any:
        """Connect this process to the cluster, until `disconnect`, and return ray.

        Raises:
            OSError: it cannot be reached; or TransportError: this process is connected to another one.
        """
        with _lock:
            if self.folder:
                _stay_here()
            import ray  # which takes seconds

            if not ray.is_initialized():
                require_listening(self.address)
                try:
                    ray.init(address=self.address, **head.QUIETLY)
                except (ValueError, RuntimeError, OSError) as error:
                    raise OSError(f"no connection to the cluster at {self.address}: {error}") from error
                _users.append(self)
            elif self.folder and (connected := ray.get_runtime_context().gcs_address) != self.address:
                raise TransportError(
                    f"this process is connected to another cluster of Ray ({connected}), and can be to only one"
                )
            elif _users:
                _users.append(self)
        return ray

    def disconnect(self) -> None:
        """Disconnect this process when no endpoint needs it any more; if the program had connected it, do nothing."""
        with _lock:
            if self in _users:
                _users.remove(self)
                if not _users:
                    import ray

                    ray.shutdown()
