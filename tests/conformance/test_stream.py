"""Backends `pipe` and `tcp` against the contract."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from ipcbench import ChannelSpec, get_backend
from ipcbench.backend import Address
from ipcbench.errors import EndOfStream, EndpointClosed, MessageTooLarge, PeerLost, TransportError, TransportTimeout
from ipcbench.sync.directory import channel_directory, channel_file
from ipcbench.testing import ConformanceSuite


class TestPipe(ConformanceSuite):
    backend = "pipe"


class TestTcp(ConformanceSuite):
    backend = "tcp"


@pytest.mark.parametrize("count", [3, 100_000])
def test_an_array_is_its_bytes(count: int) -> None:
    """The length of an array is its items': a frame of that length would corrupt all that follows."""
    values = np.arange(count, dtype=np.float64)
    backend = get_backend("pipe")()
    address = backend.create(ChannelSpec(f"ipcb-array-{uuid4().hex[:8]}", readers=1, max_message_bytes=values.nbytes))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            for message, expected in ((values, values.tobytes()), (b"next", b"next")):
                writer.write(message, timeout_s=30.0)
                assert bytes(reader.read(timeout_s=30.0)) == expected
            with pytest.raises(MessageTooLarge):
                writer.write(np.arange(count + 1, dtype=np.float64), timeout_s=30.0)
    finally:
        backend.destroy(address)


