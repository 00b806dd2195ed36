"""Backend `nng` against the contract, and what the kit does where its library refuses."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ipcbench.testing import ConformanceSuite

pytest.importorskip("pynng")


class TestNng(ConformanceSuite):
    backend = "nng"


_CUT = """
import os
from ipcbench import get_backend
from ipcbench.errors import PeerLost, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync import PUBLISHED
from ipcbench.sync.directory import channel_directory
from ipcbench.sync.locks import was_released
from ipcbench.util.clock import now_ns

backend = get_backend("nng")()
address = backend.create(ChannelSpec(f"ipcb-cut-{os.getpid()}"))
with backend.open_reader(address, 0) as reader:
    with backend.open_writer(address) as writer:
        writer.write(b"x", 60.0)
        reader.read(60.0)
    reader._cursors.words[PUBLISHED] += 3
    assert reader.read(60.0) == b""  # what would have ended the stream
    while True:
        is_released = was_released(channel_directory(address), "writer")
        try:
            reader.read(0.1)
        except TransportTimeout:
            pass
        if is_released:
            break
    reader._missed = 2, now_ns() - 60 * 10**9
    for _ in range(2):
        try:
            reader.read(60.0)
        except PeerLost as loss:
            print(loss)
backend.destroy(address)
"""


def test_a_stream_that_was_cut_behind_a_writer_that_has_closed_is_a_loss() -> None:
    """The reader waited for ever for messages that were counted and gone with the writer's process."""
    done = subprocess.run([sys.executable, "-c", _CUT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is gone, and 2 of its messages with it\n") == 2


_TAKEN = """
import os
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync import channel_file

backend = get_backend("nng")()
address = backend.create(ChannelSpec(f"ipcb-nng-{os.getpid()}", max_message_bytes=100))
taken = channel_file(address, "reader-0")
taken.mkdir()
try:
    backend.open_reader(address, 0)
except TransportError as error:
    print(type(error).__name__)
taken.rmdir()
with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
    writer.write(b"x", timeout_s=60.0)
    print(bytes(reader.read(timeout_s=60.0)).decode())
backend.destroy(address)
"""


def test_a_reader_that_the_library_refuses_may_be_opened_later() -> None:
    done = subprocess.run([sys.executable, "-c", _TAKEN], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "TransportError\nx\n"), done.stderr


_WRITES = """
import json, sys
from ipcbench import get_backend
from ipcbench.backend import Address

with get_backend("nng")().open_writer(Address.from_dict(json.loads(sys.argv[1]))) as writer:
    writer.write(b"x", timeout_s=60.0)
    sys.stdin.read()
"""
_BROKEN = """
import json, os, subprocess, sys, threading
from ipcbench import get_backend
from ipcbench.errors import PeerLost
from ipcbench.spec import ChannelSpec

backend = get_backend("nng")()
address = backend.create(ChannelSpec(f"ipcb-nng-{os.getpid()}", max_message_bytes=100))
command = [sys.executable, "-c", sys.argv[1], json.dumps(address.as_dict())]

def receive(_timeout_s):
    threading.Timer(0.3, writer.kill).start()
    raise ConnectionResetError

with backend.open_reader(address, 0) as reader, subprocess.Popen(command, stdin=subprocess.PIPE) as writer:
    assert reader.read(timeout_s=60.0) == b"x"
    reader.library_folder, reader.receive = "<string>", receive  # as if pynng had raised it
    try:
        reader.read(timeout_s=60.0)
    except PeerLost as loss:
        print(loss)
backend.destroy(address)
"""


def test_a_connection_that_breaks_before_the_death_of_its_peer_shows_is_no_other_error() -> None:
    """As a process is killed, its connections may close some time before the lock by which its death shows."""
    command = [sys.executable, "-c", _BROKEN, _WRITES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "died without closing" in done.stdout


_INTERRUPTED = """
import os, signal
from ipcbench import get_backend
from ipcbench.spec import ChannelSpec

def interrupt(*_):
    raise InterruptedError

def done_twice(count):
    del reader._done
    done(count)
    signal.raise_signal(signal.SIGALRM)

signal.signal(signal.SIGALRM, interrupt)
backend = get_backend("nng")()
address = backend.create(ChannelSpec(f"ipcb-nng-{os.getpid()}", max_message_bytes=100, depth=4))
with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
    for number in range(20):
        writer.write(str(number).encode(), timeout_s=60.0)
        done, reader._done = reader._done, done_twice
        try:
            print(bytes(reader.read(timeout_s=60.0)).decode(), "not interrupted")
        except InterruptedError:
            print(bytes(reader.read(timeout_s=60.0)).decode())
backend.destroy(address)
"""


def test_a_read_that_is_interrupted_after_its_message_came_does_not_lose_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, [*map(str, range(20))]), done.stderr


_HALF_SENT = """
import os
from ipcbench import get_backend
from ipcbench.errors import PeerLost
from ipcbench.spec import ChannelSpec

backend = get_backend("nng")()
address = backend.create(ChannelSpec(f"ipcb-nng-{os.getpid()}", readers=1, max_message_bytes=100))
with backend.open_reader(address, 0) as reader:
    writer = backend.open_writer(address)
    writer.write(b"x", timeout_s=60.0)

    def send(_message):
        writer._failure = loss = PeerLost("another reader died")
        raise loss

    writer.library_folder, writer.send = "<string>", send  # as if nng had failed
    try:
        writer.write(b"not sent", timeout_s=60.0)
    except PeerLost:
        del writer.send
        writer.close()
    print(bytes(reader.read(timeout_s=60.0)))
    try:
        print(bytes(reader.read(timeout_s=60.0)))
    except PeerLost as loss:
        print(loss)
backend.destroy(address)
"""


def test_the_end_is_not_taken_for_a_message_that_another_readers_death_prevented() -> None:
    done = subprocess.run([sys.executable, "-c", _HALF_SENT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"b'x'\nthe writer of channel '.*' died without closing\n", done.stdout)


_FORKED = """
import os
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec

backend = get_backend("nng")()
address, other = (backend.create(ChannelSpec(f"ipcb-nng-{os.getpid()}-{number}")) for number in range(2))
with backend.open_writer(address):
    child = os.fork()
    if not child:
        try:
            backend.open_writer(other)
        except TransportError as error:
            print(error)
        raise SystemExit(0)  # its interpreter ends as that of a whole program
    assert os.waitpid(child, 0)[1] == 0
with backend.open_writer(other):
    pass
child = os.fork()  # now that all are closed
if not child:
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
backend.destroy(address)
backend.destroy(other)
"""


def test_a_forked_child_of_a_process_that_has_used_nng_opens_nothing_and_ends() -> None:
    """nng itself aborts the child that opens a socket; and pynng waits for ever at the end of any."""
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "nng cannot be used in a forked child" in done.stdout
