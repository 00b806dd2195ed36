"""Channels of a process that may open hardly any more files."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WITH_FEW_DESCRIPTORS = """
import os, resource, sys
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.locks import channel_directory

name = sys.argv[1]
backend = get_backend(name)()
channel = ChannelSpec(f"ipcb-few-{os.getpid()}", readers=1)
backend.destroy(backend.create(channel))  # whatever it imports is imported
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
for free in range(5):
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(free):
        os.close(held.pop())
    try:
        address = backend.create(channel)
    except TransportError:
        assert not os.path.lexists(channel_directory(channel.name)), free
    else:
        os.close(held.pop())  # to remove a folder takes one
        backend.destroy(address)
"""


@pytest.mark.parametrize("name", ["zmq", "zmq-tcp", "shm", "lmdb", "pipe"])
def test_a_channel_that_too_few_descriptors_prevent_leaves_no_folder(name: str) -> None:
    command = [sys.executable, "-c", _WITH_FEW_DESCRIPTORS, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
