"""Hazard slots: whatever a signal handler cuts short, the slot that readers may take next is not written to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from ipcbench import get_backend
from ipcbench.errors import TransportTimeout
from ipcbench.spec import ChannelSpec


class Cut(Exception):
    pass


@pytest.fixture
def channel() -> Iterator[tuple[Any, Any]]:
    backend = get_backend("shm")()
    spec = ChannelSpec(f"ipcb-hazard-{os.getpid()}", max_message_bytes=64, delivery="latest_value")
    address = backend.create(spec)
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        yield writer, reader
    backend.destroy(address)


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_interrupted_announcement_leaves_the_announced_slot_alone(
    channel: tuple[Any, Any], is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = channel
    store = writer._cursors.store_published

    def interrupted(word: int, value: int) -> None:
        if is_stored:
            store(word, value)
        raise Cut

    for number in range(1, 20):
        writer.write(b"%d" % number)
        with monkeypatch.context() as patch:
            patch.setattr(writer._cursors, "store_published", interrupted)
            with pytest.raises(Cut):
                writer.write(b"-%d" % number)
        slot = writer._hazard_slots.free()  # the next write fills it before it announces anything
        view = reader.read(timeout_s=60.0)
        assert view == (b"-%d" % number if is_stored else b"%d" % number)
        writer._entries[slot][0][:2] = b"no"
        assert view == (b"-%d" % number if is_stored else b"%d" % number)


@pytest.mark.parametrize("size", [10, 10_000, 400_000])
def test_a_value_whose_reading_was_interrupted_is_read_next_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect: it counts as read, and the last value written never arrives."""
    backend = get_backend("lmdb")()
    spec = ChannelSpec(f"ipcb-hazard-{os.getpid()}", max_message_bytes=400_000, delivery="latest_value")
    address = backend.create(spec)
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        writer.write(bytes(size))

        def cut(store: object) -> None:
            raise Cut

        with monkeypatch.context() as patch:
            patch.setattr(type(reader._database.near), "snapshot", cut)
            with pytest.raises(Cut):
                reader.read(timeout_s=0)
        assert len(reader.read(timeout_s=0)) == size
        with pytest.raises(TransportTimeout):
            reader.read(timeout_s=0)
    backend.destroy(address)
