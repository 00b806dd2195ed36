"""Backend `lmdb` against the contract, and what only a database can get wrong."""

from __future__ import annotations

import os

import numpy as np
import pytest

from ipcbench import get_backend
from ipcbench.backend import Delivery
from ipcbench.backends.lmdb.database import BULK_BYTES
from ipcbench.errors import EndpointClosed, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.testing import ConformanceSuite

BIG = 4_000_000


class TestLmdb(ConformanceSuite):
    backend = "lmdb"


@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
def test_a_large_message_fits_after_any_number_of_small_ones(delivery: Delivery) -> None:
    """A defect: the free pages of one database are parted by its own lists of them, and no run is long enough."""
    backend = get_backend("lmdb")()
    channel = ChannelSpec(f"ipcb-lmdb-{os.getpid()}", max_message_bytes=BIG, delivery=delivery, depth=16)
    address = backend.create(channel)
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            for _ in range(15):
                for message in (*10_000 * [b"small"], bytes(BIG)):
                    writer.write(message, timeout_s=60.0)
                    assert len(reader.read(timeout_s=60.0)) == len(message)
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
def test_messages_on_both_sides_of_the_limit_take_each_others_places(delivery: Delivery) -> None:
    """A key that held bulk holds a small message next, or none; and a view of either stays as it is."""
    backend = get_backend("lmdb")()
    channel = ChannelSpec(f"ipcb-lmdb-{os.getpid()}", 2, max_message_bytes=2 * BULK_BYTES, delivery=delivery, depth=3)
    address = backend.create(channel)
    sizes = [BULK_BYTES, BULK_BYTES + 1, 0, 2 * BULK_BYTES, 2 * BULK_BYTES, 5, BULK_BYTES + 1]
    try:
        with (
            backend.open_writer(address) as writer,
            backend.open_reader(address, 0) as first,
            backend.open_reader(address, 1) as second,
        ):
            for number in range(70):
                message = bytes([number]) * sizes[number % len(sizes)]
                writer.write(message, timeout_s=60.0)
                view = first.read(timeout_s=60.0)
                if number % 5:
                    assert second.read(timeout_s=60.0) == message
                assert view == message
                if delivery == "every_message" and not number % 5:
                    assert second.read(timeout_s=60.0) == message
    finally:
        backend.destroy(address)


def test_arrays_that_outlive_their_reader_keep_no_database_for_ever() -> None:
    backend = get_backend("lmdb")()
    fds = []
    for number in range(8):
        address = backend.create(ChannelSpec(f"ipcb-lmdb-{os.getpid()}-{number}", max_message_bytes=65536, depth=4))
        writer, reader = backend.open_writer(address), backend.open_reader(address, 0)
        writer.write(bytes([number]) * 60_000)
        view = reader.read(timeout_s=60.0)
        array = np.frombuffer(view, np.uint8) if number < 7 else None
        reader.close()
        writer.close()
        backend.destroy(address)
        assert array is None or array[-1] == number  # its memory is still there
        del array, view
        fds.append(len(os.listdir("/proc/self/fd")))
    assert fds[6] <= fds[1]


def test_interrupted_messages_of_bulk_take_no_room_from_a_reader_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect: the reader keeps a snapshot of bulk it is done with, so the pages of each attempt are lost."""
    backend = get_backend("lmdb")()
    address = backend.create(ChannelSpec(f"ipcb-lmdb-{os.getpid()}", max_message_bytes=2**20, depth=4))

    def cut(*_: object) -> bool:
        raise KeyboardInterrupt

    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        writer.write(bytes(2**20), timeout_s=60.0)
        assert len(reader.read(timeout_s=60.0)) == 2**20
        with pytest.raises(TransportTimeout):
            reader.read(timeout_s=0)
        with monkeypatch.context() as patch:
            patch.setattr(type(writer._database.near), "delete", cut)
            for _ in range(20):
                with pytest.raises(KeyboardInterrupt):
                    writer.write(bytes(2**20), timeout_s=60.0)
        writer.write(b"x" * 2**20, timeout_s=60.0)
        assert bytes(reader.read(timeout_s=60.0)) == b"x" * 2**20
    backend.destroy(address)


@pytest.mark.parametrize("size", [0, 100_000, BULK_BYTES + 1])
@pytest.mark.parametrize("written", [0, 1])
def test_nothing_is_written_after_close(size: int, written: int) -> None:
    backend = get_backend("lmdb")()
    address = backend.create(ChannelSpec(f"ipcb-lmdb-{os.getpid()}", max_message_bytes=2**20, depth=4))
    with backend.open_writer(address) as writer:
        for _ in range(written):
            writer.write(bytes(size), timeout_s=60.0)
        writer.close()
        with pytest.raises(EndpointClosed):
            writer.write(bytes(size), timeout_s=0)
    backend.destroy(address)
