"""The transports of multiprocessing against the contract, and what its users have to know."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from queue import Empty
from typing import Any

import psutil
import pytest

from ipcbench import Address, get_backend
from ipcbench.backends.mp.kept import LOCK
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_directory
from ipcbench.sync.locks import is_locked
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.agents.client import Agent
from ipcbench.testing.agents.pool import Pools
from ipcbench.testing.fixture import ChannelUnderTest, Fixture, Scope
from ipcbench.testing.leaks import traces

_MANY = 64
_PATIENCE_S = 60.0


class TestMpQueue(ConformanceSuite):
    backend = "mp-queue"


class TestMpManager(ConformanceSuite):
    backend = "mp-manager"


class TestMpPipe(ConformanceSuite):
    backend = "mp-pipe"


def test_a_channel_is_refused_where_no_parent_can_make_it() -> None:
    with pytest.raises(TransportError, match="the launcher `fork`"):
        get_backend("mp-queue")().create(ChannelSpec(f"ipcb-mp-{os.getpid()}"))


def test_a_writer_that_ends_without_joining_the_thread_loses_what_it_has_put() -> None:
    """A truth of multiprocessing, for which `mp-queue` closes its queues: what is put has not left the process."""
    context = get_context("fork")
    queue = context.Queue()
    writer = context.Process(target=_put_and_end, args=(queue,))
    writer.start()
    writer.join()
    queue._writer.close()
    with pytest.raises((EOFError, OSError)):  # at the end of a message, or within one
        list(iter(queue.get, b"never"))


def _put_and_end(queue: Any) -> None:
    for _ in range(_MANY):
        queue.put(bytes(2**16))
    os._exit(0)


def test_a_reader_killed_with_the_lock_of_a_shared_queue_leaves_the_others_blocked() -> None:
    """A truth of multiprocessing, for which each reader of `mp-queue` has a queue of its own."""
    context = get_context("fork")
    queue = context.Queue()
    victim = context.Process(target=queue.get)
    victim.start()
    while queue._rlock.acquire(block=False):  # until the victim has it
        queue._rlock.release()
    victim.kill()
    victim.join()
    queue.put(b"for the others")
    with pytest.raises(Empty):
        queue.get(timeout=0.5)


@pytest.fixture
def pools() -> Iterator[Pools]:
    """Agents of its own, whose parent may be killed."""
    own = Pools()
    yield own
    own.close()


def parent_of(channel: ChannelUnderTest) -> psutil.Process:
    parent = psutil.Process(channel.writer.agent.pid).parent()  # type: ignore[attr-defined]
    assert parent is not None
    return parent


@pytest.mark.parametrize("is_full", [False, True])
def test_when_the_manager_is_killed_everybody_loses_it(pools: Pools, is_full: bool) -> None:
    fixture = Fixture(get_backend("mp-manager"), pools, Scope((1,)))
    with fixture.channel(readers=1) as channel:
        while is_full:
            outcome = channel.writer.play("write", seed=1, sequence=1, size=64, timeout_s=1.0)
            if outcome.get("failure"):
                assert outcome["failure"]["kind"] == "TransportTimeout", outcome["failure"]["trace"]
                break
        agents = {endpoint.agent.pid for endpoint in channel.endpoints}  # type: ignore[attr-defined]
        (manager,) = (child for child in parent_of(channel).children() if child.pid not in agents)
        manager.kill()
        for _ in range(2):
            outcome = channel.writer.play("write", seed=1, sequence=1, size=64, timeout_s=_PATIENCE_S)
            assert outcome["failure"]["kind"] == "PeerLost", outcome["failure"]["trace"]
            outcome = channel.readers[0].play("read", timeout_s=_PATIENCE_S)
            assert outcome["failure"]["kind"] == "PeerLost", outcome["failure"]["trace"]
    assert traces(channel.address.channel.name) == []


def test_a_stopped_manager_is_ended_by_destroy(pools: Pools) -> None:
    """It was asked to end, and the answer waited for, for ever."""
    fixture = Fixture(get_backend("mp-manager"), pools, Scope((1,)))
    with fixture.channel(readers=1) as channel:
        agents = {endpoint.agent.pid for endpoint in channel.endpoints}  # type: ignore[attr-defined]
        (manager,) = (child for child in parent_of(channel).children() if child.pid not in agents)
        manager.suspend()
        get_backend("mp-manager")().destroy(channel.address)
        with suppress(psutil.NoSuchProcess):
            assert manager.status() == psutil.STATUS_ZOMBIE
    assert traces(channel.address.channel.name) == []


@pytest.mark.parametrize("name", ["mp-queue", "mp-manager", "mp-pipe"])
def test_what_killed_processes_leave_can_be_removed_by_any_other(pools: Pools, name: str) -> None:
    fixture = Fixture(get_backend(name), pools, Scope((1,)))
    channel = ChannelUnderTest(fixture, *made(fixture))
    channel.writer.open()  # the other end is still with the parent, and a semaphore has its name
    family = [parent_of(channel), *parent_of(channel).children()]
    for process in family:
        with suppress(psutil.NoSuchProcess):  # it has ended with its parent
            process.kill()
    assert psutil.wait_procs(family, _PATIENCE_S)[1] == []
    get_backend(name)().destroy(channel.address)
    assert traces(channel.address.channel.name) == []


def made(fixture: Fixture) -> tuple[Address, Sequence[Agent]]:
    """Return a channel that no endpoint is open of, and its agents."""
    agents = fixture.pool.acquire(2)
    return fixture.create(fixture.spec(readers=1), agents[0]), agents


def test_an_old_address_ends_no_manager_of_a_channel_of_the_same_name(pools: Pools) -> None:
    fixture = Fixture(get_backend("mp-manager"), pools, Scope((1,)))
    old, agents = made(fixture)
    backend = get_backend("mp-manager")()
    backend.destroy(old)
    new = fixture.create(old.channel, agents[0])
    with suppress(TransportError):
        backend.destroy(old)
    assert is_locked(channel_directory(new) / LOCK)
    backend.destroy(new)
    assert traces(new.channel.name) == []


_WORKER = """
import os, resource
from contextlib import suppress
from ipcbench import get_backend
from ipcbench.errors import TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.parent import Parent

