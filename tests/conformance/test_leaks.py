"""The look at leftovers: each kind is seen while it is there, not once it is gone, and only under its own name."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from ipcbench.testing.leaks import SHARED_MEMORY, remove_files, traces

ME = {os.getpid()}

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this system has no /dev/shm and no /proc")


def kinds(name, pids=()):
    return [trace.kind for trace in traces(name, pids)]


def test_a_file_and_a_folder_are_seen(channel_name):
    folder = Path(tempfile.gettempdir()) / channel_name
    folder.mkdir()
    (SHARED_MEMORY / f"{channel_name}-data").touch()
    (SHARED_MEMORY / f"sem.{channel_name}").touch()
    assert kinds(channel_name) == ["file", "shared memory", "shared memory"]
    assert kinds(f"{channel_name}0") == []
    remove_files(channel_name)
    assert kinds(channel_name) == []


@pytest.mark.parametrize("abstract", [False, True])
def test_a_bound_socket_is_seen(channel_name, abstract):
    folder = Path(tempfile.mkdtemp(prefix=channel_name))
    path = f"\0{channel_name}.socket" if abstract else str(folder / "socket")
    with closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(path)
        shutil.rmtree(folder)
        assert kinds(channel_name) == ["socket"]
    assert kinds(channel_name) == []


def test_deleted_files_are_seen_while_they_are_open_or_mapped(channel_name):
    path = SHARED_MEMORY / channel_name
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with path.open("r+b") as file:
        path.unlink()
        assert kinds(channel_name) == []
        assert kinds(channel_name, ME) == ["descriptor"]
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    assert "mapping" in kinds(channel_name, ME)
    mapped.close()
    assert kinds(channel_name, ME) == []


def test_a_process_is_seen_by_its_arguments(channel_name):
    command = [sys.executable, "-c", "print(); input()", f"/run/{channel_name}/control"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)  # before it runs, its arguments may not be there yet
        assert kinds(channel_name) == ["process"]
        process.communicate(b"\n")
    assert kinds(channel_name) == []


def test_a_thread_is_seen_by_its_name(channel_name):
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name=f"{channel_name} reader-0")
    thread.start()
    assert kinds(channel_name) == ["thread"]
    done.set()
    thread.join()
    assert kinds(channel_name) == []
