"""Which cluster a channel is in: one that RAY_ADDRESS names, or one that this user's channels share as their service.

A process can be connected to only one cluster at a time, so that each channel cannot have its own: a round trip is two
channels. The first `create` starts one, the last `destroy` ends it, and so does its own process (`head.py`) as soon as
all its channels are gone.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipcbench.backend import Address
from ipcbench.backends.ray import head
from ipcbench.errors import TransportError
from ipcbench.spec import NAME_PREFIX
from ipcbench.sync.directory import channel_file, channel_token, require_ours, require_socket_path
from ipcbench.sync.locks import is_locked
from ipcbench.sync.service import SERVICE_SUFFIX, end_services, start_service
from ipcbench.util.files import read_limited, temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Ray's own variable: names a cluster that is there already (host:port)."""

_SERVICE, _FILE = "ray", "ray"
_LONGEST_SOCKET = f"{head.RAYS}/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_MOST_FILE_BYTES = 4096
_START_S = 60.0
_FIND = "auto"
"""In place of an address: Ray looks for a cluster on this host."""
_HOST_AND_PORT = re.compile(r"\[?(?P<host>[^/\]]+)\]?:(?P<port>\d{1,5})")
_CONNECT_S, _MOST_PORT = 5.0, 2**16 - 1
_REMOVALS, _LOOK_S = 50, 0.02

_lock = threading.RLock()
_users: list[object] = []
"""One of each endpoint of this process, if this module has connected it."""
_is_only_here = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a channel's cluster is."""

    address: str
    """Host and port."""
    folder: str
    """The cluster's; empty if it was there already."""

    def is_lost(self) -> bool:
        """Return whether the cluster has died, if it is one of ours."""
        return bool(self.folder) and not is_locked(Path(self.folder) / f"{_SERVICE}{SERVICE_SUFFIX}")


def place_of(address: Address) -> Place:
    """Return where the channel's cluster is.

    Raises:
        OSError: there is no such channel.
    """
    try:
        return Place(**json.loads(read_limited(channel_file(address, _FILE), _MOST_FILE_BYTES)))
    except (ValueError, TypeError) as error:
        raise OSError(f"{channel_file(address, _FILE)} is damaged") from error


def require_listening(address: str) -> None:
    """Raise OSError unless somebody listens at a cluster's address; Ray would wait for minutes."""
    if address == _FIND:
        return
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or int(match["port"]) > _MOST_PORT:
        raise OSError(f"{address!r} is no HOST:PORT")
    with socket.create_connection((match["host"], int(match["port"])), _CONNECT_S):
        pass


def add(address: Address, undo: ExitStack) -> None:
    """Say in the channel's folder where its cluster is, and start one if need be.

    Raises:
        OSError: it cannot be started; or TransportError.
    """
    file = channel_file(address, _FILE)
    there = os.environ.get(ADDRESS_VARIABLE)
    if there:
        require_listening(there)
        file.write_text(json.dumps({"address": there, "folder": ""}))
        return
    folder = temporary_folder() / f"{NAME_PREFIX}cluster-{os.geteuid()}"
    require_socket_path(folder / _LONGEST_SOCKET)
    with _own_folder(folder):
        if not is_locked(folder / f"{_SERVICE}{SERVICE_SUFFIX}"):
            for path in folder.iterdir():  # of a cluster that was killed
                if path.name != head.CHANNELS:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        file.write_text(json.dumps({"address": "", "folder": str(folder)}))
        (folder / head.CHANNELS / channel_token(address)).symlink_to(file)
        undo.callback(remove, address)
        if not is_locked(folder / f"{_SERVICE}{SERVICE_SUFFIX}"):
            command = [sys.executable, "-P", head.__file__, str(folder)]
            start_service(folder, _SERVICE, command, (folder / head.ADDRESS).exists, within_s=_START_S)
    file.write_text(json.dumps({"address": (folder / head.ADDRESS).read_text(), "folder": str(folder)}))


@contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    """Make the cluster's folder if there is none, and hold its lock."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        require_ours(folder)
        with suppress(FileNotFoundError), head.locked(folder) as there:
            if there:
                (folder / head.CHANNELS).mkdir(exist_ok=True)
                yield
                return


def remove(address: Address) -> None:
    """End the channel's cluster, if it is one of ours and has no other channel; a second call does nothing."""
    with suppress(FileNotFoundError):
        folder = place_of(address).folder
        if not folder:
            return
        with head.locked(Path(folder)) as there:
            if there:
                (Path(folder) / head.CHANNELS / channel_token(address)).unlink(missing_ok=True)
                if not head.is_used(Path(folder)):
                    end_services(Path(folder))
                    _remove_folder(Path(folder))


def _remove_folder(folder: Path) -> None:
    for left in reversed(range(_REMOVALS)):
        shutil.rmtree(folder, ignore_errors=left > 0)  # a process that is being killed may write its last lines
        if not folder.exists():
            return
        threading.Event().wait(_LOOK_S)


def _library(*, only_here: bool) -> Any:
    """Return ray, which takes seconds to import.

    Raises:
        TransportError: it was imported before, without what a cluster on the loopback interface needs.
    """
    global _is_only_here  # noqa: PLW0603 - the process has one
    if "ray" in sys.modules and only_here and not _is_only_here and not head.ONLY_HERE.items() <= os.environ.items():
        raise TransportError(
            f"ray was imported before the channel was opened, so it cannot be in a cluster of its own: start one (ray "
            f"start --head) and set {ADDRESS_VARIABLE}, or open the channel first"
        )
    if only_here:
        os.environ.update(head.ONLY_HERE)
    import ray

    _is_only_here = _is_only_here or only_here
    return ray


def connect(address: Address, user: object) -> tuple[Any, Place]:
    """Connect this process to the channel's cluster, until `disconnect`, and return ray.

    Raises:
        OSError: there is no such cluster; or TransportError: this process is connected to another one.
    """
    place = place_of(address)
    if place.is_lost():
        raise ConnectionRefusedError("its cluster has died")
    with _lock:
        ray = _library(only_here=bool(place.folder))
        if not ray.is_initialized():
            require_listening(place.address)
            try:
                ray.init(
                    address=place.address,
                    namespace=head.NAMESPACE,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                )
            except (ValueError, RuntimeError, OSError) as error:
                raise OSError(f"no connection to the cluster at {place.address}: {error}") from error
            _users.append(user)
        elif _users:
            _users.append(user)
        connected = ray.get_runtime_context().gcs_address
        if place.folder and connected != place.address:
            disconnect(user)
            raise TransportError(
                f"this process is connected to another cluster of Ray ({connected}), and can be to only one"
            )
    return ray, place


def disconnect(user: object) -> None:
    """Disconnect this process when no endpoint needs it any more; if the program had connected it, do nothing."""
    with _lock:
        if user in _users:
            _users.remove(user)
            if not _users:
                import ray

                ray.shutdown()
