"""Many calls, and many deaths of the server: each call gets its own reply, or an error. A part of it runs always."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ipcbench import rpc
from ipcbench.errors import PeerLost
from tests.rpc.soaking import LARGEST_BYTES, call_until
from tests.rpc.test_rpc import LONG_S, files_of, name, process

__all__ = ["name"]  # a fixture

CLIENTS = 8
HOURS = (pytest.mark.soak, pytest.mark.timeout(7200))


@pytest.mark.parametrize("calls", [10_000, pytest.param(1_000_000, marks=HOURS)])
def test_each_reply_is_that_of_its_call(name: str, calls: int) -> None:
    root = Path(__file__).parents[2]
    with process(name, max_bytes=2 * LARGEST_BYTES) as running:
        command = [sys.executable, "-m", "tests.rpc.soaking", name]
        clients = [subprocess.Popen([*command, str(seed), str(calls // CLIENTS)], cwd=root) for seed in range(CLIENTS)]
        try:
            assert [client.wait() for client in clients] == [0] * CLIENTS
        finally:
            for client in clients:
                client.kill()
                client.wait()
        running.send_signal(signal.SIGINT)
        assert running.wait(LONG_S) == 0
    assert not files_of(name)


def submit(client: rpc.Client, more: bytes, number: int) -> Future[Any]:
    return client.submit("echo", number, more)


def call(client: rpc.Client, more: bytes, number: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(client.echo(number, more))
    return future


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=HOURS)])
def test_a_server_that_is_killed_again_and_again(name: str, kills: int) -> None:
    stopping = threading.Event()
    with ThreadPoolExecutor(4) as pool:

        def work(way: Any, size_bytes: int) -> list[int]:
            with rpc.connect(name, timeout_s=LONG_S) as client:
                return call_until(stopping.is_set, partial(way, client, bytes(size_bytes)), PeerLost)

        works = [pool.submit(work, way, size) for way in (submit, call) for size in (0, 50_000)]
        try:
            for _ in range(kills):
                with process(name) as running, rpc.connect(name, timeout_s=LONG_S) as watch:
                    assert watch.pid() == running.pid
                    for _ in range(20):
                        watch.echo(1)
            with process(name) as running:
                with rpc.connect(name, timeout_s=LONG_S) as watch:
                    assert watch.pid() == running.pid
                stopping.set()
                counts = [each.result(LONG_S) for each in works]
                running.send_signal(signal.SIGINT)
                assert running.wait(LONG_S) == 0
        finally:
            stopping.set()
    assert all(right > 0 for right, _ in counts)
    assert sum(lost for _, lost in counts) > 0, "it was killed at work"
    assert not files_of(name)
