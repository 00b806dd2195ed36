"""How far a reader over ZeroMQ may be behind: the arithmetic of the window and of its receipts; and what it keeps."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from ipcbench.errors import TransportError
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec

pytest.importorskip("zmq")

from ipcbench.backends.zmq.sockets import credit

MIB = 2**20


@pytest.fixture
def garbage_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def window(size_bytes: int, depth: int) -> tuple[int, int]:
    return credit(ChannelSpec("ipcb-credit", max_message_bytes=size_bytes, depth=depth))


@pytest.mark.parametrize("depth", [2, 16, 64, 1000, 5000])
@pytest.mark.parametrize("size_bytes", [0, 1, 521, 5_105, 55_039, 577_129, MIB, 2**26])
def test_the_window_never_stalls_a_reader_that_reads(size_bytes: int, depth: int) -> None:
    """A defect: with fewer messages than a batch under way, no receipt comes and the writer waits forever."""
    count, batch = window(size_bytes, depth)
    assert count >= batch >= 1


@pytest.mark.parametrize("depth", [2, 16, 1000, 5000])
def test_a_channel_of_small_messages_holds_depth_of_them(depth: int) -> None:
    """Even when every reader has just not sent its receipt. A defect: a limit in bytes or messages below `depth`."""
    count, batch = window(64, depth)
    assert count - (batch - 1) >= depth


@pytest.mark.parametrize("size_bytes", [5_105, 55_039, 144_282])
def test_the_window_is_about_2_mib(size_bytes: int) -> None:
    """A defect: more bytes under way than the heap keeps, which costs page faults; or too few to fill a time slice."""
    count, _ = window(size_bytes, 64)
    assert MIB <= count * size_bytes <= 2 * MIB


@pytest.mark.parametrize("size_bytes", [577_129, MIB, 2**26])
def test_large_messages_have_few_places_and_prompt_receipts(size_bytes: int) -> None:
    """A defect: a receipt that comes only after several large messages leaves the writer idle."""
    assert window(size_bytes, 64) == (4, 1)
    assert window(size_bytes, 2) == (2, 1)


@pytest.mark.parametrize("backend_name", ["zmq", "zmq-tcp"])
def test_a_message_that_was_waited_for_is_not_kept(backend_name: str, garbage_off: None) -> None:
    """A defect: the error of a look in vain kept the frames of the call, and they the message, until a collection."""
    backend = get_backend(backend_name)()
    address = backend.create(ChannelSpec(f"ipcb-kept-{os.getpid()}", max_message_bytes=MIB))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            tracemalloc.start()
            for _ in range(4):
                late = threading.Timer(0.15, writer.write, (bytes(30_000),))
                late.start()
                assert len(reader.read()) == 30_000
                late.join()
            assert tracemalloc.get_traced_memory()[0] < 3 * 30_000
    finally:
        tracemalloc.stop()
        backend.destroy(address)


@pytest.mark.parametrize("place", ["_handle_receipt", "_handle_report"])
def test_what_a_handler_keeps_from_being_counted_fails_the_writer(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect: the receipt is lost without a word, and the writer waits for it in vain at every later `write`."""
    backend = get_backend("zmq")()
    address = backend.create(ChannelSpec(f"ipcb-credit-{os.getpid()}", max_message_bytes=64))

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with backend.open_writer(address) as writer, backend.open_reader(address, 0):
        with monkeypatch.context() as patch:
            patch.setattr(writer, place, cut)
            with pytest.raises(KeyboardInterrupt):
                writer.write(b"x", timeout_s=60.0)
        with pytest.raises(TransportError, match="interrupted by KeyboardInterrupt"):
            writer.write(b"x", timeout_s=60.0)
    backend.destroy(address)
