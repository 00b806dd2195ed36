"""A signal that comes while a ZeroMQ context terminates."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

zmq = pytest.importorskip("zmq")

from ipcbench.backends.zmq.sockets import terminate  # noqa: E402

LIMIT_S = 60.0


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("handled")
def test_a_context_terminates_to_the_end_whatever_signals_come() -> None:
    """pyzmq took it for terminated, and left five descriptors and a thread."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    ending = threading.Thread(target=terminate, args=(context,), daemon=True)
    ending.start()
    try:
        for _ in range(50):
            assert ending.is_alive()
            signal.pthread_kill(ending.ident, signal.SIGUSR1)
            ending.join(0.01)
    finally:
        socket.close(0)
        ending.join(LIMIT_S)
    assert not ending.is_alive()
