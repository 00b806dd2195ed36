"""An opening that is refused may be tried again, and a channel that is destroyed while it is made leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ipcbench import get_backend
from ipcbench.backend import Address
from ipcbench.errors import EndOfStream, TransportError
from ipcbench.registry import status
from ipcbench.spec import ChannelSpec
from ipcbench.sync import directory
from ipcbench.sync.directory import channel_directory

_WITHOUT_MEMORY = """
import os, resource, sys
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec

backend = get_backend(sys.argv[1])()
channel = ChannelSpec(f"ipcb-refused-{os.getpid()}", readers=1, delivery="latest_value")
address = backend.create(channel)
held = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
no_limit = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (held + int(sys.argv[2]), no_limit[1]))  # no stack of a thread fits in
try:
    backend.open_reader(address, 0)
except TransportError:
    print("refused")
resource.setrlimit(resource.RLIMIT_AS, no_limit)
reader = backend.open_reader(address, 0)
reader.close()
backend.destroy(address)
"""


@pytest.mark.parametrize("name", ["pipe", "zmq"])
@pytest.mark.parametrize("room_bytes", [0, 2**22])
def test_a_reader_of_latest_values_refused_for_want_of_memory_may_be_opened_later(name: str, room_bytes: int) -> None:
    command = [sys.executable, "-c", _WITHOUT_MEMORY, name, str(room_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


_DESTROYS = """
import json, os, sys
from contextlib import suppress
from dataclasses import replace
from ipcbench import get_backend
from ipcbench.backend import Address
from ipcbench.errors import TransportError

address = Address.from_dict(json.loads(sys.argv[1]))
folder, token, *others = address.location.splitlines()
backend = get_backend(address.backend)()
for _ in range(2000):
    with suppress(OSError):
        token = os.readlink(f"{folder}/made")  # of the channel that is there now
    with suppress(TransportError):
        backend.destroy(replace(address, location="\\n".join((folder, token, *others))))
"""


@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "zmq"])
def test_a_channel_that_is_destroyed_while_it_is_made_leaves_nothing(name: str) -> None:
    backend: Any = get_backend(name)()
    channel = ChannelSpec(f"ipcb-raced-{os.getpid()}", max_message_bytes=100)
    address = backend.create(channel)
    made_count = 0
    with subprocess.Popen([sys.executable, "-c", _DESTROYS, json.dumps(address.as_dict())]) as other:
        while other.poll() is None:
            with suppress(TransportError):  # of `create` only: what it made can always be destroyed
                address = backend.create(channel)
                made_count += 1
            backend.destroy(address)
    assert other.returncode == 0
    backend.destroy(address)
    assert made_count
    assert not os.path.lexists(address.location.partition("\n")[0])
    assert not os.path.lexists(f"/dev/shm/{channel.name}")
    backend.destroy(backend.create(channel))


_CLOSES_LATE = """
import atexit, json, sys
from ipcbench import get_backend
from ipcbench.backend import Address

address = Address.from_dict(json.loads(sys.argv[1]))
writer = get_backend(address.backend)().open_writer(address)
for _ in range(3):
    writer.write(bytes(300_000), 30.0)

class Late:
    def __del__(self):
        writer.close()

if sys.argv[2] == "exit handler":
    atexit.register(writer.close)
else:
    sys.modules["late"] = Late()
