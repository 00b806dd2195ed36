"""Backend `redis` against the contract, and what happens when its server dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ipcbench import Address, get_backend
from ipcbench.backends.redis.backend import SERVER
from ipcbench.errors import BackendUnavailable, PeerLost, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_directory
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.agents.client import until
from ipcbench.testing.leaks import traces
from tests.conformance.served import read_for_ever, server_of, write_for_ever

redis = pytest.importorskip("redis")


class TestRedis(ConformanceSuite):
    backend = "redis"


@pytest.fixture
def address() -> Iterator[Address]:
    backend = get_backend("redis")()
    name = f"ipcb-redis-{os.getpid()}"
    made = backend.create(ChannelSpec(name, 2, max_message_bytes=100_000, depth=4))
    yield made
    backend.destroy(made)
    backend.destroy(made)
    assert traces(name, [os.getpid()]) == []


@pytest.mark.parametrize("moment", ["between", "read", "write"])
def test_when_the_server_is_killed_everybody_loses_it(address: Address, moment: str) -> None:
    backend, pid = get_backend("redis")(), server_of(address)
    first, second = (backend.open_reader(address, index) for index in range(2))
    with backend.open_writer(address) as writer, first, second:
        writer.write(b"x", timeout_s=60.0)
        assert first.read(timeout_s=60.0) == b"x"
        killer = threading.Timer(0.0 if moment == "between" else 0.3, os.kill, (pid, signal.SIGKILL))
        killer.start()
        if moment == "between":
            killer.join()
        if moment == "read":
            with pytest.raises(PeerLost, match="server"):
                first.read(timeout_s=60.0)
        for _ in range(2):
            with pytest.raises(PeerLost, match="server"):
                write_for_ever(writer)
            with pytest.raises(PeerLost, match="server"):
                read_for_ever(first)
        with pytest.raises(PeerLost, match="server"):
            second.read(timeout_s=None)
        killer.join()


def test_a_server_that_was_there_is_used_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("redis")()
    host = backend.create(ChannelSpec(f"ipcb-redis-host-{os.getpid()}"))
    url = f"unix://{channel_directory(host)}/redis"
    monkeypatch.setenv(SERVER.variable, url)
    mine = redis.from_url(url)
    mine.set("mine", "stays")
    address = backend.create(ChannelSpec(f"ipcb-redis-{os.getpid()}", 2, max_message_bytes=100, depth=4))
    monkeypatch.delenv(SERVER.variable)
    assert url not in address.location
    with backend.open_writer(address) as writer, backend.open_reader(address, 1) as reader:
        for number in range(3):
            writer.write(bytes([number]), timeout_s=60.0)
            assert reader.read(timeout_s=60.0)[0] == number
        names = {client["name"] for client in mine.client_list()}
        assert f"{address.channel.name}:reader-1" in names
        assert any(address.channel.name.encode() in key for key in mine.scan_iter())
    backend.destroy(address)
    assert mine.keys() == [b"mine"]
    mine.close()
    backend.destroy(host)
    monkeypatch.setenv(SERVER.variable, url)
    with pytest.raises(BackendUnavailable, match=f"unset {SERVER.variable}"):
        backend.probe()


def test_a_closed_reader_holds_nobody_up_and_keeps_no_messages(address: Address) -> None:
    backend = get_backend("redis")()
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        with backend.open_reader(address, 1):
            pass
        for number in range(100):
            writer.write(bytes([number]), timeout_s=60.0)
            assert reader.read(timeout_s=60.0)[0] == number
        with redis.Redis(unix_socket_path=f"{channel_directory(address)}/redis") as client:
            (key,) = client.scan_iter("*messages")
            assert client.xlen(key) <= 5  # which the writer does not know to have been read


@pytest.mark.parametrize("readers", [1, 2])
def test_after_a_refused_message_readers_get_what_came_before_and_no_more(readers: int) -> None:
    """Later ones were delivered, and an end of the stream: one was missing, and no reader knew."""
    backend = get_backend("redis")()
    address = backend.create(ChannelSpec(f"ipcb-redis-{os.getpid()}", readers, max_message_bytes=100, depth=64))
    try:
        with ExitStack() as held:
            writer = backend.open_writer(address)
            held.callback(writer.let_go)
            opened = [held.enter_context(backend.open_reader(address, index)) for index in range(readers)]
            server = held.enter_context(redis.Redis(unix_socket_path=f"{channel_directory(address)}/redis"))

            writer.write(b"before", timeout_s=60.0)
            assert until(lambda: [*server.scan_iter("*messages")], 60.0)
            server.config_set("maxmemory", 1)
            writer.write(b"refused", timeout_s=60.0)
            assert until(lambda: "errorstat_OOM" in server.info("errorstats"), 60.0)
            server.config_set("maxmemory", 0)
            (key,) = server.scan_iter("*messages")
            server.xadd(key, {"message": "after"}, id="3-0")  # as from a writer that does not know yet
            with pytest.raises(TransportError, match="refuses"):
                writer.close()
            for reader in opened:
                assert reader.read(timeout_s=60.0) == b"before"
                for _ in range(2):
                    with pytest.raises(PeerLost):
                        reader.read(timeout_s=60.0)
    finally:
        backend.destroy(address)
