"""An endpoint that is dropped without `close` gives back its place and its descriptors; its peers learn of a death."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from ipcbench.errors import PeerLost, TransportError
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.testing.agents.client import until

LIMIT_S = 20.0


@pytest.fixture(params=["shm", "lmdb", "pipe", "zmq"])
def backend(request):
    return get_backend(request.param)()


def drop(endpoints, role: str) -> None:
    del endpoints[role]
    gc.collect()


def drop_both(backend, name: str, delivery: str) -> None:
    address = backend.create(ChannelSpec(name=name, readers=1, max_message_bytes=1000, delivery=delivery))
    try:
        endpoints = {"writer": backend.open_writer(address), "reader": backend.open_reader(address, 0)}
        endpoints["writer"].write(b"x", LIMIT_S)
        assert bytes(endpoints["reader"].read(LIMIT_S)) == b"x"
        with pytest.warns(ResourceWarning, match="dropped without `close`"):
            drop(endpoints, "writer")
        with pytest.raises(PeerLost):
            endpoints["reader"].read(LIMIT_S)
        with pytest.warns(ResourceWarning, match="dropped without `close`"):
            drop(endpoints, "reader")
        with pytest.raises(TransportError, match="was open before"):
            backend.open_writer(address)
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
def test_dropped_endpoints_leave_nothing_open(backend, delivery):
    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    drop_both(backend, f"ipcb-test-{os.getpid()}-first", delivery)  # what a library opens once stays open
    before = held()
    for number in range(3):
        drop_both(backend, f"ipcb-test-{os.getpid()}-{number}", delivery)
    assert until(lambda: held() <= before, LIMIT_S), (before, held())
