"""The ZeroMQ backends against the contract."""

from __future__ import annotations

import os
import stat

import pytest
import zmq

from ipcbench.errors import TransportError, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_directory
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.agents.client import until


class TestZmq(ConformanceSuite):
    backend = "zmq"


class TestZmqTcp(ConformanceSuite):
    backend = "zmq-tcp"


class TestZmqTcpInsecure(ConformanceSuite):
    backend = "zmq-tcp-insecure"


@pytest.mark.parametrize("damaged", [b"", b"one", b"'" * 40 + b"\n" + b"'" * 40], ids=["empty", "half", "no keys"])
def test_damaged_keys_are_one_clear_error_and_nothing_stays_open(damaged: bytes) -> None:
    backend = get_backend("zmq-tcp")()
    address = backend.create(ChannelSpec("ipcb-damaged", readers=1))
    try:
        (channel_directory(address) / "keys").write_bytes(damaged)
        descriptors, threads = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))
        for _ in range(3):
            with pytest.raises(TransportError, match=r"its keys in .* cannot be used .*create it anew"):
                backend.open_writer(address)
            with pytest.raises(TransportError, match=r"its keys in .* cannot be used .*create it anew"):
                backend.open_reader(address, 0)
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert until(lambda: len(os.listdir("/proc/self/task")) <= threads, 60.0), "some may be about to end"
    finally:
        backend.destroy(address)


def test_a_stranger_neither_reads_over_tcp_nor_counts_as_a_reader() -> None:
    """Whoever has the ports, but not the key in the channel's directory."""
    backend = get_backend("zmq-tcp")()
    address = backend.create(ChannelSpec("ipcb-stranger", readers=1))
    context = zmq.Context()
    try:
        keys = channel_directory(address) / "keys"
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600
        assert keys.read_bytes().split()[1].decode() not in str(address)
        strangers = [context.socket(zmq.SUB) for _ in range(2)]
        wrong = strangers[1]
        wrong.curve_publickey, wrong.curve_secretkey = wrong.curve_serverkey, _ = zmq.curve_keypair()
        for stranger in strangers:
            stranger.connect(address.location.splitlines()[2])
            stranger.subscribe(b"")
            stranger.subscribe(b"reader-0")
        with backend.open_writer(address) as writer:
            with pytest.raises(TransportTimeout):
                writer.write(b"too early", 0.5)
            with backend.open_reader(address, 0) as reader:
                writer.write(b"secret", 30.0)
                assert bytes(reader.read(30.0)) == b"secret"
                assert [stranger.poll(100) for stranger in strangers] == [0, 0]
    finally:
        context.destroy(0)
        backend.destroy(address)


def test_a_reader_takes_nothing_from_a_stranger_at_the_writers_port() -> None:
    backend = get_backend("zmq-tcp")()
    address = backend.create(ChannelSpec("ipcb-squatter", readers=1))
    context = zmq.Context()
    try:
        squatter = context.socket(zmq.XPUB)
        squatter.bind(address.location.splitlines()[2])
        with backend.open_reader(address, 0) as reader:
            squatter.send(b"false")
            with pytest.raises(TransportTimeout):
                reader.read(0.5)
        assert squatter.poll(0) == 0
    finally:
        context.destroy(0)
        backend.destroy(address)


def test_junk_on_the_channel_is_ignored() -> None:
    """Only processes of the same user can reach the sockets of `zmq`; what they send must not end the stream."""
    backend = get_backend("zmq")()
    address = backend.create(ChannelSpec("ipcb-junk", readers=1))
    context = zmq.Context()
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            writer.write(b"first", 30.0)
            reader.read(30.0)
            stranger = context.socket(zmq.SUB)
            (place,) = channel_directory(address).glob("messages-*")
            stranger.connect(f"ipc://{place}")
            stranger.subscribe(b"\x82\xff")
            stranger.subscribe(b"m")
            number = 0
            while not stranger.poll(0):  # until it is subscribed to both; the writer handles reports now and then
                number += 1
                writer.write(b"m%d" % number, 30.0)
                reader.read(30.0)
            stranger.unsubscribe(b"\x82\xff")
            for number in range(3000):
                writer.write(b"m%d" % number, 30.0)
                reader.read(30.0)
    finally:
        context.destroy(0)
        backend.destroy(address)
