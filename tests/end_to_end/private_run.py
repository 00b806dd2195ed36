"""Runs in a temporary folder of their own, so that all their processes and all that they leave can be found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from ipcbench.processes.cleanup import RUN_SUFFIX, SHM_FOLDER, mapped_segments
from ipcbench.spec import NAME_PREFIX
from ipcbench.testing.agents.client import until
from tests.end_to_end.shell import ROOT

LIMIT_S, FADING_S, LOOK_S = 100, 60, 0.02


_SEMAPHORE = "sem.mp-"
"""How semaphores of multiprocessing begin, which no run has; other tests do."""


class PrivateRuns:
    """A folder in which the command runs, with another one for temporary files; a context manager."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.folder = folder
        self.temporary = Path(tempfile.mkdtemp())  # not below `folder`, whose path may be too long for sockets
        paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        self._environment = {**environment, "TMPDIR": str(self.temporary), "PYTHONPATH": paths}
        self._before = set(SHM_FOLDER.iterdir())
        self._tokens: set[str] = set()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._collect_tokens, daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._watch.join()
        shutil.rmtree(self.temporary)

    def _collect_tokens(self) -> None:
        """Collect the tokens of the runs in this folder as long as their directories exist: segments bear no other sign
        of whose they are.
        """
        while not self._closed.wait(LOOK_S):
            directories = self.temporary.glob(f"{NAME_PREFIX}*{RUN_SUFFIX}")
            self._tokens.update(path.name.removesuffix(RUN_SUFFIX) for path in directories)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start `ipcbench` with these arguments."""
        return subprocess.Popen(
            [sys.executable, "-m", "ipcbench", *arguments],
            cwd=self.folder,
            env={**self._environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `ipcbench` with these arguments to its end."""
        with self.start(*arguments, **variables) as process:
            try:
                stdout, stderr = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def processes(self) -> list[psutil.Process]:
        """Return the processes of this folder that live."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("TMPDIR") == str(self.temporary)
        except psutil.Error:
            return False

    def all_end(self) -> bool:
        """Wait until none of these processes lives; return whether that comes to pass."""
        return until(lambda: not self.processes(), LIMIT_S)

    def left(self) -> list[Path]:
        """Return what these processes have left. Others make segments of MPI meanwhile, in use or soon gone."""
        segments = (path for path in SHM_FOLDER.iterdir() if path not in self._before and self._may_be_ours(path.name))
        found = [*self.temporary.iterdir(), *segments]

        def remaining() -> list[Path]:
            used = mapped_segments("")
            return [path for path in found if path.exists() and not path.name.startswith(used)]

        until(lambda: not remaining(), FADING_S)
        return remaining()

    def _may_be_ours(self, segment: str) -> bool:
        return segment.startswith(tuple(self._tokens)) or not segment.startswith((NAME_PREFIX, _SEMAPHORE))
