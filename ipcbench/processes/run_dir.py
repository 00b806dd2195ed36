"""The directory of a run on this host, its lock, and the janitor that cleans up after it."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from ipcbench.errors import ConfigError
from ipcbench.processes import janitor
from ipcbench.processes.cleanup import RUN_LOCK, RUN_SUFFIX, remove
from ipcbench.processes.launch import own_environment
from ipcbench.spec import NAME_PREFIX
from ipcbench.util.files import as_store_errors, temporary_folder

_JANITOR_S = 10.0
_FOLDER_BYTES = 76
"""A socket's path has at most 103 bytes everywhere, and that of the control channel ends like
`/ipcb-0123abcd-run/control`."""


def require_room_for_sockets() -> None:
    """Refuse a temporary folder that the user named but that cannot be used, and one whose path leaves too little of a
    socket's for the name of the control channel.

    Raises:
        ConfigError: so it is.
    """
    folder, named = temporary_folder(), os.environ.get("TMPDIR")
    if named and folder != Path(named).absolute():
        raise ConfigError("TMPDIR", named, "a folder in which files can be made; or unset it")
    if len(os.fsencode(folder)) > _FOLDER_BYTES:
        raise ConfigError(
            "TMPDIR", str(folder), f"a folder whose path has at most {_FOLDER_BYTES} bytes, for sockets in it"
        )


def _new_token() -> str:
    return f"{NAME_PREFIX}{secrets.token_hex(4)}"


class RunDir:
    """A run's private directory and its token; a context manager that leaves nothing behind.

    Args:
        token: the run's if it has one on another host; by default, a new one.
        is_elsewhere: whether only agents make its channels. One of them may be on this host, with a folder of its own.

    Attributes:
        token: what every name of this run begins with, `ipcb-` and eight random hexadecimal digits.
        channels_token: what the names of its channels begin with, the token if they are made here.
        path: the directory.
        probe_count: how far the placement probe's counter has got.
    """

    def __init__(self, token: str = "", *, is_elsewhere: bool = False) -> None:
        self.token = token or _new_token()
        self.channels_token = _new_token() if is_elsewhere else self.token
        self.path = temporary_folder() / f"{self.token}{RUN_SUFFIX}"
        self.probe_count = 0
        self._channels = 0

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(remove, self.token)
            self.path.mkdir(mode=0o700)
            self._lock = os.open(self.path / RUN_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, self._lock)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._janitor = subprocess.Popen(
                [sys.executable, "-m", "ipcbench.processes.janitor", self.token, str(time.time())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=own_environment(),
                start_new_session=True,
            )
            undo.pop_all()
        return self

    def keep(self, name: str, content: bytes) -> Path:
        """Write a file for the processes of the run, and return its path.

        Raises:
            StoreError: the system refuses.
        """
        path = self.path / name
        with as_store_errors(path):
            path.write_bytes(content)
        return path

    def channel_name(self) -> str:
        """Return a new name for a channel of this run."""
        self._channels += 1
        return f"{self.channels_token}-{self._channels}"

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        os.close(self._lock)
        order = b"" if kind else janitor.ENDED  # whoever is interrupted may not know of the processes it just started
        try:  # the janitor cleans up, whether the run ends by itself or is killed
            self._janitor.communicate(order, timeout=_JANITOR_S)
        except subprocess.TimeoutExpired:
            self._janitor.kill()
            self._janitor.wait()
        remove(self.token)