parent = Parent()
if child := parent.fork():
    parent.serve({child})
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
_CLOSING = """
backend = get_backend("mp-queue")()
address = backend.create(ChannelSpec(f"ipcb-closing-{os.getpid()}", readers=2, depth=4))
with backend.open_writer(address) as writer, backend.open_reader(address, 0) as other:
    reader = backend.open_reader(address, 1)
    with suppress(TransportTimeout):
        while True:
            writer.write(b"x", 0.0)
    for _ in range(4):
        other.read(60.0)
    mark_closed = reader._cursors._mark_closed

    def write_in_between():
        for _ in range(4):
            writer.write(b"x", 60.0)
        mark_closed()

    reader._cursors._mark_closed = write_in_between
    reader.close()
    print(writer.readers())
backend.destroy(address)
unopened = backend.create(ChannelSpec(f"ipcb-unopened-{os.getpid()}", readers=2))
backend.destroy(unopened)
"""


def test_a_reader_that_is_about_to_be_closed_blocks_no_writer() -> None:
    """The writer put what nobody would get into a full queue, for ever. And `destroy` made the parent complain of
    semaphores that were gone.
    """
    assert said_by_worker(_CLOSING) == (0, "[0]\n", "")


_REUSING = """
backend = get_backend("mp-pipe")()
address = backend.create(ChannelSpec(f"ipcb-reused-{os.getpid()}", depth=8, max_message_bytes=2**17))
with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
    buffer = bytearray(2**17)
    for number in range(6):
        buffer[:] = bytes([number]) * len(buffer)
        writer.write(buffer, 60.0)
    print([sorted(set(bytes(reader.read(60.0)))) for _ in range(6)])
backend.destroy(address)
"""


def test_a_buffer_may_be_used_again_although_the_pipe_is_full() -> None:
    """What the thread was to send was the caller's memory, with what came into it later."""
    assert said_by_worker(_REUSING) == (0, "[[0], [1], [2], [3], [4], [5]]\n", "")


_TOO_MANY = """
backend = get_backend("mp-queue")()
address = backend.create(ChannelSpec(f"ipcb-many-{os.getpid()}", readers=40))
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 40, limits[1]))
try:
    backend.open_writer(address)
except TransportError as error:
    print("Too many open files" in str(error))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
backend.open_reader(address, 0).close()
backend.destroy(address)
"""


def test_an_end_that_needs_too_many_descriptors_is_refused_and_the_parent_goes_on() -> None:
    """It waited for ever for a worker that had not got what it asked for."""
    assert said_by_worker(_TOO_MANY) == (0, "True\n", "")


def said_by_worker(program: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of a worker with a parent."""
    command = [sys.executable, "-c", _WORKER + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr
