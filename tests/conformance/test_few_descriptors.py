"""Channels of a process that may open hardly any more files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ipcbench.registry import status

_WITH_FEW_DESCRIPTORS = """
import os, resource, sys
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.util.files import temporary_folder

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
    except TransportError as error:
        assert not os.path.lexists(temporary_folder() / channel.name), free
        assert "disk space" not in str(error), error
    else:
        os.close(held.pop())  # to remove a folder takes one
        backend.destroy(address)
"""


@pytest.mark.parametrize("name", ["zmq", "zmq-tcp", "shm", "lmdb", "pipe"])
def test_a_channel_that_too_few_descriptors_prevent_leaves_no_folder(name: str) -> None:
    command = [sys.executable, "-c", _WITH_FEW_DESCRIPTORS, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


_MANY_WRITERS = """
import os, resource, sys
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec

backend = get_backend(sys.argv[1])()
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
channels, writers = [], []
try:
    while True:
        channels.append(backend.create(ChannelSpec(f"ipcb-many-{os.getpid()}-{len(channels)}", readers=4)))
        writers.append(backend.open_writer(channels[-1]))
except TransportError as error:
    assert "ulimit -n" in str(error), error
assert len(writers) > 1
child = os.fork()  # the readers have descriptors of their own
if not child:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    readers = [[backend.open_reader(address, index) for index in range(4)] for address in channels[: len(writers)]]
    read = [bytes(reader.read(60.0)) for each in readers for reader in each]
    os._exit(read != [b"all came"] * 4 * len(writers))
for writer in writers:
    writer.write(b"all came", 60.0)
_, status = os.waitpid(child, 0)
assert status == 0, status
for writer in writers:
    writer.close()
for address in channels:
    backend.destroy(address)
"""


@pytest.mark.parametrize("name", ["zmq", "zmq-tcp"])
def test_writers_are_refused_before_the_connections_of_earlier_ones_lack_descriptors(name: str) -> None:
    """libzmq aborts the process where it cannot accept a connection."""
    command = [sys.executable, "-c", _MANY_WRITERS, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


_MANY_READERS = """
import os, resource, sys
from ipcbench import get_backend
from ipcbench.spec import ChannelSpec

backend = get_backend(sys.argv[1])()
many = backend.create(ChannelSpec(f"ipcb-full-{os.getpid()}", readers=40))
few = backend.create(ChannelSpec(f"ipcb-few-{os.getpid()}", readers=1))
child = os.fork()
if not child:
    readers = [backend.open_reader(many, index) for index in range(40)]
    for reader in readers:
        reader.read(60.0)
    sys.stdin.read()
    os._exit(0)
writer = backend.open_writer(many)
writer.write(b"all came", 60.0)
open_count = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (open_count + 40, open_count + 40))
backend.open_reader(few, 0)  # a reader accepts nothing
backend.open_writer(few)
os.kill(child, 9)
backend.destroy(many)
backend.destroy(few)
"""


@pytest.mark.parametrize("name", ["zmq", "zmq-tcp"])
def test_connections_that_were_accepted_are_not_awaited_any_more(name: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _MANY_READERS, name]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


_OPENS_OR_SAYS_WHY = """
import os, resource, sys
from contextlib import ExitStack
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec

backend = get_backend(sys.argv[1])()
backend.probe()
if backend.name == "gloo":
    import torch.distributed
last = 60
for spare in range(4, last + 1, 4):
    channel = ChannelSpec(f"ipcb-says-{os.getpid()}-{spare}", max_message_bytes=1000)
    child = os.fork()  # the first use of a library takes more
    if not child:
        address = backend.create(channel)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + spare, 4096))
        with ExitStack() as held:
            try:
                writer = held.enter_context(backend.open_writer(address))
                reader = held.enter_context(backend.open_reader(address, 0))
            except TransportError as error:
                assert spare < last and "ulimit -n" in str(error), (spare, str(error))
            else:
                writer.write(b"x", 20.0)
                assert bytes(reader.read(20.0)) == b"x", spare
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        backend.destroy(address)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, f"with {spare} descriptors to spare"
"""


@pytest.mark.parametrize("name", ["nng", "zenoh", "iox2", "gloo", "flight", "grpc", "grpc-tcp", "redis", "nats"])
def test_a_library_that_would_lack_descriptors_is_not_begun(name: str) -> None:
    """They abort the process, panic, wait for ever, or do not say why."""
    if not (found := status(name)).available:
        pytest.skip(found.reason)
    command = [sys.executable, "-c", _OPENS_OR_SAYS_WHY, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
