"""Backend `shm` against the contract."""

from __future__ import annotations

import os

import pytest

from ipcbench.errors import TransportError
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec, Delivery
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.leaks import SHARED_MEMORY


class TestShm(ConformanceSuite):
    backend = "shm"


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this system has no /dev/shm")
@pytest.mark.parametrize("size_bytes", [64, 2**16])
@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
def test_a_segment_that_was_cut_short_is_one_clear_error(
    channel_name: str, delivery: Delivery, size_bytes: int
) -> None:
    backend = get_backend("shm")()
    address = backend.create(ChannelSpec(channel_name, delivery=delivery))
    try:
        os.truncate(SHARED_MEMORY / channel_name, size_bytes)
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            with pytest.raises(TransportError, match=f"has {size_bytes:,} bytes, and needs .* create it anew"):
                backend.open_writer(address)
            with pytest.raises(TransportError, match="create it anew"):
                backend.open_reader(address, 0)
        assert len(os.listdir("/proc/self/fd")) <= descriptors
    finally:
        backend.destroy(address)
