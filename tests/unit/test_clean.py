"""Clean-up: what is dead goes, what lives stays, and what cannot be known yet stays for a while."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ipcbench.processes import cleanup
from ipcbench.processes.cleanup import GRACE_S, RUN_LOCK, RUN_SUFFIX, clean, survey
from ipcbench.processes.run_dir import RunDir
from ipcbench.sync.locks import EndpointLock


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A temporary folder and a folder of segments of our own: no test looks at the host's."""
    temporary, shared = tmp_path / "tmp", tmp_path / "shm"
    temporary.mkdir()
    shared.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(cleanup, "SHM_FOLDER", shared)
    return temporary, shared


def age(path: Path) -> None:
    """Make an entry old enough to be judged by its locks alone."""
    past_s = path.stat().st_mtime - 2 * GRACE_S
    os.utime(path, (past_s, past_s))


def make_run(temporary: Path, token: str) -> Path:
    folder = temporary / f"{token}{RUN_SUFFIX}"
    folder.mkdir()
    (folder / RUN_LOCK).touch()
    return folder


def reasons() -> dict[str, str]:
    return {resource.path.name: resource.kept_because for resource in survey()}


def test_a_run_of_the_harness_is_known_to_live(host: tuple[Path, Path]) -> None:
    with RunDir() as run_dir:
        assert reasons() == {run_dir.token + RUN_SUFFIX: "its run is alive"}
    assert reasons() == {}


def test_nothing_to_find(host: tuple[Path, Path]) -> None:
    (host[0] / "other").mkdir()
    assert survey() == ()


def test_a_dead_run_goes_whole_whatever_its_age(host: tuple[Path, Path]) -> None:
    temporary, shared = host
    make_run(temporary, "ipcb-a")
    (temporary / "ipcb-a-1").mkdir(mode=0o700)
    (shared / "ipcb-a-1").write_bytes(bytes(1000))
    resources = survey()
    assert [resource.path.name for resource in resources] == ["ipcb-a-1", "ipcb-a-1", "ipcb-a-run"]
    assert [resource.kept_because for resource in resources] == ["", "", ""]
    assert sum(resource.size_bytes for resource in resources) == 1000
    assert list(temporary.iterdir()) != []  # surveying removes nothing
    assert clean(resources) == resources
    assert [*temporary.iterdir(), *shared.iterdir()] == []
    assert clean(resources) == resources  # gone already: fine


def test_what_goes_while_it_is_looked_at_is_left_out(host: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    gone = host[0] / "ipcb-gone"
    monkeypatch.setattr("ipcbench.processes.cleanup.find", lambda _: [gone])
    assert survey() == ()


def test_a_living_run_stays_whole(host: tuple[Path, Path]) -> None:
    temporary, shared = host
    folder = make_run(temporary, "ipcb-a")
    (shared / "ipcb-a-1").touch()
    age(shared / "ipcb-a-1")
    with (folder / RUN_LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert reasons() == {"ipcb-a-run": "its run is alive", "ipcb-a-1": "its run is alive"}
        clean(survey())
        assert folder.is_dir()
        assert (shared / "ipcb-a-1").exists()
    assert set(reasons().values()) == {""}


def test_an_open_channel_stays_and_so_does_its_run(host: tuple[Path, Path]) -> None:
    temporary, shared = host
    make_run(temporary, "ipcb-a")
    for name in ("ipcb-a-1", "ipcb-a-2"):
        (temporary / name).mkdir(mode=0o700)
        (shared / name).touch()
    lock = EndpointLock(temporary / "ipcb-a-1", "reader-0")
    open_words = "a process has it open"
    assert reasons() == {
        "ipcb-a-run": "a process has a channel of this run open",
        "ipcb-a-1": open_words,
        "ipcb-a-2": "",
    }
    lock.release()
    assert set(reasons().values()) == {""}


def test_a_channel_that_was_opened_and_left_goes_at_once(host: tuple[Path, Path]) -> None:
    (host[0] / "ipcb-lone").mkdir(mode=0o700)
    EndpointLock(host[0] / "ipcb-lone", "writer").release()
    assert reasons() == {"ipcb-lone": ""}


def test_a_channel_never_opened_has_a_while(host: tuple[Path, Path]) -> None:
    temporary, shared = host
    (temporary / "ipcb-new").mkdir()
    (shared / "ipcb-new").touch()
    assert all("may be about to be opened" in reason for reason in reasons().values())
    age(temporary / "ipcb-new")
    age(shared / "ipcb-new")
    assert reasons() == {"ipcb-new": ""}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what a process has mapped")
def test_a_segment_that_is_mapped_stays_though_its_locks_are_elsewhere(host: tuple[Path, Path]) -> None:
    segment = host[1] / "ipcb-far"
    segment.write_bytes(bytes(4096))
    age(segment)
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert reasons() == {"ipcb-far": "a process has its segment mapped"}
        (host[0] / "ipcb-far").mkdir()
        age(host[0] / "ipcb-far")
        assert [resource.kept_because for resource in survey()] == ["a process has its segment mapped"] * 2
    assert reasons() == {"ipcb-far": ""}


def test_a_link_is_removed_and_not_followed(host: tuple[Path, Path], tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    make_run(host[0], "ipcb-a")
    (host[0] / "ipcb-a-1").symlink_to(precious)
    clean(survey())
    assert list(host[0].iterdir()) == []
    assert (precious / "file").exists()


def test_what_belongs_to_another_user_stays(host: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(host[0], "ipcb-a")
    monkeypatch.setattr(cleanup.os, "geteuid", lambda: os.getuid() + 1)
    assert reasons() == {"ipcb-a-run": "it belongs to another user"}


def test_what_cannot_be_removed_is_said(host: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(host[0], "ipcb-a")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(cleanup.shutil, "rmtree", refuse)
    assert [resource.kept_because for resource in clean(survey())] == ["cannot be removed: Permission denied"]


def test_a_program_that_was_killed_does_not_run_although_nobody_has_waited_for_it(tmp_path: Path) -> None:
    program = tmp_path / f"proxy{os.getpid()}"
    program.symlink_to(shutil.which("sleep"))
    with subprocess.Popen([program, "60"]) as process:
        while psutil.Process(process.pid).name() != program.name:  # it has not begun yet
            pass
        assert cleanup._runs(program.name)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not cleanup._runs(program.name)


def test_what_has_started_this_process_is_not_what_it_has_started(tmp_path: Path) -> None:
    """Where Hydra launches the agents, each descends from a proxy, and left the files of those that ran its ranks."""
    program = tmp_path / f"proxy{os.getpid()}"
    program.symlink_to(shutil.which("sh"))
    look = f"from ipcbench.processes import cleanup; print(cleanup._runs({program.name!r}))"
    command = f'"{sys.executable}" -c "{look}"; true'
    done = subprocess.run([program, "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False\n", done.stderr
