"""What the end-to-end tests share."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.shell import TINY, Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small finished run, for all that only read; a test that changes it copies it."""
    shell = Shell(tmp_path_factory.mktemp("finished"))
    done = shell("run", "small", "--backends", "shm,zmq", *TINY, "--out", "run")
    assert done.returncode == 0, done.stderr
    return shell.folder / "run"


@pytest.fixture
def interrupt() -> Callable[[subprocess.Popen[str]], tuple[str, str]]:
    """Send Ctrl-C as a terminal does, and return what the command still said."""

    def send(process: subprocess.Popen[str]) -> tuple[str, str]:
        process.send_signal(signal.SIGINT)
        return process.communicate(timeout=60)

    return send
