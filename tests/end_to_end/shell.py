"""The command as a user runs it: a process in a separate folder, with its output and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "ipcbench")

TINY = (
    *("--readers", "1", "--sizes", "10", "--rounds", "1", "--window", "50ms", "--warmup", "10ms"),
    *("--mode", "paced,saturate", "--control", "no"),
)
"""Options that make any sweep of dicts as short as possible."""


@dataclass(frozen=True, slots=True)
class Shell:
    """A folder in which the command runs."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """Return this process's environment, so that the package under test is found from any folder."""
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "200"}

    def __call__(self, *arguments: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
        """Run `ipcbench` with these arguments to its end."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `ipcbench` and return at once; it is killed if it still runs at the end of the test."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill every started process that still runs."""
        for process in self.started:
            with process:
                process.kill()
