"""The transports of multiprocessing against the contract, and what its users have to know."""

from __future__ import annotations

import os
from multiprocessing import get_context
from queue import Empty
from typing import Any

import pytest

from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.testing import ConformanceSuite

_MANY = 64


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
