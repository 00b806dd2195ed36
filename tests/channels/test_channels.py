"""Channels that processes find by name."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipcbench
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_side_is_an_error_and_its_successor_gets_nothing_old(name: str, backend: str) -> None:
    code = """
channel = ipcbench.connect(sys.argv[1], sys.argv[2])
channel.send(os.getpid())
print("ready", flush=True)
sys.stdin.read()
"""
    with ExitStack() as stack:
        channel = None
        for _ in range(3):
            started = threading.Event()
            pids: list[int] = []

            def live() -> None:
                with other(code, name, backend) as process:
                    pids.append(process.pid)
                    started.set()
                    stopping.wait(LONG_S)

            stopping = threading.Event()
            thread = threading.Thread(target=live)
            thread.start()
            stack.callback(thread.join)
            stack.callback(stopping.set)
            if channel is None:
                channel = stack.enter_context(ipcbench.connect(name, backend, timeout_s=LONG_S))
            else:
                channel.reconnect(LONG_S)
            first = channel.recv(LONG_S)
            assert started.wait(LONG_S)
            assert first == pids[0], "never one that an earlier process has sent"
            channel.send("never read by the next one", LONG_S)
            os.kill(first, signal.SIGKILL)
            with pytest.raises(PeerLost, match=f"'{name}'.*reconnect"):
                channel.recv(LONG_S)
            with pytest.raises(PeerLost, match="reconnect"):
                while True:
                    channel.send(1, LONG_S)
            stopping.set()
            thread.join()


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
    with ipcbench.connect(name, backend, role="writer", delivery="latest_value", readers=2) as writer:
        with ExitStack() as stack:
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


def test_places_are_taken_once(name: str) -> None:
    with ipcbench.connect(name), ipcbench.connect(name):
        with pytest.raises(TransportTimeout, match="living processes"):
            ipcbench.connect(name, timeout_s=0.01)
    with ipcbench.connect(name), ipcbench.connect(name):
        pass


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"backend": "pipe"}, "backend"),
        ({"depth": 4}, "depth"),
        ({"max_bytes": 100}, "max_bytes"),
        ({"pattern": "broadcast", "role": "reader"}, "pattern"),
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
    assert not Rendezvous("at", "x").path.parent.joinpath(f"ipcb-at-{name}").exists()


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
    folder = temporary_folder() / f"ipcb-at-{name}"
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
