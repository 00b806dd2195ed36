"""Queues and fan-in: what is refused, what is left, and workers that come and go."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ipcbench import get_backend
from ipcbench.backend import Reader
from ipcbench.errors import (
    ConfigError,
    EndOfStream,
    EndpointClosed,
    PeerLost,
    TransportError,
    TransportTimeout,
    Unsupported,
)
from ipcbench.patterns.parts import Looks
from ipcbench.spec import ChannelSpec

BACKENDS = ["null", "shm", "lmdb", "pipe", "tcp", "zmq"]
LIMIT_S = 60.0


def spec(name: str, **others: Any) -> ChannelSpec:
    return ChannelSpec(name, max_message_bytes=100, **others)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"writers": 2}, "writers"),
        ({"pattern": "queue", "writers": 2}, "writers"),
        ({"pattern": "fan_in", "readers": 2}, "readers"),
        ({"pattern": "queue", "delivery": "latest_value"}, "delivery"),
        ({"pattern": "star"}, "pattern"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        ChannelSpec("a", **wrong)


def test_what_a_backend_does_not_offer_is_refused() -> None:
    with pytest.raises(Unsupported, match="pattern queue"):
        get_backend("mpi")().create(spec("ipcb-none", pattern="queue"))


@pytest.mark.parametrize("name", BACKENDS[1:])
def test_too_many_workers_and_too_many_writers_are_refused(name: str) -> None:
    backend = get_backend(name)()
    limit = backend.capabilities.max_readers
    for role, pattern in (("readers", "queue"), ("writers", "fan_in")):
        with pytest.raises(Unsupported, match=rf"{limit + 1} {role} \(at most {limit}\)"):
            backend.create(spec("ipcb-none", pattern=pattern, **{role: limit + 1}))


def test_a_name_that_is_too_long_for_the_parts_is_refused_and_nothing_is_left() -> None:
    with pytest.raises(ConfigError, match="1 to 43 characters"):
        get_backend("shm")().create(spec("a" * 44, pattern="queue"))


@pytest.mark.parametrize("name", BACKENDS)
def test_one_part_that_cannot_be_made_leaves_no_other(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    blocked = backend.create(spec(f"{channel_name}-w2"))
    with pytest.raises(TransportError, match="exists already"):
        backend.create(spec(channel_name, pattern="fan_in", writers=3))
    backend.destroy(blocked)
    address = backend.create(spec(channel_name, pattern="fan_in", writers=3))
    with pytest.raises(TransportError, match="writers 0 to 2, not 3"):
        backend.open_writer(address, 3)
    for location in ("", "{", "[]", "[1, 2, 3]"):
        with pytest.raises(TransportError, match="pass the address that `create` returned"):
            backend.open_reader(replace(address, location=location), 0)
    backend.destroy(address)
    backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS)
def test_endpoints_of_a_queue_close_for_good(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="queue", readers=2, depth=2))
    writer, worker = backend.open_writer(address), backend.open_reader(address, 1)
    with pytest.raises(TransportError):
        backend.open_reader(address, 1)
    with pytest.raises(TransportTimeout):
        worker.read(0.5)  # with which it says that it is there
    writer.write(b"a", LIMIT_S)
    assert worker.read(LIMIT_S) == b"a"
    worker.close()
    worker.close()
    with pytest.raises(EndpointClosed):
        worker.read(0.0)
    writer.drain(LIMIT_S)
    with pytest.raises(TransportTimeout):  # the other one has not come
        writer.write(b"b", 0.2)
    with backend.open_reader(address, 0) as late:
        with pytest.raises(TransportTimeout):
            late.read(0.5)
        writer.write(b"c", LIMIT_S)
        assert late.read(LIMIT_S) == b"c"
        writer.close()
        with pytest.raises(EndpointClosed):
            writer.write(b"d")
        with pytest.raises(EndOfStream):
            late.read(LIMIT_S)
    backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS)
def test_one_thread_may_have_both_ends_of_a_queue(name: str, channel_name: str) -> None:
    """While the writer waits, the worker can do nothing: neither say that it is there, nor what it has finished."""
    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="queue", depth=2))
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as worker:
        with pytest.raises(TransportTimeout, match=rf"no message in channel '{channel_name}' within 0 s"):
            worker.read(0)
        for number in range(10):
            writer.write(b"%d" % number, LIMIT_S)
            assert worker.read(LIMIT_S) == b"%d" % number
            worker.release()
    backend.destroy(address)


@pytest.mark.parametrize("name", ["shm", "pipe"])
def test_all_workers_gone_is_an_error_of_the_writer(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="queue", readers=1, depth=2))
    with backend.open_writer(address) as writer:
        with backend.open_reader(address, 0):
            for _ in range(2):
                writer.write(b"a", LIMIT_S)
        with pytest.raises(PeerLost, match="all workers"):
            writer.drain(LIMIT_S)
    backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS)
def test_workers_that_come_and_go_get_everything_once(name: str, channel_name: str) -> None:
    """Each of 12 workers, three at a time, takes some and leaves with what it has not begun."""
    backend, count = get_backend(name)(), 300
    address = backend.create(spec(channel_name, pattern="queue", readers=13, depth=3))
    got: Counter[bytes] = Counter()

    def work(indices: range) -> None:
        for index in indices:
            with backend.open_reader(address, index) as worker:
                for _ in range(15):
                    got[bytes(worker.read(LIMIT_S))] += 1

    threads = [threading.Thread(target=work, args=(range(first, 12, 3),)) for first in range(3)]
    with backend.open_writer(address) as writer:
        for thread in threads:
            thread.start()
        for number in range(180):
            writer.write(b"%d" % number, LIMIT_S)
        writer.drain(LIMIT_S)  # what a worker leaves behind is given to others meanwhile
        for thread in threads:
            thread.join()
        with backend.open_reader(address, 12) as last:
            end = threading.Thread(target=lambda: [writer.write(b"%d" % n, LIMIT_S) for n in range(180, count)])
            end.start()
            while len(got) < count:
                got[bytes(last.read(LIMIT_S))] += 1
            end.join()
            last.release()
            writer.drain(LIMIT_S)
    assert got == Counter(b"%d" % number for number in range(count))
    backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS)
def test_the_reader_of_a_fan_in_takes_turns(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="fan_in", writers=3, depth=64))
    writers = [backend.open_writer(address, index) for index in range(3)]
    with backend.open_reader(address, 0) as reader:
        pending = [threading.Thread(target=lambda w=w: [w.write(b"x", LIMIT_S) for _ in range(20)]) for w in writers]
        for thread in pending:
            thread.start()
        turns = []
        for _ in range(60):
            assert reader.read(LIMIT_S) == b"x"
            turns.append(reader.last_writer)
        for thread in pending:
            thread.join()
        assert Counter(turns) == {0: 20, 1: 20, 2: 20}
        with pytest.raises(TransportTimeout):
            reader.read(0.0)
        for writer in writers:
            writer.close()
        for _ in range(2):
            with pytest.raises(EndOfStream):
                reader.read(LIMIT_S)
    backend.destroy(address)
    assert not any(each.startswith(channel_name) for each in os.listdir("/dev/shm"))


@pytest.mark.parametrize("name", BACKENDS)
def test_many_tasks_at_once_go_to_one_worker_each_and_are_finished_together(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="queue", readers=2, depth=4))
    tasks = [b"%d" % number for number in range(8)]
    with backend.open_writer(address) as writer, ExitStack() as leaving:
        workers = [leaving.enter_context(backend.open_reader(address, index)) for index in range(2)]
        for worker in workers:
            with pytest.raises(TransportTimeout):
                worker.read_many(8, 0.5)  # with which it says that it is there
        assert writer.write_many(tasks, LIMIT_S) == 8
        with pytest.raises(TransportTimeout):
            writer.write_many(tasks, 0.0)
        got: list[bytes] = []
        for half, worker in zip((4, 8), workers, strict=True):
            while len(got) < half:
                got += map(bytes, worker.read_many(8, LIMIT_S))
            worker.release()
        assert sorted(got) == tasks
        writer.drain(LIMIT_S)
        assert writer.write_many([b"more"] * 8, LIMIT_S) == 8
    backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS)
def test_many_messages_at_once_are_of_one_writer_in_order(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="fan_in", writers=2, depth=16))
    with ExitStack() as closing:
        writers = [closing.enter_context(backend.open_writer(address, index)) for index in range(2)]
        reader = closing.enter_context(backend.open_reader(address, 0))
        for writer in writers:
            assert writer.write_many([b"%d" % number for number in range(10)], LIMIT_S) == 10
        got: dict[int, list[bytes]] = {0: [], 1: []}
        while sum(map(len, got.values())) < 20:
            views = reader.read_many(4, LIMIT_S)
            assert 1 <= len(views) <= 4
            got[reader.last_writer] += map(bytes, views)
        assert got == {index: [b"%d" % number for number in range(10)] for index in range(2)}
        with pytest.raises(TransportTimeout):
            reader.read_many(4, 0.0)
    backend.destroy(address)


def test_a_worker_says_again_what_had_no_room(channel_name: str) -> None:
    """Else the writer would wait for the worker, and the worker for a task."""
    backend = get_backend("shm")()
    address = backend.create(spec(channel_name, pattern="queue", depth=2))
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as worker:
        with pytest.raises(TransportTimeout):
            worker.read(0.5)
        for task in (b"a", b"b"):
            writer.write(task, LIMIT_S)
        assert worker.read(LIMIT_S) == b"a"
        with suppress(TransportTimeout):
            while True:  # as if a handler had interrupted it each time before it knew that it had said so
                worker._finished.write(bytes(8), 0.0)  # type: ignore[attr-defined] # its way to the writer
        assert worker.read(LIMIT_S) == b"b"
        got: list[bytes] = []
        waiting, tasks = threading.Event(), worker._tasks  # type: ignore[attr-defined]
        worker._tasks = SimpleNamespace(  # type: ignore[attr-defined]
            read=lambda timeout_s: waiting.set() or tasks.read(timeout_s), release=tasks.release, close=tasks.close
        )
        reading = threading.Thread(target=lambda: got.append(bytes(worker.read(LIMIT_S))))
        reading.start()
        waiting.wait(LIMIT_S)  # only from now on is there room again
        writer.write(b"c", LIMIT_S)
        reading.join()
        assert got == [b"c"]
    backend.destroy(address)


class Interrupted(Exception):
    """Raised by the handler of a signal."""


# An exception of a handler that comes in a callback of the garbage collector is printed, and raised nowhere.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("pattern", ["queue", "fan_in"])
@pytest.mark.parametrize("name", ["shm", "lmdb"])
def test_a_read_that_a_handler_interrupts_loses_nothing(name: str, pattern: Any, channel_name: str) -> None:
    def interrupt(*_: object) -> None:
        if may_raise:
            may_raise.clear()
            raise Interrupted

    may_raise: list[bool] = []
    backend, chance = get_backend(name)(), random.Random(1)
    address = backend.create(spec(channel_name, pattern=pattern, depth=64))  # room also for what is said twice
    limit_of_the_test = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, interrupt)
    kept: list[list[memoryview]] = []
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            with pytest.raises(TransportTimeout):
                reader.read(0.5)  # with which a worker says that it is there
            for _ in range(500):
                tasks, got = [b"%d" % number for number in range(16)], []
                assert writer.write_many(tasks, LIMIT_S) == 16
                while len(got) < 16:
                    once = map(reader.read_many, (16,), (LIMIT_S,))  # in C, so that the test itself loses nothing
                    with suppress(Interrupted):
                        may_raise.append(True)
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1e-4))
                        for kept[:] in zip(once, strict=True):
                            pass
                        may_raise.clear()
                    got += [bytes(view) for views in kept for view in views]
                    kept.clear()
                assert got == tasks
                reader.release()
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *limit_of_the_test)
        backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS)
def test_one_descriptor_tells_of_all_writers(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(ChannelSpec(channel_name, writers=3, pattern="fan_in"))
    try:
        with ExitStack() as stack:
            reader = stack.enter_context(backend.open_reader(address, 0))
            writers = [stack.enter_context(backend.open_writer(address, index)) for index in range(3)]
            for number, writer in enumerate(writers * 3):
                with pytest.raises(TransportTimeout):
                    reader.read(0.0)
                descriptor = reader.fileno()
                assert descriptor is not None
                writer.write(bytes([number]), 30.0)
                assert select.select([descriptor], [], [], 30.0)[0]
                assert bytes(reader.read(30.0)) == bytes([number])
        with pytest.raises(EndpointClosed):
            reader.fileno()
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("count", [0, 1, 3, 16, 257])
def test_looks_see_all_at_first_and_then_each_place_once_in_four(count: int) -> None:
    looks, places = Looks(), dict.fromkeys(range(count))
    assert looks.take(looks.due_ns, places) == list(places)
    turns = [looks.take(looks.due_ns, places) for _ in range(4)]
    assert looks.due_ns == 5 * 200_000_000
    assert Counter(place for turn in turns[: min(4, count)] for place in turn) == Counter(places.keys())
    assert max(map(len, turns)) == -(-count // 4)


WRITES_THREE = """
import json, sys, threading
from ipcbench import get_backend
from ipcbench.backend import Address
writer = get_backend(sys.argv[1])().open_writer(Address.from_dict(json.loads(sys.argv[2])))
for number in range(3):
    writer.write(b"%d" % number, 60.0)