def test_a_reader_whose_queue_of_connections_is_full_does_not_hold_up_the_writer() -> None:
    backend = get_backend("pipe")()
    address = backend.create(ChannelSpec(f"ipcb-full-{uuid4().hex[:8]}", readers=1))
    place = str(channel_file(address, "reader-0"))
    try:
        with backend.open_reader(address, 0), backend.open_writer(address) as writer, ExitStack() as strangers:
            with suppress(BlockingIOError):
                for _ in range(1000):
                    stranger = strangers.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                    stranger.setblocking(False)
                    stranger.connect(place)
            with pytest.raises(TransportTimeout):
                writer.write(b"message", timeout_s=0.2)
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("name", ["pipe", "tcp"])
def test_a_writer_whose_reader_turns_out_to_be_dead_at_its_close_is_closed(name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(ChannelSpec(f"ipcb-dead-{uuid4().hex[:8]}", readers=1, max_message_bytes=2**24))
    code = (
        "import json, os, sys\n"
        "from ipcbench import Address, get_backend\n"
        "address = Address.from_dict(json.loads(sys.argv[1]))\n"
        "reader = get_backend(address.backend)().open_reader(address, 0)\n"
        "reader.read(30)\n"
        "sys.stdin.read()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    try:
        command = [sys.executable, "-c", code, json.dumps(address.as_dict())]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as dying:
            writer = backend.open_writer(address)
            writer.write(b"first", timeout_s=30.0)
            writer.write(bytes(2**24), timeout_s=0.0)  # of which a thread sends the rest
            dying.communicate()
        writer.close()
        assert writer.closed
        with pytest.raises(EndpointClosed):
            writer.write(b"more", timeout_s=0.0)
    finally:
        backend.destroy(address)


def test_junk_on_the_socket_of_a_reader_is_no_message() -> None:
    backend = get_backend("pipe")()
    address = backend.create(ChannelSpec(f"ipcb-junk-{uuid4().hex[:8]}", readers=1))
    try:
        with backend.open_reader(address, 0) as reader, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(str(channel_file(address, "reader-0")))
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            for _ in range(2):
                with pytest.raises(TransportError, match="another program writes to channel"):
                    reader.read(timeout_s=30.0)
    finally:
        backend.destroy(address)


def test_a_reader_listens_when_nothing_can_refuse_it_any_more(
    channel_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer may connect at once, and would take what it writes to a refused reader for delivered."""
    listened: list[int] = []
    monkeypatch.setattr(socket.socket, "listen", lambda _, count: listened.append(count))
    backend = get_backend("pipe")()
    address = backend.create(ChannelSpec(channel_name, readers=1))
    try:
        (channel_directory(address) / "writer.bell").unlink()
        with pytest.raises(TransportError, match="no doorbell"):
            backend.open_reader(address, 0)
        assert listened == []
    finally:
        backend.destroy(address)


def tcp_place(address: Address) -> tuple[str, int]:
    host, port, _ = (channel_file(address, "reader-0")).read_text().split()
    return host, int(port)


def test_a_reader_of_tcp_takes_only_its_writer_for_the_writer(channel_name: str) -> None:
    """Whoever knows no secret is refused, whether silent, talkative or gone, before and after the writer connects."""
    backend = get_backend("tcp")()
    address = backend.create(ChannelSpec(channel_name, readers=1))
    with ExitStack() as strangers:
        try:
            with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
                for said in (b"", b"x" * 16, b"GET / HTTP/1.0\r\n\r\n", None):
                    stranger = strangers.enter_context(socket.create_connection(tcp_place(address)))
                    if said is None:
                        stranger.close()
                    else:
                        stranger.sendall(said)
                with pytest.raises(TransportTimeout):
                    reader.read(timeout_s=0.2)
                for number in range(3):
                    writer.write(b"%d" % number, timeout_s=30.0)
                    while True:
                        with suppress(TransportTimeout):  # some of them are still waited for
                            assert bytes(reader.read(timeout_s=1.0)) == b"%d" % number
                            break
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(tcp_place(address))
        finally:
            backend.destroy(address)


def test_the_end_of_a_stream_of_tcp_survives_unread_receipts(channel_name: str) -> None:
    """To close a connection on which something was not read resets it."""
    backend = get_backend("tcp")()
    address = backend.create(ChannelSpec(channel_name, readers=1, depth=64))
    payload = bytes(2**18)
    try:
        with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
            for _ in range(40):
                writer.write(payload, timeout_s=30.0)
            for _ in range(20):  # each of which sends a receipt
                assert reader.read(timeout_s=30.0) == payload
            writer.close()
            for _ in range(20):
                assert reader.read(timeout_s=30.0) == payload
            with pytest.raises(EndOfStream):
                reader.read(timeout_s=30.0)
    finally:
        backend.destroy(address)


def test_tcp_without_ipv4(channel_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_server = socket.create_server

    def without_ipv4(place: tuple[str, int], **options: Any) -> socket.socket:
        if "." in place[0]:
            raise OSError(errno.EADDRNOTAVAIL, "no such address here")
        return create_server(place, **options)

    monkeypatch.setattr(socket, "create_server", without_ipv4)
    backend = get_backend("tcp")()
    address = backend.create(ChannelSpec(channel_name, readers=1))
    try:
        with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
            assert tcp_place(address)[0] == "::1"
            writer.write(b"message", timeout_s=30.0)
            assert bytes(reader.read(timeout_s=30.0)) == b"message"
    except OSError:
        pytest.skip("there is no IPv6 here")
    finally:
        backend.destroy(address)


def test_strangers_do_not_prolong_a_time_out_of_tcp(channel_name: str) -> None:
    backend = get_backend("tcp")()
    address = backend.create(ChannelSpec(channel_name, readers=1))
    with ExitStack() as strangers, backend.open_reader(address, 0) as reader:
        for _ in range(8):
            strangers.enter_context(socket.create_connection(tcp_place(address)))
        with pytest.raises(TransportTimeout):
            reader.read(0.0)
        with backend.open_writer(address) as writer:
            writer.write(b"message", 30.0)
            assert reader.read(30.0) == b"message"
            assert len(reader._knocking) == 0  # nobody waited for them to say something
    backend.destroy(address)


_DIES = """
import json, os, sys
from ipcbench import get_backend
from ipcbench.backend import Address
reader = get_backend("tcp")().open_reader(Address.from_dict(json.loads(sys.argv[1])), 0)
print("open", flush=True)
sys.stdin.readline()
os._exit(1)
"""


def test_a_program_at_the_port_of_a_dead_reader_of_tcp_is_not_taken_for_it(channel_name: str) -> None:
    backend = get_backend("tcp")()
    address = backend.create(ChannelSpec(channel_name, readers=1))
    command = [sys.executable, "-c", _DIES, json.dumps(address.as_dict())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdout.readline()
        place = tcp_place(address)
        reader.stdin.close()
    with socket.create_server(place) as stranger, backend.open_writer(address) as writer:
        with pytest.raises(PeerLost):
            writer.write(b"secret", 30.0)
        stranger.setblocking(False)
        with suppress(BlockingIOError), stranger.accept()[0] as connected:
            assert connected.recv(100) == b""
    backend.destroy(address)
