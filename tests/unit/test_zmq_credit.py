"""How far a reader over ZeroMQ may be behind: the arithmetic of the window and of its receipts."""

from __future__ import annotations

import pytest

from ipcbench.spec import ChannelSpec

pytest.importorskip("zmq")

from ipcbench.backends.zmq.sockets import credit

MIB = 2**20


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
