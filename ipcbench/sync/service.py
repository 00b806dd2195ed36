"""Services: a server that a channel needs, as a process of its own, which belongs to the channel's directory.

The server inherits a locked file of the directory, which says the number of its process group. The kernel releases the
lock with the last process of the group: so a service that is found running is never another, later process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event

from ipcbench.errors import TransportError
from ipcbench.sync.interrupts import no_fork
from ipcbench.sync.locks import is_locked
from ipcbench.util.clock import now_ns

SERVICE_SUFFIX = ".service"
"""Suffix of the files that are locked; the stem is the service's name."""

_START_S, _END_NS, _LOOK_S = 10.0, 10_000_000_000, 0.002
_AT_ONCE_S = 5.0
_OURS = "IPCBENCH_"
"""What the names of variables begin with that a server need not know; some are secrets of a run."""

_ROOM = b"\n" * 32
"""Room for the number of the group, written first: the shell would not say that the disk is full."""

LOG_SUFFIX = ".log"
_MOST_SAID_BYTES = 4096
_SCRIPT = f'echo $$; exec 9>&1 >"$0{LOG_SUFFIX}" 2>&1; "$@" &'
"""Say the number of the group, and then start the server, which has no parent to wait for it any more; what it says
goes into a file beside the locked one.
"""


def start_service(
    directory: Path, name: str, command: Sequence[str], is_ready: Callable[[], bool], within_s: float = _START_S
) -> int:
    """Start a server in a session of its own, without input and output, and wait until it serves.

    Args:
        directory: the channel's; call this within `new_directory`.
        name: of the service; a directory may have several.
        command: the program and its arguments. It stays in the foreground and keeps descriptor 9 open.
        is_ready: whether it serves.
        within_s: how long it may take to.

    Returns:
        The number of its process group, for `kill_group`, should the channel's creation fail.

    Raises:
        OSError: it cannot be started.
        TransportError: it has ended at once, or does not serve in time; it does not run any more.
    """
    path = directory / f"{name}{SERVICE_SUFFIX}"
    with no_fork():  # or a child of this process would hold the lock
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.pwrite(fd, _ROOM, 0)
            group = subprocess.run(
                ["/bin/sh", "-c", _SCRIPT, name, *command],
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=subprocess.DEVNULL,
                cwd=directory,
                env={key: value for key, value in os.environ.items() if not key.startswith(_OURS)},
                start_new_session=True,
                check=False,
            )
            said = os.pread(fd, len(_ROOM), 0).strip()
        finally:
            os.close(fd)
    if not said:
        raise TransportError(f"{command[0]} could not be started: the shell ended with {group.returncode}")
    _await_ready(path, command, is_ready, within_s)
    return int(said)


def _await_ready(path: Path, command: Sequence[str], is_ready: Callable[[], bool], within_s: float) -> None:
    begun_ns = now_ns()
    last_ns = begun_ns + round(1e9 * within_s)
    while not is_ready():
        if not is_locked(path):
            took_s = (now_ns() - begun_ns) / 1e9
            when = "at once" if took_s < _AT_ONCE_S else f"after {took_s:.0f} s"
            raise TransportError(f"{command[0]} ended {when}; {_last_words(path)}")
        if now_ns() > last_ns:
            end_services(path.parent)
            raise TransportError(f"{command[0]} does not serve within {within_s:.0f} s; {_last_words(path)}")
        Event().wait(_LOOK_S)


def _last_words(path: Path) -> str:
    """Return what the last line says that the server of a locked file has written."""
    lines: list[bytes] = []
    with suppress(OSError), path.with_suffix(LOG_SUFFIX).open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _MOST_SAID_BYTES))
        lines = log.read().split(b"\n")
    said = next(filter(None, map(bytes.strip, reversed(lines))), b"").decode(errors="replace")
    return f"its last words: {said}" if said else "it said nothing"


def kill_group(group: int) -> None:
    """Kill all processes of a group, if there are any."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def end_services(directory: Path) -> None:
    """Kill the services of a channel's directory, and wait until they have ended; if there are none, do nothing.

    Raises:
        OSError: one cannot be killed.
    """
    last_ns = now_ns() + _END_NS
    for path in directory.glob(f"*{SERVICE_SUFFIX}"):
        while is_locked(path):
            if group := _group_in(path):
                kill_group(group)
            if now_ns() > last_ns:
                raise TimeoutError(f"the service of {path} does not end")
            Event().wait(_LOOK_S)


def _group_in(path: Path) -> int:
    """Return the group that a locked file names; 0 if there is none yet, or another user may have written it."""
    with suppress(OSError, ValueError):
        if path.lstat().st_uid == os.geteuid() and (group := int(path.read_text())) > 1:
            return group
    return 0
