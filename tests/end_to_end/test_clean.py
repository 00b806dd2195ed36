"""`ipcbench clean` on the stale resources of a process that was really killed."""

from __future__ import annotations

import json
import os
import subprocess

from ipcbench.processes.cleanup import find
from ipcbench.util.files import temporary_folder
from tests.end_to_end.shell import Shell

DIE_WITH_AN_OPEN_CHANNEL = """
import os, signal, sys
from ipcbench import ChannelSpec, get_backend
backend = get_backend("shm")()
address = backend.create(ChannelSpec(sys.argv[1]))
writer = backend.open_writer(address)
print("open", flush=True)
if sys.argv[2] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
writer.close()
backend.destroy(address)
"""


def start_owner(shell: Shell, name: str, then: str) -> subprocess.Popen[str]:
    process = shell.start_python("-c", DIE_WITH_AN_OPEN_CHANNEL, name, then, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_what_a_killed_process_left_goes_and_what_lives_stays(shell: Shell) -> None:
    dead, alive = f"ipcb-dead-{os.getpid()}", f"ipcb-live-{os.getpid()}"
    start_owner(shell, dead, "die").communicate(timeout=60)
    owner = start_owner(shell, alive, "live")
    try:
        planned = shell("clean", "--dry-run")
        assert planned.returncode == 0
        assert [line.split()[:2] for line in planned.stdout.splitlines() if dead in line] != []
        assert all(line.startswith("would remove") for line in planned.stdout.splitlines() if dead in line)
        assert find(dead) != []

        listed = shell("doctor", "--leftovers")
        assert [line for line in listed.stdout.splitlines() if dead in line and "clean` would remove" in line]
        assert [line for line in listed.stdout.splitlines() if alive in line and line.startswith("kept")]
        (entry,) = [
            each
            for each in json.loads(shell("doctor", "--leftovers", "--format", "json").stdout)["leftovers"]
            if each["path"] == str(find(dead)[0])
        ]
        assert entry["kept_because"] == ""

        cleaned = shell("clean")
        assert cleaned.returncode == 0
        assert [line for line in cleaned.stdout.splitlines() if dead in line and line.startswith("removed")]
        assert find(dead) == []
        assert [line for line in cleaned.stdout.splitlines() if alive in line and line.startswith("kept")]
        assert find(alive) != []
    finally:
        owner.communicate(timeout=60)
    assert find(alive) == []


def test_folders_that_are_too_deep_stay_and_are_named(shell: Shell) -> None:
    name = f"ipcb-deep-{os.getpid()}"
    top = temporary_folder() / name
    top.mkdir()
    inner = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=inner)
        outer, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    (top / "writer.endpoint").touch()  # it was open once, so it may go
    try:
        done = shell("clean")
        (line,) = [line for line in done.stdout.splitlines() if name in line]
        assert "too deep" in line
        assert done.stderr == ""
    finally:
        subprocess.run(["rm", "-rf", str(top)], check=True)
