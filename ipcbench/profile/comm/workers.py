"""Processes that are joined by a transport, for as long as a block lasts, and what they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from ipcbench.backend import Launcher
from ipcbench.harness.group import Group
from ipcbench.harness.worker import Worker
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.profile.comm.mesh import PIECE_BYTES, create_mesh, destroy_mesh
from ipcbench.registry import get_backend

ANSWER_S: Final = 600.0
"""Longest wait for an answer."""


@contextmanager
def workers(
    run_dir: RunDir,
    switchboard: Switchboard,
    world: int,
    transport: str = "",
    largest_bytes: int = PIECE_BYTES,
    role: str = "rank",
) -> Iterator[tuple[Group, dict[str, Any]]]:
    """Start processes, and yield them with what they need to join: `addresses` of a mesh, and the `place` of a file
    where torch's process groups meet. They end with the block; after an error they are killed.

    Args:
        run_dir: which others may use, too, as the next.
        switchboard: where they connect to.
        world: how many.
        transport: a backend between processes; without one there is no mesh.
        largest_bytes: of a message.
        role: what errors call them.

    Raises:
        IpcbenchError: the transport cannot be used, or a process does not start.
    """
    with ExitStack() as undo:
        launcher: Launcher = "spawn"
        meeting: dict[str, Any] = {"addresses": [], "place": f"file://{run_dir.path}/meeting"}
        if transport:
            launcher = get_backend(transport).capabilities.launcher
            meeting["addresses"] = create_mesh(transport, world, largest_bytes, run_dir.channel_name)
            undo.callback(destroy_mesh, meeting["addresses"])
        group = Group(launcher, world - 1, switchboard, tuple(f"{role} {index}" for index in range(world)))
        undo.callback(group.kill)
        yield group.connect(), meeting
        group.end()


def question(function: Callable[[Worker, dict[str, Any]], dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return what has a worker call a function of a module."""
    return {"do": "call", "function": f"{function.__module__}:{function.__name__}", **more}
