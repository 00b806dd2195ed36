"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ipcbench.cli import main
from ipcbench.spec import NAME_PREFIX
from tests.end_to_end.shell import TINY, Shell

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.end()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run for tests that only read; a test that changes it copies it first."""
    shell = Shell(tmp_path_factory.mktemp("finished"))
    done = shell("run", "small", "--backends", "shm,zmq", *TINY, "--tail", "yes", "--out", "run")
    assert done.returncode == 0, done.stderr
    return shell.folder / "run"


@pytest.fixture
def refused(
    shell: Shell, process_state: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a command line in this process, require a refusal in one line that leaves nothing, and return that line."""
    monkeypatch.chdir(shell.folder)

    def run(*arguments: str) -> str:
        before = sorted(shell.folder.rglob("*"))
        assert main(list(arguments)) == 2, arguments
        said = capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.splitlines()
        assert line.startswith("ipcbench: error: ")
        assert sorted(shell.folder.rglob("*")) == before, "bad input must measure and write nothing"
        return line

    return run


def missing(what: str) -> None:
    (pytest.fail if os.environ.get("IPCBENCH_EXPECT") == "all" else pytest.skip)(what)


@pytest.fixture
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        missing("there is no Chromium: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("there is no playwright: pip install playwright")
    # A short folder name: the browser makes a socket there, whose path must be shorter than 108 bytes.
    with sync_playwright() as play, TemporaryDirectory(prefix=f"{NAME_PREFIX}browser-{os.getpid()}-") as folder:
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        environment = {**os.environ, "TMPDIR": folder}
        opened = play.chromium.launch(executable_path=program, args=options, env=environment, timeout=100_000)
        yield opened
        opened.close()
