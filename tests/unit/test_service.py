"""Services: a server that a channel starts ends with it, whoever removes it, and no other process does."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ipcbench.errors import TransportError
from ipcbench.processes import cleanup
from ipcbench.sync.locks import is_locked
from ipcbench.sync.service import SERVICE_SUFFIX, end_services, kill_group, start_service

SERVER = """
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
os.fork()
print("not to be seen", os.environ.get("IPCBENCH_SECRET"))
signal.pause()
"""
"""A server of two processes, which does not mind a polite end."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(cleanup, "SHM_FOLDER", tmp_path / "shm")
    path = tmp_path / "ipcb-service"
    path.mkdir(mode=0o700)
    return path


def serves(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(folder / "s")) == 0


def start(folder: Path) -> int:
    return start_service(folder, "two", [sys.executable, "-c", SERVER, str(folder / "s")], lambda: serves(folder))


def test_it_is_in_a_session_of_its_own_and_says_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    group = start(folder)
    assert serves(folder)
    assert os.getsid(group) if Path(f"/proc/{group}").exists() else group != os.getpgrp()
    end_services(folder)
    assert not serves(folder)
    assert not is_locked(folder / f"two{SERVICE_SUFFIX}")
    assert capfd.readouterr() == ("", "")
    end_services(folder)


def test_it_outlives_whoever_started_it_and_is_found_by_any_process(folder: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tests.unit import test_service
test_service.start(Path({str(folder)!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    assert serves(folder)
    end_services(folder)
    assert not serves(folder)


@pytest.mark.parametrize("how", ["remove", "clean"])
def test_clean_up_ends_it_with_the_folder(folder: Path, how: str) -> None:
    start(folder)
    lock = os.open(folder / f"two{SERVICE_SUFFIX}", os.O_RDWR)
    if how == "remove":
        cleanup.remove("ipcb-service")
    else:
        (folder / "writer.endpoint").touch()  # it was open once
        cleanup.clean(cleanup.survey())
    assert not folder.exists()
    assert not is_locked(Path(f"/proc/self/fd/{lock}"))
    os.close(lock)


def test_a_file_of_no_running_service_kills_nobody(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as bystander:
        (folder / f"old{SERVICE_SUFFIX}").write_text(str(bystander.pid))
        end_services(folder)
        bystander.communicate(b"\n")
    assert bystander.returncode == 0


def test_one_that_ends_at_once_is_an_error_with_its_last_words(folder: Path) -> None:
    with pytest.raises(TransportError, match="false ended at once; it said nothing"):
        start_service(folder, "false", ["false"], lambda: False)
    with pytest.raises(TransportError, match=r"ls ended at once; its last words: .*no-such-file"):
        start_service(folder, "ls", ["ls", "no-such-file"], lambda: False)
    with pytest.raises(TransportError, match=r"no-such-server ended at once; its last words: .*not found"):
        start_service(folder, "none", ["no-such-server"], lambda: False)


def test_one_that_does_not_serve_is_ended_and_its_last_words_are_said(folder: Path) -> None:
    loud = ["sh", "-c", "echo one >&2; echo; sleep 60"]
    with pytest.raises(TransportError, match="sh does not serve within 1 s; its last words: one"):
        start_service(folder, "loud", loud, lambda: False, within_s=1.0)
    assert not is_locked(folder / f"loud{SERVICE_SUFFIX}")


def test_a_group_that_has_ended_is_killed_in_peace(folder: Path) -> None:
    group = start(folder)
    end_services(folder)
    kill_group(group)


_ON_A_FULL_DISK = """
mount -t tmpfs -o size=64k tmpfs "$1" && mkdir "$1/made" && cat /dev/zero > "$1/fill" 2>"$1/made/errors"
exec "$2" -c "$3" "$1/made"
"""
_STARTS = """
import sys
from pathlib import Path
from ipcbench.sync.service import start_service

try:
    start_service(Path(sys.argv[1]), "none", ["false"], lambda: False)
except OSError as error:
    print(error.strerror)
"""


def test_a_full_disk_is_an_error_that_says_so(folder: Path) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which(alone[0]) is None or subprocess.run([*alone, "mount -t tmpfs none /mnt"], check=False).returncode:
        pytest.skip("needs a namespace of mounts")
    command = [*alone, _ON_A_FULL_DISK, "sh", str(folder), sys.executable, _STARTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "No space left on device\n", done.stderr
