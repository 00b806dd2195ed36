"""Endpoints killed between two steps of their opening or closing: their peers learn of it and wait for nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from ipcbench import get_backend
from ipcbench.errors import PeerLost
from ipcbench.spec import ChannelSpec

_KILLED = """
import json, os, signal, sys
from ipcbench import get_backend
from ipcbench.backend import Address
from ipcbench.sync import cursors

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

address, role, moment = Address.from_dict(json.loads(sys.argv[1])), sys.argv[2], sys.argv[3]
backend = get_backend(address.backend)()
if moment == "opening":
    lock = cursors.lock_endpoint
    cursors.lock_endpoint = lambda *given: kill(lock(*given))  # it is taken, and nothing says that it is open
endpoint = backend.open_writer(address) if role == "writer" else backend.open_reader(address, 0)
print("open", flush=True)
sys.stdin.readline()
mark = cursors.Cursors._mark_closed
cursors.Cursors._mark_closed = (lambda self: kill(mark(self))) if moment == "closed" else kill
endpoint.close()
"""


def killed(backend: Any, channel: ChannelSpec, role: str, moment: str) -> None:
    """Open the other endpoint, have this one killed, and use the other one; 5,000 messages fill any ring."""
    address = backend.create(channel)
    peer = backend.open_reader(address, 0) if role == "writer" else backend.open_writer(address)
    command = [sys.executable, "-c", _KILLED, json.dumps(address.as_dict()), role, moment]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            said, _ = other.communicate("go on\n")
            assert (said, other.returncode) == ("" if moment == "opening" else "open\n", -signal.SIGKILL)
        if role == "writer":
            peer.read(timeout_s=60.0)
        for _ in range(5000):
            peer.write(b"x", timeout_s=60.0)
    finally:
        peer.close()
        backend.destroy(address)


@pytest.mark.parametrize("role", ["writer", "reader"])
@pytest.mark.parametrize("name", ["shm", "lmdb"])
def test_an_endpoint_killed_while_it_opens_has_died(name: str, role: str) -> None:
    channel = ChannelSpec(f"ipcb-killed-{os.getpid()}", readers=1, max_message_bytes=8, depth=2)
    with pytest.raises(PeerLost):
        killed(get_backend(name)(), channel, role, "opening")


@pytest.mark.parametrize("moment", ["closing", "closed"])
@pytest.mark.parametrize("name", ["shm", "lmdb"])
def test_a_reader_killed_while_it_closes_holds_nobody_up(name: str, moment: str) -> None:
    channel = ChannelSpec(f"ipcb-killed-{os.getpid()}", readers=1, max_message_bytes=8, depth=2)
    with suppress(PeerLost):  # it has closed or died, as its peer sees it; a time-out it is not
        killed(get_backend(name)(), channel, "reader", moment)


@pytest.mark.parametrize("size", [1, 300_000])
@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "zmq"])
def test_a_writer_that_has_lost_a_reader_writes_no_more(name: str, size: int) -> None:
    """A defect: what `PeerLost` refused is missing, and smaller messages go on to the readers that live."""
    backend = get_backend(name)()
    address = backend.create(ChannelSpec(f"ipcb-killed-{os.getpid()}", 2, max_message_bytes=300_000, depth=2))
    command = [sys.executable, "-c", _READER, json.dumps(address.as_dict())]
    with backend.open_writer(address) as writer, backend.open_reader(address, 1) as reader:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            writer.write(b"x", timeout_s=60.0)
            reader.read(timeout_s=60.0)
            other.communicate()
        lost = False
        for _ in range(1000):
            try:
                writer.write(bytes(size), timeout_s=60.0)
            except PeerLost:
                lost = True
                break
            reader.read(timeout_s=60.0)
        assert lost
        for small in (b"", b"y", bytes(300_000)):
            with pytest.raises(PeerLost):
                writer.write(small, timeout_s=60.0)
    backend.destroy(address)


_READER = """
import json, os, signal, sys
from ipcbench import get_backend
from ipcbench.backend import Address
address = Address.from_dict(json.loads(sys.argv[1]))
reader = get_backend(address.backend)().open_reader(address, 0)
reader.read(60.0)
os.kill(os.getpid(), signal.SIGKILL)
"""
