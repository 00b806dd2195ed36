"""The process of a cluster that is started for channels, and lives as long as one of them. It is run by its path, and
needs of this package nothing else.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS, CHANNELS, IN_USE = "address", "channels", "cluster.endpoint"
"""In the cluster's folder: where it listens; a link to a file of each channel; and a file that is locked as those of
endpoints are, so that `ipcbench clean` leaves the folder alone.
"""
RAYS = "r"
"""Folder in it which Ray opens to all users of this host; nobody else can come there."""
NAMESPACE, POST = "ipcbench", "post"
"""Where Ray finds actors, and the name of the one for all channels of such a cluster."""
STORE_BYTES = 2**29
"""Size of the object store, of which the system takes only what is used."""
_CPUS = 2
_CALLS = 10_000
"""How many calls of an actor may wait for something at a time."""
_LOOK_S = 0.5

ONLY_HERE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
"""Has Ray take the loopback interface, as it does on the systems which that name says, and ask whoever connects for the
token that it keeps for each user (`~/.ray/auth_token`). Ray reads both when it is imported.
"""
_QUIET = {
    **ONLY_HERE,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_process_group_cleanup_enabled": "0",  # or workers would be in process groups of their own
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}


class Post:
    """An actor: what readers have not taken yet. One for all channels spares each the start of a process."""

    def __init__(self) -> None:
        self._boxes: defaultdict[tuple[str, int], tuple[dict[int, Any], asyncio.Event]]
        self._boxes = defaultdict(lambda: ({}, asyncio.Event()))

    async def push(self, channel: str, number: int, message: Any, readers: list[int]) -> None:
        """Keep a message for those readers of the channel with that token."""
        for index in readers:
            box, news = self._boxes[channel, index]
            box[number] = message
            news.set()

    async def take(self, channel: str, index: int, number: int, most: int) -> list[Any]:
        """Wait for a message and return it, and those that follow."""
        box, news = self._boxes[channel, index]
        while number not in box:
            news.clear()
            await news.wait()
        taken: list[Any] = []
        while number + len(taken) in box and len(taken) < most:
            taken.append(box.pop(number + len(taken)))
        return taken

    async def forget(self, channel: str, index: int) -> None:
        """Drop what was kept for a reader that has closed."""
        self._boxes.pop((channel, index), None)

    async def live(self) -> None:
        """Never return."""
        await asyncio.Event().wait()


def post(ray: Any, name: str) -> Any:
    """Return the actor of that name, which is made, and lives as long as this process, if there is none yet."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not find this package
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_concurrency": _CALLS, "get_if_exists": True}
    return ray.remote(Post).options(**options).remote()


def is_used(folder: Path) -> bool:
    """Return whether one of the cluster's channels is still there."""
    return any(link.exists() for link in (folder / CHANNELS).glob("*"))


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of the cluster's folder while channels are added or taken away; yields whether it is still there.

    Raises:
        OSError: there is no such folder.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield folder.is_dir() and os.path.samestat(os.fstat(fd), folder.lstat())
    finally:
        os.close(fd)


def main(folder: Path) -> None:
    """Start a cluster, and end it, with its folder, when it has no channels any more, or when a process of it dies."""
    os.environ.update(_QUIET)
    import psutil
    import ray

    in_use = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(in_use, fcntl.LOCK_EX)
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        num_cpus=_CPUS,
        num_gpus=0,
        object_store_memory=STORE_BYTES,
        _temp_dir=str(folder / RAYS),
    )
    actor = post(ray, POST)  # it would end without this reference
    ray.get(actor.__ray_ready__.remote())
    servers = psutil.Process().children()
    new = folder / f"{ADDRESS}.new"
    new.write_text(ray.get_runtime_context().gcs_address)
    new.rename(folder / ADDRESS)
    while all(server.is_running() and server.status() != psutil.STATUS_ZOMBIE for server in servers):
        Event().wait(_LOOK_S)
        if not is_used(folder):
            with locked(folder) as there:
                if there and not is_used(folder):
                    ray.shutdown()  # or its processes would write to the folder
                    while folder.exists():  # its agents may live a little longer
                        shutil.rmtree(folder, ignore_errors=True)
                    break
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