print("written", flush=True)
"""


@pytest.mark.parametrize("moment", ["exit handler", "teardown"])
@pytest.mark.parametrize("name", ["pipe", "zmq"])
def test_a_writer_that_closes_while_its_process_ends_sends_everything(name: str, moment: str) -> None:
    backend: Any = get_backend(name)()
    channel = ChannelSpec(f"ipcb-late-{os.getpid()}", readers=1, max_message_bytes=300_000, depth=16)
    address = backend.create(channel)
    try:
        with backend.open_reader(address, 0) as reader:
            command = [sys.executable, "-c", _CLOSES_LATE, json.dumps(address.as_dict()), moment]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
                assert other.stdout is not None
                other.stdout.readline()  # from here on it may end
                for _ in range(3):  # more than any pipe of the system holds
                    assert reader.read(timeout_s=60.0) == bytes(300_000)
                with pytest.raises(EndOfStream):
                    reader.read(timeout_s=60.0)
                other.stdout.read()
            assert other.returncode == 0
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "zmq", "mpi"])
def test_a_channel_whose_name_another_process_takes_meanwhile_is_left_to_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is refused removes only what it has made: here between the making of its folder and all that follows."""
    backend: Any = get_backend(name)()
    channel = ChannelSpec(f"ipcb-taken-{os.getpid()}", max_message_bytes=100)
    make_directory = directory.make_directory
    others: list[Address] = []

    def interrupted(wanted: str) -> Path:
        path = make_directory(wanted)
        if not others:
            others.append(Address(name, channel, f"{path}\n01234567"))
            backend.destroy(others[0])
            others[:] = [backend.create(channel)]
        return path

    monkeypatch.setattr(directory, "make_directory", interrupted)
    with pytest.raises(TransportError):
        backend.create(channel)
    try:
        assert channel_directory(others[0]).is_dir()
        assert name not in {"shm", "lmdb"} or backend.open_writer(others[0]).close() is None
    finally:
        backend.destroy(others[0])
    assert not os.path.lexists(f"/dev/shm/{channel.name}")


_DROPS = """
import json, os, sys
from ipcbench import get_backend
from ipcbench.backend import Address

address = Address.from_dict(json.loads(sys.argv[1]))
before = len(os.listdir("/proc/self/fd"))
get_backend(address.backend)().open_writer(address)  # and drop it
assert len(os.listdir("/proc/self/fd")) <= before, os.listdir("/proc/self/fd")
"""


@pytest.mark.parametrize("name", ["shm", "pipe"])
def test_a_dropped_endpoint_is_let_go_although_warnings_are_errors(name: str) -> None:
    backend: Any = get_backend(name)()
    address = backend.create(ChannelSpec(f"ipcb-dropped-{os.getpid()}", max_message_bytes=100))
    try:
        command = [sys.executable, "-W", "error", "-c", _DROPS, json.dumps(address.as_dict())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "ResourceWarning" in done.stderr
    finally:
        backend.destroy(address)


_FORKS = """
import os, signal, sys, threading
from ipcbench.sync.interrupts import no_fork
from ipcbench.sync.ownership import own

class Resource:
    is_released = False
    def let_go(self):
        self.is_released = True

def handler(*_):
    held.set()
    raise ValueError("a handler's")

resource, held, taken = Resource(), threading.Event(), threading.Event()
own(resource)

def hold():
    with no_fork():
        taken.set()
        held.wait()

threading.Thread(target=hold).start()
taken.wait()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.05)
pid = os.fork()  # waits, and is interrupted
if pid == 0:
    with no_fork():
        os._exit(0 if resource.is_released else 7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
with no_fork():
    print("done")
"""


def test_a_fork_that_a_handler_interrupts_lets_go_in_the_child_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


_TALKS = """
import os, sys
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec

backend = get_backend(sys.argv[1])()
try:
    address = backend.create(ChannelSpec(f"ipcb-folder-{os.getpid()}", max_message_bytes=100))
except TransportError as error:
    sys.exit(f"refused: {error}")
with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
    writer.write(b"x", 30.0)
    assert bytes(reader.read(30.0)) == b"x"
backend.destroy(address)
"""
_ODD = {"space ü": {"iox2"}, 'a"b': {"iox2"}, "a%41b": set(), "a,b": {"grpc", "flight"}}
"""What a folder for temporary files is called → who refuses it."""


@pytest.mark.parametrize("folder", _ODD)
@pytest.mark.parametrize(
    "name", ["flight", "grpc", "iox2", "lmdb", "nats", "nng", "pipe", "redis", "shm", "tcp", "zenoh", "zmq"]
)
def test_a_folder_of_any_name_is_used_or_refused_by_name(name: str, folder: str) -> None:
    """Libraries took a space or a letter beyond ASCII for something else, and said so in their own words."""
    if not (found := status(name)).available:
        pytest.skip(found.reason)
    with tempfile.TemporaryDirectory(suffix=folder) as path:  # a short one: sockets lie in it
        variables = {**os.environ, "TMPDIR": path}
        command = [sys.executable, "-c", _TALKS, name]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
        assert os.listdir(path) == []
    if name in _ODD[folder]:
        assert (done.returncode, "set TMPDIR" in done.stderr, path in done.stderr) == (1, True, True), done.stderr
    else:
        assert done.returncode == 0, done.stderr
