"""Backend `pipe` against the contract."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from uuid import uuid4

import numpy as np
import pytest

from ipcbench import ChannelSpec, get_backend
from ipcbench.errors import MessageTooLarge, TransportError, TransportTimeout
from ipcbench.sync.directory import channel_directory, channel_file
from ipcbench.testing import ConformanceSuite


class TestPipe(ConformanceSuite):
    backend = "pipe"


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
