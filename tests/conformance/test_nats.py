"""Backend `nats` against the contract, what NATS itself loses, and what happens when the server dies."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipcbench import Address, get_backend
from ipcbench.backends import nats as nats_backend
from ipcbench.errors import BackendUnavailable, PeerLost, Unsupported
from ipcbench.spec import ChannelSpec
from ipcbench.sync import end_services, start_service
from ipcbench.sync.directory import channel_directory
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.leaks import traces
from tests.conformance.served import WAIT_S, read_for_ever, server_of, write_for_ever

nats = pytest.importorskip("nats")


@pytest.fixture(scope="module", autouse=True)
def loop_runs() -> None:
    """Start the loop of this process, which stays."""
    nats_backend._thread.running()


class TestNats(ConformanceSuite):
    backend = "nats"


def url_of(address: Address) -> str:
    return (channel_directory(address) / "url").read_text()


@pytest.fixture
def address() -> Iterator[Address]:
    backend = get_backend("nats")()
    name = f"ipcb-nats-{os.getpid()}"
    made = backend.create(ChannelSpec(name, 2, max_message_bytes=100_000, depth=4))
    yield made
    backend.destroy(made)
    backend.destroy(made)
    assert traces(name, [os.getpid()]) == []


@pytest.mark.parametrize("moment", ["between", "read", "write"])
def test_when_the_server_is_killed_everybody_loses_it(
    address: Address, moment: str, capfd: pytest.CaptureFixture[str]
) -> None:
    backend, pid = get_backend("nats")(), server_of(address)
    first, second = (backend.open_reader(address, index) for index in range(2))
    with backend.open_writer(address) as writer, first, second:
        writer.write(b"x", timeout_s=WAIT_S)
        assert first.read(timeout_s=WAIT_S) == b"x"
        killer = threading.Timer(0.0 if moment == "between" else 0.3, os.kill, (pid, signal.SIGKILL))
        killer.start()
        if moment == "between":
            killer.join()
        if moment == "read":
            with pytest.raises(PeerLost, match="server"):
                first.read(timeout_s=WAIT_S)
        for _ in range(2):
            with pytest.raises(PeerLost, match="server"):
                write_for_ever(writer)
            with pytest.raises(PeerLost, match="server"):
                read_for_ever(first)
        with pytest.raises(PeerLost, match="server"):
            read_for_ever(second)
        killer.join()
    assert capfd.readouterr() == ("", "")


def test_a_channel_whose_server_has_died_cannot_be_opened(address: Address) -> None:
    pid = server_of(address)
    with get_backend("nats")().open_reader(address, 0) as reader:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PeerLost, match="server"):
            read_for_ever(reader)
    with pytest.raises(PeerLost, match="has died"):
        get_backend("nats")().open_writer(address)


def test_only_who_may_read_the_folder_can_connect(address: Address) -> None:
    folder, url = channel_directory(address), url_of(address)
    modes = {name: (folder / name).stat().st_mode & 0o777 for name in ("url", "nats.conf")}
    assert modes == {"url": 0o600, "nats.conf": 0o600}
    assert "@127.0.0.1:" in url
    assert url not in address.location

    async def connect_without_token() -> None:
        client = nats.aio.client.Client()
        try:
            await client.connect(f"nats://{url.partition('@')[2]}", allow_reconnect=False, error_cb=ignore)
        finally:
            await client.close()

    with pytest.raises(nats.errors.Error, match="uthorization"):
        asyncio.run(connect_without_token())


async def ignore(_: Exception) -> None:
    pass


def test_a_server_that_was_there_is_used_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("nats")()
    host = backend.create(ChannelSpec(f"ipcb-nats-host-{os.getpid()}"))
    url = url_of(host)
    monkeypatch.setenv(nats_backend.SERVER.variable, url)
    address = backend.create(ChannelSpec(f"ipcb-nats-{os.getpid()}", 1, max_message_bytes=100, depth=4))
    monkeypatch.delenv(nats_backend.SERVER.variable)
    with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
        for number in range(9):
            writer.write(bytes([number]), timeout_s=WAIT_S)
            assert reader.read(timeout_s=WAIT_S)[0] == number
    backend.destroy(address)
    os.kill(server_of(host), 0)
    backend.destroy(host)
    monkeypatch.setenv(nats_backend.SERVER.variable, url)
    with pytest.raises(BackendUnavailable, match=f"unset {nats_backend.SERVER.variable}"):
        backend.probe()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[str]:
    """Start a server with little room; yield its URL."""
    file = tmp_path / "conf"
    file.write_text(f'host: 127.0.0.1\nport: -1\nmax_payload: 1000\nmax_pending: 2000\nports_file_dir: "{tmp_path}"\n')
    start_service(
        tmp_path,
        "nats",
        [nats_backend.SERVER.program, "-c", str(file)],
        lambda: any(path.read_text().endswith("}") for path in tmp_path.glob("*.ports")),
    )
    (ports,) = tmp_path.glob("*.ports")
    yield ports.read_text().partition('"nats":["')[2].partition('"')[0]
    end_services(tmp_path)


def test_a_server_that_takes_only_smaller_messages_is_refused(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nats_backend.SERVER.variable, small)
    with pytest.raises(Unsupported, match="max_payload is 1000"):
        get_backend("nats")().create(ChannelSpec(f"ipcb-nats-{os.getpid()}", max_message_bytes=1001))


def test_nats_itself_loses_what_a_slow_subscriber_has_not_taken(small: str) -> None:
    sent = 20_000

    async def publish_to_one_who_does_not_read() -> int:
        closed = asyncio.Event()

        async def lost() -> None:
            closed.set()

        publisher = await nats.connect(small)
        slow = await nats.connect(small, allow_reconnect=False, error_cb=ignore, closed_cb=lost)
        subscription = await slow.subscribe("subject")
        await slow.flush()
        slow._transport._io_writer.transport.pause_reading()
        for _ in range(sent):
            await publisher.publish("subject", bytes(1000))
        await publisher.flush()
        await publisher.close()
        slow._transport._io_writer.transport.resume_reading()
        await asyncio.wait_for(closed.wait(), WAIT_S)
        return int(subscription.delivered)

    assert asyncio.run(publish_to_one_who_does_not_read()) < sent


@pytest.mark.parametrize(
    "url",
    [
        "nats://",
        "nats://t@127.0.0.1:99999",
        "nats://127.0.0.1:0",
        "http://t@127.0.0.1:1",
        "tls://t@127.0.0.1:1",
        "nonsense",
    ],
)
def test_what_is_no_url_is_refused_in_words(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nats_backend.SERVER.variable, url)
    with pytest.raises(BackendUnavailable, match="is not nats://host:port"):
        get_backend("nats").probe()
    with pytest.raises(BackendUnavailable, match="is not nats://host:port"):
        get_backend("nats")().create(ChannelSpec(f"ipcb-nats-{os.getpid()}"))
