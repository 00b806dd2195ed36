"""The command as a user runs it: a process in a separate folder, with its output and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMMAND = ("-m", "ipcbench")

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

    def options(self, **changes: Any) -> dict[str, Any]:
        """Return how a process is started: as this one was; the package under test is found from any folder."""
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "200"}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return {"cwd": self.folder, "env": environment, "text": True, **streams, **changes}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `ipcbench` with these arguments to its end."""
        return self.python(*COMMAND, *arguments)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], timeout=100, check=False, **self.options())

    def start(self, *arguments: str, **changes: Any) -> subprocess.Popen[str]:
        """Start `ipcbench` and return at once; it is killed if it still runs at the end of the test."""
        return self.start_python(*COMMAND, *arguments, **changes)

    def start_python(self, *arguments: str, prefix: Sequence[str] = (), **changes: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen([*prefix, sys.executable, *arguments], **self.options(**changes))
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill every started process that still runs."""
        for process in self.started:
            with process:
                process.kill()


def interrupt(process: subprocess.Popen[str], by: int = signal.SIGINT) -> tuple[str, str]:
    """Send Ctrl-C as a terminal does, and return the rest of the command's output."""
    process.send_signal(by)
    return process.communicate(timeout=60)
