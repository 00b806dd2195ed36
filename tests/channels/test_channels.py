"""Channels that processes find by name."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipcbench
from ipcbench.channels import aio
from ipcbench.channels.channel import Channel
from ipcbench.channels.rendezvous import Rendezvous
from ipcbench.errors import (
    ConfigError,
    EncodeError,
    EndOfStream,
    EndpointClosed,
    MessageTooLarge,
    PeerLost,
    TransportError,
    TransportTimeout,
    Unsupported,
)
from ipcbench.testing.agents.client import until
from ipcbench.util.files import temporary_folder

BACKENDS = ("shm", "pipe", "tcp", "zmq", "zmq-tcp", "lmdb")
LONG_S = 30.0


@pytest.fixture
def name(channel_name: str) -> str:
    return channel_name.removeprefix("ipcb-")[-24:]


@contextmanager
def other(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that prints `ready` when it has begun, and lives until its input ends."""
    whole = "import sys, os, ipcbench\n" + code
    with subprocess.Popen(
        [sys.executable, "-c", whole, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_sides_send_and_receive(name: str, backend: str) -> None:
    code = """
with ipcbench.connect(sys.argv[1], sys.argv[2]) as channel:
    print("ready", flush=True)
    for obj in channel:
        channel.send([obj, os.getpid()])
"""
    with other(code, name, backend) as process:
        with ipcbench.connect(name, backend, timeout_s=LONG_S) as channel:
            for sent in (1, "text", {"image": np.arange(12.0).reshape(3, 4), "raw": b"x" * 100_000}, None):
                channel.send(sent, LONG_S)
                received, pid = channel.recv(LONG_S)
                assert repr(received) == repr(sent)
                assert pid == process.pid
        assert process.wait(LONG_S) == 0
    assert not list(temporary_folder().glob(f"ipcb-*{name}*")), "the last one out has removed it"


def test_in_place_and_without_copies(name: str) -> None:
    with ipcbench.connect(name, max_bytes="8MiB") as a, ipcbench.connect(name, max_bytes="8MiB") as b:
        made = a.empty((1000, 1000), "float32")
        made[:] = 7
        a.send({"made": made, "more": 1})
        got = b.recv(LONG_S, copy=False)["made"]
        assert got.shape == (1000, 1000)
        assert (got == 7).all()
        assert not got.flags.writeable
        a.send(np.zeros(3))
        assert b.recv(LONG_S).flags.writeable


@contextmanager
def sender(name: str, backend: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that sends its number and lives on; it begins while the block does."""
    code = """
channel = ipcbench.connect(sys.argv[1], sys.argv[2])
channel.send(os.getpid())
sys.stdin.read()
"""
    whole = "import sys, os, ipcbench\n" + code
    with subprocess.Popen([sys.executable, "-c", whole, name, backend], stdin=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_side_is_an_error_and_its_successor_gets_nothing_old(name: str, backend: str) -> None:
    with ExitStack() as stack:
        channel = None
        for _ in range(3):
            with sender(name, backend) as process:
                if channel is None:
                    channel = stack.enter_context(ipcbench.connect(name, backend, timeout_s=LONG_S))
                else:
                    channel.reconnect(LONG_S)
                assert channel.recv(LONG_S) == process.pid, "never what an earlier process has sent"
                channel.send("never read by the next one", LONG_S)
            with pytest.raises(PeerLost, match=f"'{name}'.*reconnect"):
                channel.recv(LONG_S)
            with pytest.raises(PeerLost, match="reconnect"):
                fill(channel)


def fill(channel: Channel) -> None:
    while True:
        channel.send(1, LONG_S)


def test_messages_of_one_who_left_are_still_received(name: str) -> None:
    a, b = ipcbench.connect(name), ipcbench.connect(name)
    for number in range(5):
        a.send(number)
    a.close()
    a.close()
    assert list(b) == [0, 1, 2, 3, 4]
    with pytest.raises(EndOfStream):
        b.recv(0)
    with ipcbench.connect(name) as c:  # begins anew
        with pytest.raises(TransportTimeout, match="nobody has connected"):
            c.send(1, timeout_s=0.01)
        b.reconnect(LONG_S)
        c.send("new")
        assert b.recv(LONG_S) == "new"
    b.close()
    with pytest.raises(EndpointClosed):
        b.send(1)
    with pytest.raises(EndpointClosed):
        b.recv()
    with pytest.raises(EndpointClosed):
        b.reconnect()


@pytest.mark.parametrize("backend", ["shm", "zmq", "lmdb"])
def test_the_latest_value_is_decoded_once(name: str, backend: str) -> None:
    options: dict[str, Any] = {"backend": backend, "delivery": "latest_value", "readers": 2}
    with ExitStack() as stack:
        writer = stack.enter_context(ipcbench.connect(name, role="writer", **options))
        readers = [stack.enter_context(ipcbench.connect(name, role="reader")) for _ in range(2)]
        with pytest.raises(TransportTimeout):
            readers[0].value(0.01)
        for number in range(3):
            writer.send({"frame": np.full(10, number)})
            for reader in readers:
                assert until(lambda r=reader, n=number: r.value(LONG_S)["frame"][0] == n, LONG_S)  # type: ignore[misc]
                assert reader.value() is reader.value()
        with pytest.raises(Unsupported, match="only receives"):
            readers[0].send(1)
        with pytest.raises(Unsupported, match="only sends"):
            writer.recv()
    with ipcbench.connect(name, backend) as plain, pytest.raises(Unsupported, match="latest_value"):
        plain.value()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_send_fails_once_the_other_side_is_known_to_be_gone(name: str, backend: str) -> None:
    """Every other one succeeded, and its object was lost."""
    with ipcbench.connect(name, backend) as channel:
        ipcbench.connect(name, backend).close()
        with pytest.raises(EndOfStream):
            channel.recv(LONG_S)
        for _ in range(5):
            with pytest.raises(PeerLost):
                channel.send("lost", LONG_S)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_task_whose_sending_timed_out_is_given_to_nobody(name: str, backend: str) -> None:
    """It was kept as one that a dead reader had not finished, and the next reader got it, too."""
    code = """
channel = ipcbench.connect(sys.argv[1], role="reader")
print("ready", flush=True)
for task in channel:
    if task == 2:
        os.kill(os.getpid(), 9)
"""
    options = {"pattern": "queue", "readers": 2, "depth": 2}
    refused = []
    with ipcbench.connect(name, backend, role="writer", **options) as writer:
        with other(code, name) as process:
            for task in range(3):
                writer.send(task, LONG_S)
            process.wait()
        for task in range(3, 9):
            try:
                writer.send(task, 0.3)
            except TransportTimeout:
                refused.append(task)
        with ipcbench.connect(name, role="reader") as reader, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: list(iter(partial(reader.recv, LONG_S), "last")))
            writer.send("last", LONG_S)
            got = reading.result()
    assert refused
    assert not set(refused) & set(got)
    assert len(set(got)) == len(got)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_task_of_a_reader_that_closes_at_once_is_given_to_nobody_else(name: str, backend: str) -> None:
    """What it said as it left came too late, or was never sent: the next readers did the same task again."""
    code = f"import ipcbench\nwith ipcbench.connect({name!r}, role='reader', timeout_s=60) as c: print(c.recv(60))"
    done, task = [], 0
    with ipcbench.connect(name, backend, role="writer", pattern="queue", readers=8, depth=2) as writer:
        for _ in range(5):
            with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as reader:
                assert reader.stdout is not None
                while reader.poll() is None:
                    task += 1
                    with suppress(TransportTimeout):
                        writer.send(task, 0.02)
                done.append(int(reader.stdout.read()))
    assert len(set(done)) == len(done), done


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_queue_survives_more_readers_than_it_has_places(name: str, backend: str) -> None:
    """Each reader dies at its fourth task, and there are places for two: no task is lost."""
    code = """
import os, sys, ipcbench
for count, task in enumerate(ipcbench.connect(sys.argv[1], role="reader")):
    print(task, flush=True)
    if count == 3:
        os._exit(0)
"""
    done: set[int] = set()
    is_drained = threading.Event()

    def work() -> None:
        while not is_drained.is_set():
            ended = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)
            done.update(map(int, ended.stdout.split()))

    thread = threading.Thread(target=work)
    with ipcbench.connect(name, backend, role="writer", pattern="queue", readers=2, depth=2) as writer:
        thread.start()
        for task in range(12):
            writer.send(task, LONG_S)
        writer.drain(LONG_S)
        is_drained.set()
    thread.join()
    assert done == set(range(12))


def test_a_queue_and_a_fan_in(name: str) -> None:
    with ipcbench.connect(name, role="writer", pattern="queue", readers=4) as writer, ExitStack() as stack:
        workers = [stack.enter_context(ipcbench.connect(name, role="reader", pattern="queue")) for _ in range(2)]
        for number in range(8):
            writer.send(number, LONG_S)
        got = sorted(worker.recv(LONG_S) for worker in workers * 4)
        assert got == list(range(8))
    with ipcbench.connect(name, role="reader", pattern="fan_in", writers=2) as reader, ExitStack() as stack:
        writers = [stack.enter_context(ipcbench.connect(name, role="writer", pattern="fan_in")) for _ in range(2)]
        for number, each in enumerate(writers):
            each.send(number, LONG_S)
        assert sorted(reader.recv(LONG_S) for _ in writers) == [0, 1]


@pytest.mark.parametrize("backend", ["shm", "pipe"])
def test_a_task_of_a_worker_that_dies_at_work_goes_to_another(name: str, backend: str) -> None:
    code = """
tasks = ipcbench.connect(sys.argv[1], role="reader")
assert tasks.recv() == "task"
print("ready", flush=True)
sys.stdin.read()
"""
    options = {"backend": backend, "pattern": "queue", "readers": 2}
    with ipcbench.connect(name, role="writer", **options) as tasks, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(tasks.send, "task", LONG_S)
        with other(code.replace('role="reader"', f'role="reader", **{options!r}'), name):
            second = ipcbench.connect(name, role="reader", pattern="queue")
        sending.result(LONG_S)
        draining = pool.submit(tasks.drain, LONG_S)
        with second:
            assert second.recv(LONG_S) == "task"
        draining.result(LONG_S)


def test_places_are_taken_once(name: str) -> None:
    with ipcbench.connect(name), ipcbench.connect(name), pytest.raises(TransportTimeout, match="living processes"):
        ipcbench.connect(name, timeout_s=0.01)
    with ipcbench.connect(name), ipcbench.connect(name):
        pass


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"backend": "pipe"}, "backend"),
        ({"depth": 4}, "depth"),
        ({"max_bytes": 100}, "max_bytes"),
        ({"pattern": "broadcast", "role": "reader"}, "role"),
    ],
)
def test_both_sides_have_the_same_options(name: str, options: dict[str, Any], field: str) -> None:
    with ipcbench.connect(name, "shm", depth=8), pytest.raises(ConfigError, match=f"^{field}: .* as channel"):
        ipcbench.connect(name, timeout_s=0.01, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "a/b"}, "name: 'a/b'"),
        ({"name": "x" * 25}, "1 to 24"),
        ({"backend": "shn"}, "did you mean 'shm'"),
        ({"backend": "null"}, "backend"),
        ({"role": "boss"}, "role"),
        ({"role": "writer", "pattern": "pair"}, "role"),
        ({"pattern": "queue"}, "role"),
        ({"max_bytes": "many"}, "max_bytes"),
        ({"depth": 0}, "depth"),
        ({"wait": "hard"}, "wait"),
        ({"delivery": "latest_value"}, "delivery"),
    ],
)
def test_wrong_options_are_one_line(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ipcbench.errors.IpcbenchError, match=said) as raised:
        ipcbench.connect(**{"name": name, "timeout_s": 0.01, **options})
    assert "\n" not in str(raised.value)
    assert not Rendezvous("at", name).path.exists()


def test_what_cannot_be_sent_leaves_the_channel_usable(name: str) -> None:
    with ipcbench.connect(name, max_bytes=2000) as a, ipcbench.connect(name) as b:
        with pytest.raises(EncodeError, match=r"the object\['x'\]"):
            a.send({"x": {1}})
        with pytest.raises(MessageTooLarge):
            a.send(np.zeros(10_000))
        a.send("fine")
        assert b.recv(LONG_S) == "fine"
        with pytest.raises(TransportTimeout):
            b.recv(0)


def test_a_folder_of_others_is_refused(name: str) -> None:
    folder = Rendezvous("at", name).path
    folder.mkdir(mode=0o700)
    folder.chmod(0o755)
    try:
        with pytest.raises(TransportError, match="must be of user"):
            ipcbench.connect(name, timeout_s=0.01)
    finally:
        folder.rmdir()
    folder.symlink_to("/")
    try:
        with pytest.raises(TransportError, match="is a link"):
            ipcbench.connect(name, timeout_s=0.01)
    finally:
        folder.unlink()
    with ipcbench.connect(name):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_clean_leaves_what_is_open_and_removes_what_is_not(name: str) -> None:
    from ipcbench.processes.cleanup import clean, survey

    def ours() -> list[Path]:
        return [resource.path for resource in survey() if name in resource.path.name and not resource.kept_because]

    with ipcbench.connect(name):
        assert not ours()
    code = "channel = ipcbench.connect(sys.argv[1])\nprint('ready', flush=True)\nsys.stdin.read()"
    with other(code, name):
        pass
    assert len(ours()) >= 2
    clean(tuple(resource for resource in survey() if name in resource.path.name))
    assert not list(temporary_folder().glob(f"ipcb-*{name}*"))
    code = "channel = ipcbench.connect(sys.argv[1])\nprint('ready', flush=True)\nsys.stdin.read()"
    with other(code, name):
        pass
    with ipcbench.connect(name) as a, ipcbench.connect(name) as b:  # and so does whoever comes next
        a.send(1)
        assert b.recv(LONG_S) == 1


def test_a_channel_that_is_not_closed_at_exit_leaves_nothing(name: str) -> None:
    code = """
channel, other = ipcbench.connect(sys.argv[1]), ipcbench.connect(sys.argv[1])
channel.send(1)
print("ready", flush=True)
"""
    with other(code, name) as process:
        assert process.wait(LONG_S) == 0
    assert not list(temporary_folder().glob(f"ipcb-*{name}*"))
    ipcbench.connect(name)
    assert not list(temporary_folder().glob(f"ipcb-*{name}*")), "dropped"


def test_a_forked_child_cannot_use_it_and_destroys_nothing(name: str) -> None:
    with ipcbench.connect(name) as a, ipcbench.connect(name) as b:
        child = os.fork()
        if not child:
            code = 1
            try:
                a.close()
                b.recv(0)
            except EndpointClosed:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        a.send(1)
        assert b.recv(LONG_S) == 1


def test_asyncio(name: str) -> None:
    async def main() -> None:
        async with aio.connect(name, max_bytes="1MiB") as a, aio.connect(name) as b:
            for number in range(100):
                await a.send({"number": number, "array": np.full(1000, number)})
                got = await b.recv(LONG_S)
                assert got["number"] == number
                assert (got["array"] == number).all()
            with pytest.raises(TransportTimeout):
                await b.recv(0.01)
            sending = asyncio.create_task(_send_all(a, 200))
            received = [await b.recv(LONG_S) for _ in range(200)]
            await sending
            assert received == list(range(200))
            await a.close()
            assert [obj async for obj in b] == []
            async with aio.connect(name) as c:
                await b.reconnect(LONG_S)
                await c.send("new")
                assert await b.recv(LONG_S) == "new"
        with pytest.raises(EndpointClosed):
            await b.recv()
        async with (
            aio.connect(name, role="writer", delivery="latest_value") as writer,
            aio.connect(name, role="reader", delivery="latest_value") as reader,
        ):
            await writer.send(1)
            assert await reader.value(LONG_S) == 1
            assert await reader.value() is await reader.value()

    asyncio.run(main())


async def _send_all(channel: aio.Channel, count: int) -> None:
    for number in range(count):
        await channel.send(number, LONG_S)


def test_asyncio_notices_a_death(name: str) -> None:
    async def main() -> None:
        with sender(name, "shm") as process:
            async with aio.connect(name) as channel:
                assert await channel.recv(LONG_S) == process.pid
                process.kill()
                with pytest.raises(PeerLost):
                    await channel.recv(LONG_S)

    asyncio.run(main())


def test_asyncio_tasks_have_their_turns(name: str) -> None:
    async def main() -> None:
        turns, is_over = 0, False

        async def count() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        async with aio.connect(name, depth=64) as a, aio.connect(name) as b:
            await _send_all(a, 1)
            assert await b.recv(LONG_S) == 0
            counting = asyncio.create_task(count())
            await _send_all(a, 60)  # there is room for all
            between = turns
            assert [await b.recv(LONG_S) for _ in range(60)] == list(range(60))  # and all are there
            assert between >= 5
            assert turns - between >= 5
            is_over = True
            await counting

    asyncio.run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_nobody_receives_leaves_an_event_loop_idle(name: str, backend: str) -> None:
    async def main() -> None:
        async with aio.connect(name, backend) as a, aio.connect(name) as b:
            receiving = asyncio.create_task(b.recv(LONG_S))
            await a.send(0)
            assert await receiving == 0
            await a.send(1)
            begin_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
            await asyncio.sleep(0.5)
            cpu_ratio = (time.process_time_ns() - cpu_ns) / (time.monotonic_ns() - begin_ns)
            assert cpu_ratio < 0.5  # where nothing else runs, it was all of a core
            assert await b.recv(LONG_S) == 1

    asyncio.run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_sends_learns_that_the_other_side_has_closed(name: str, backend: str) -> None:
    with ipcbench.connect(name, backend) as a:
        b = ipcbench.connect(name)
        a.send(1)
        assert b.recv(LONG_S) == 1
        b.close()
        a._look_ns = 0  # as after the interval of looks
        with pytest.raises(PeerLost, match="the other side is gone"):
            a.send(2, LONG_S)
        with ipcbench.connect(name) as c:
            a.reconnect(LONG_S)
            a.send(3, LONG_S)
            assert c.recv(LONG_S) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_waits_learns_that_another_thread_has_closed_its_end(name: str, backend: str) -> None:
    for waits in ("recv", "send"):
        a, b = (ipcbench.connect(name, backend, depth=2, max_bytes=1000) for _ in "ab")
        a.send(0)
        assert b.recv(LONG_S) == 0
        end, begun = (b, threading.Event()) if waits == "recv" else (a, threading.Event())

        def wait(end: Channel, begun: threading.Event) -> None:
            while True:
                begun.set()
                end.recv() if end is b else end.send(bytes(900))  # noqa: B023 - it ends in this turn

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait, end, begun)
            begun.wait(LONG_S)
            end.close()
            with pytest.raises(EndpointClosed):
                waiting.result(LONG_S)
        a.close()
        b.close()


@pytest.mark.parametrize(
    ("reads", "writes"),
    [
        ({}, {"delivery": "latest_value", "readers": 1}),
        ({}, {"pattern": "queue", "readers": 1}),
        ({}, {}),
    ],
)
@pytest.mark.parametrize("is_reader_first", [True, False])
def test_a_reader_without_options_takes_those_of_the_channel(
    name: str, reads: dict[str, Any], writes: dict[str, Any], is_reader_first: bool
) -> None:
    with ThreadPoolExecutor(1) as pool:
        if is_reader_first:
            reading = pool.submit(ipcbench.connect, name, role="reader", timeout_s=LONG_S, **reads)
        with ipcbench.connect(name, role="writer", **writes) as writer:
            if not is_reader_first:
                reading = pool.submit(ipcbench.connect, name, role="reader", timeout_s=LONG_S, **reads)
            with reading.result(LONG_S) as reader:
                writer.send("x", LONG_S)
                assert reader.recv(LONG_S) == "x"


def test_a_reader_that_waits_for_a_channel_says_so(name: str) -> None:
    with pytest.raises(TransportTimeout, match="nobody has made it yet"):
        ipcbench.connect(name, role="reader", timeout_s=0.01)
    assert not Rendezvous("at", name).path.exists()


def test_two_arrays_in_place_do_not_overlap(name: str) -> None:
    with ipcbench.connect(name) as a, ipcbench.connect(name) as b:
        ones, twos = a.empty(10), a.empty(10)
        ones[:], twos[:] = 1, 2
        a.send([ones, twos])
        assert [set(each) for each in b.recv(LONG_S)] == [{1.0}, {2.0}]
        for shape, dtype in ((-1, "f4"), ((2, -1), "f4"), (3, "O"), (3, "nonsense")):
            with pytest.raises(ConfigError):
                a.empty(shape, dtype)


@pytest.mark.parametrize("waits", ["recv", "send"])
def test_a_forked_child_is_not_held_up_by_a_thread_of_its_parent(name: str, waits: str) -> None:
    with ipcbench.connect(name, depth=2, max_bytes=1000) as a, ipcbench.connect(name) as b:
        a.send(0)
        assert b.recv(LONG_S) == 0
        with ThreadPoolExecutor(1) as pool:

            def sends() -> None:
                for _ in range(10):
                    a.send(bytes(900))

            waiting: Any = pool.submit(b.recv if waits == "recv" else sends)
            lock = b._receives if waits == "recv" else a._sends
            assert until(lambda: not lock.acquire(blocking=False) or bool(lock.release()), LONG_S)
            child = os.fork()
            if not child:
                try:
                    for end in (a, b):
                        with pytest.raises(EndpointClosed):
                            end.send(1)
                        with pytest.raises(EndpointClosed):
                            end.recv()
                        end.close()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            if waits == "recv":
                a.send(1)
            else:
                for _ in range(10):
                    b.recv(LONG_S)
            waiting.result(LONG_S)


def test_a_worker_that_comes_when_the_writer_has_left_waits_for_the_next_one(name: str) -> None:
    writer = ipcbench.connect(name, role="writer", pattern="queue", readers=4)
    with ipcbench.connect(name, role="reader") as first:
        writer.send(1, LONG_S)
        assert first.recv(LONG_S) == 1
        writer.close()  # the epoch is still the first worker's
        with pytest.raises(TransportTimeout, match="nobody has made it yet"):
            ipcbench.connect(name, role="reader", timeout_s=0.05)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ipcbench.connect, name, role="reader", timeout_s=LONG_S)
            again = ipcbench.connect(name, role="writer", pattern="queue", readers=4)
            with again, waiting.result(LONG_S) as late:
                again.send(2, LONG_S)
                assert late.recv(LONG_S) == 2
        assert list(first) == []
