"""Whose endpoints and channels are: one that is dropped gives back its place, one of another user is not opened."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from ipcbench.backends.shm.segment import _untracked
from ipcbench.errors import PeerLost, TransportError
from ipcbench.processes.cleanup import SHM_FOLDER
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_directory
from ipcbench.sync.ownership import Owned
from ipcbench.testing.agents.client import until

LIMIT_S = 20.0
MOMENT_S = 0.5


class Slow(Owned):
    """An endpoint whose opening goes on until a fork was tried, or for a moment."""

    closed = False

    def __init__(self, made: list[Slow], opening: threading.Event, forked: threading.Event) -> None:
        made.append(self)
        opening.set()
        self.fork_came_first = forked.wait(MOMENT_S)
        self.opened()

    def let_go(self) -> None:
        self.closed = True


def test_a_fork_waits_until_an_endpoint_is_open_and_its_child_lets_go_of_it():
    opening, forked, made = threading.Event(), threading.Event(), []
    opener = threading.Thread(target=Slow, args=(made, opening, forked))
    opener.start()
    assert opening.wait(LIMIT_S)
    child = os.fork()
    if not child:
        os._exit(0 if made[0].closed else 1)
    forked.set()
    opener.join()
    assert not made[0].fork_came_first
    assert not made[0].closed
    made[0].closed = True
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture(params=["shm", "lmdb", "pipe", "tcp", "zmq"])
def backend(request):
    return get_backend(request.param)()


FORKING = """
import os, sys
from ipcbench import ChannelSpec, get_backend

made = get_backend(sys.argv[1])()
address = made.create(ChannelSpec(f"ipcb-{os.getpid()}-exits", 1, 1000, sys.argv[2]))
with made.open_writer(address) as writer, made.open_reader(address, 0) as reader:
    for number in range(5):
        writer.write(bytes([number]) * 500, 20)
        view = reader.read(20)
        writer.write(bytes([number]) * 500, 20)
        child = os.fork()
        if not child:
            if number % 2:
                reader.close()
            sys.exit(0)
        os.waitpid(child, 0)
        assert bytes(view) == bytes(reader.read(20)) == bytes([number]) * 500
        del view
made.destroy(address)
"""


@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
def test_a_forked_child_that_exits_takes_nothing_from_its_parent(backend, delivery: str) -> None:
    command = [sys.executable, "-c", FORKING, backend.name, delivery]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def drop(endpoints, role: str) -> None:
    del endpoints[role]
    gc.collect()


def drop_both(backend, name: str, delivery: str) -> None:
    address = backend.create(ChannelSpec(name=name, readers=1, max_message_bytes=1000, delivery=delivery))
    try:
        endpoints = {"writer": backend.open_writer(address), "reader": backend.open_reader(address, 0)}
        endpoints["writer"].write(b"x", LIMIT_S)
        assert bytes(endpoints["reader"].read(LIMIT_S)) == b"x"
        with pytest.warns(ResourceWarning, match="dropped without `close`"):
            drop(endpoints, "writer")
        with pytest.raises(PeerLost):
            endpoints["reader"].read(LIMIT_S)
        with pytest.warns(ResourceWarning, match="dropped without `close`"):
            drop(endpoints, "reader")
        with pytest.raises(TransportError, match="was open before"):
            backend.open_writer(address)
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
def test_dropped_endpoints_leave_nothing_open(backend, delivery):
    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    drop_both(backend, f"ipcb-test-{os.getpid()}-first", delivery)  # what a library opens once stays open
    before = held()
    for number in range(3):
        drop_both(backend, f"ipcb-test-{os.getpid()}-{number}", delivery)
    assert until(lambda: held() <= before, LIMIT_S), (before, held())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "tcp", "zmq"])
@pytest.mark.parametrize("squat", ["owner", "mode"])
def test_a_channel_that_another_user_made_is_not_opened(name, squat):
    backend = get_backend(name)()
    address = backend.create(ChannelSpec(name=f"ipcb-test-{os.getpid()}-squat", readers=1, max_message_bytes=1000))
    segment, folder = SHM_FOLDER / address.channel.name, channel_directory(address)
    try:
        for path in filter(Path.exists, (segment, folder)):
            os.chown(path, 65534, -1) if squat == "owner" else path.chmod(0o777)
            with pytest.raises(TransportError, match=r"must be of user 0 alone"):
                backend.open_writer(address)
            with pytest.raises(TransportError, match=r"must be of user 0 alone"):
                backend.open_reader(address, 0)
            os.chown(path, 0, -1)
            path.chmod(0o600 if path == segment else 0o1700)
        for endpoint in (backend.open_writer(address), backend.open_reader(address, 0)):
            endpoint.close()
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "tcp", "zmq", "zmq-tcp"])
def test_too_few_descriptors_are_an_error_and_take_no_place(name):
    backend = get_backend(name)()
    backend.probe()
    for spare in range(24):
        child = os.fork()
        if not child:
            with os.fdopen(os.dup(2), "w") as stderr:
                os._exit(_opens_later(backend, spare, stderr))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"{spare} descriptors to spare"


def _opens_later(backend, spare: int, stderr) -> int:
    """Open a channel with so few descriptors to spare, then without that limit; return 0 if all errors were ours."""
    address = backend.create(ChannelSpec(name=f"ipcb-test-{os.getpid()}-few", readers=1, max_message_bytes=1000))
    opening = {"writer": lambda: backend.open_writer(address), "reader": lambda: backend.open_reader(address, 0)}
    endpoints = {}
    try:
        for limit in (len(os.listdir("/proc/self/fd")) - 1 + spare, 4096):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 4096))
            for role in opening.keys() - endpoints.keys():
                with suppress(TransportError):
                    endpoints[role] = opening[role]()
        endpoints["writer"].write(b"x", LIMIT_S)
        return int(bytes(endpoints["reader"].read(LIMIT_S)) != b"x")
    except BaseException as error:
        print(repr(error), file=stderr, flush=True)
        return 1
    finally:
        for endpoint in endpoints.values():
            endpoint.close()
        backend.destroy(address)


def test_segments_of_other_threads_stay_with_the_resource_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a channel is made, another thread may make a segment of its own."""
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(resource_tracker, "register", lambda name, rtype: seen.append((name, rtype)))
    with _untracked("ipcb-ours"):
        resource_tracker.register("/ipcb-ours", "shared_memory")
        resource_tracker.register("/psm_theirs", "shared_memory")
    assert seen == [("/psm_theirs", "shared_memory")]
