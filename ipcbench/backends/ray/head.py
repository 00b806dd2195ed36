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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

ADDRESS, CHANNEL, IN_USE = "address", "channel", "cluster.endpoint"
"""In the cluster's folder: a link that leads nowhere, but whose target says where the cluster listens; what the names
begin with of links to files of its channels, which have the same names; and a file that is locked as those of endpoints
are, so that `ipcbench clean` leaves the folder alone.
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
_LOOK_S, _REMOVE_S = 0.1, 10.0

ONLY_HERE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
"""Has Ray take the loopback interface, as it does on the systems which that name says, and ask whoever connects for the
token that it keeps for each user (`~/.ray/auth_token`). Ray reads both when it is imported.
"""
_SETTINGS = {
    **ONLY_HERE,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_process_group_cleanup_enabled": "0",  # or workers would be in process groups of their own
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
QUIETLY: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.CRITICAL}
"""How a process connects to a cluster."""


class Post:
    """An actor: what readers have not taken yet. One for all channels spares each the start of a process."""

    def __init__(self) -> None:
        self._boxes = defaultdict[tuple[str, int], tuple[dict[int, Any], asyncio.Event]](lambda: ({}, asyncio.Event()))

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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the cluster's folder, while channels are added or it is ended.

    Raises:
        OSError: there is no such folder.
    """
    while True:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(fd), folder.lstat()):  # or it was made anew meanwhile
                yield
                return
        finally:
            os.close(fd)


def end_unused(folder: Path, end: Callable[[], object]) -> bool:
    """If the cluster has no channels any more, end it by `end` and remove its folder; return whether that was so.

    Raises:
        OSError: there is no such folder, or it cannot be removed.
    """
    with locked(folder):
        is_used = any(link.exists() for link in folder.glob(f"{CHANNEL}-*"))
        if not is_used:
            end()
            last_s = monotonic() + _REMOVE_S
            while folder.exists():  # processes that are ending may write their last lines
                shutil.rmtree(folder, ignore_errors=monotonic() < last_s)
    return not is_used


def main(folder: Path) -> None:
    """Start a cluster, and end it, with its folder, when it has no channels any more, or when a process of it dies."""
    os.environ.update(_SETTINGS)
    import psutil
    import ray

    in_use = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(in_use, fcntl.LOCK_EX)
    options = {"include_dashboard": False, "num_cpus": _CPUS, "num_gpus": 0, **QUIETLY}
    for errors in (Exception,), ():  # once more: Ray gives a node half a minute to start, and a slow disk takes longer
        with suppress(*errors):
            ray.init("local", object_store_memory=STORE_BYTES, _temp_dir=str(folder / RAYS), **options)
            break
        ray.shutdown()
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    actor = post(ray, POST)  # it would end without this reference
    ray.get(actor.__ray_ready__.remote())
    servers = psutil.Process().children()
    (folder / ADDRESS).symlink_to(ray.get_runtime_context().gcs_address)
    while not psutil.wait_procs(servers, _LOOK_S)[0] and not end_unused(folder, ray.shutdown):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