print("written", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("name", BACKENDS[1:])
def test_a_worker_reads_what_a_killed_writer_handed_over(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="queue", depth=4))
    command = [sys.executable, "-c", WRITES_THREE, name, json.dumps(address.as_dict())]
    with backend.open_reader(address, 0) as worker:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"written\n"
                got = [bytes(worker.read(LIMIT_S))]
            finally:
                process.kill()
        died = rf"the writer of channel '{channel_name}' died"
        with pytest.raises(PeerLost, match=died):
            got.extend(iter(lambda: bytes(worker.read(LIMIT_S)), None))
        with pytest.raises(PeerLost, match=died):
            worker.read(LIMIT_S)
    all_of_them = [b"0", b"1", b"2"]  # zmq's library may not have sent the last ones
    assert got == all_of_them[: len(got) if name == "zmq" else 3]
    backend.destroy(address)


@pytest.mark.parametrize("opens", ["before the writer", "beside the writer", "after the writer"])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_worker_that_only_waits_learns_of_a_writer_that_leaves_without_a_task(
    name: str, opens: str, channel_name: str
) -> None:
    def open_worker() -> None:
        workers.append(stack.enter_context(backend.open_reader(address, 0)))
        descriptors.append(workers[0].fileno())
        if opens != "after the writer":
            with pytest.raises(TransportTimeout):
                workers[0].read(0.0)

    def wait() -> None:
        while select.select(descriptors, [], [], LIMIT_S)[0]:
            with suppress(TransportTimeout):
                workers[0].read(0.0)

    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="queue"))
    workers: list[Reader] = []
    descriptors: list[int | None] = []
    with ExitStack() as stack:
        if opens == "before the writer":
            open_worker()
        with backend.open_writer(address):
            if opens == "beside the writer":
                open_worker()
        if opens == "after the writer":
            open_worker()
        with pytest.raises(EndOfStream):
            wait()
    backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS[1:])
def test_a_second_writer_of_a_queue_is_told_that_the_first_one_is_open(name: str, channel_name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(spec(channel_name, pattern="queue", readers=2))
    with ExitStack() as stack:
        writer = stack.enter_context(backend.open_writer(address))
        with backend.open_reader(address, 0):
            writer.write(b"a", LIMIT_S)
        staying = stack.enter_context(backend.open_reader(address, 1))
        thread = threading.Thread(target=lambda: (staying.read(LIMIT_S), staying.release()))
        thread.start()
        writer.drain(LIMIT_S)  # when it returns, the writer has let go of the worker that has left
        thread.join()
        with pytest.raises(TransportError, match=rf"channel '{channel_name}' already has its writer"):
            backend.open_writer(address)
    with pytest.raises(TransportError, match="was open before"):
        backend.open_writer(address)
    backend.destroy(address)
