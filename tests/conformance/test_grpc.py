"""The gRPC backends against the contract, and that their library interrupts nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from ipcbench import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.testing import ConformanceSuite


class TestGrpc(ConformanceSuite):
    backend = "grpc"


class TestGrpcTcp(ConformanceSuite):
    backend = "grpc-tcp"


_INTERRUPTED_IN_A_JOIN = """
import json, signal, sys, threading
from ipcbench import Address, get_backend
from ipcbench.errors import EndOfStream


class Interrupt(Exception):
    pass


def interrupt(_, frame):
    while frame is not None:
        if frame.f_code is threading.Thread.join.__code__:
            raise Interrupt
        frame = frame.f_back


signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
for text in sys.argv[1:]:
    address = Address.from_dict(json.loads(text))
    with get_backend(address.backend)().open_reader(address, 0) as reader:
        try:
            while True:
                reader.read(60.0)
        except EndOfStream:
            pass
signal.setitimer(signal.ITIMER_REAL, 0)
"""


_WRITES = """
import json, sys
from ipcbench import Address, get_backend

for text in sys.argv[1:]:
    address = Address.from_dict(json.loads(text))
    with get_backend(address.backend)().open_writer(address) as writer:
        writer.write(b"x", 60.0)
"""


@pytest.mark.parametrize("name", ["grpc", "grpc-tcp"])
def test_no_call_waits_for_a_thread_of_the_library(name: str) -> None:
    """Who frees the last channel would, and an interrupt in it can only be printed."""
    backend = get_backend(name)()
    addresses = [backend.create(ChannelSpec(f"ipcb-join-{os.getpid()}-{number}")) for number in range(20)]
    texts = [json.dumps(address.as_dict()) for address in addresses]
    with ExitStack() as undo:
        for address in addresses:
            undo.callback(backend.destroy, address)
        writing = undo.enter_context(subprocess.Popen([sys.executable, "-c", _WRITES, *texts]))
        command = [sys.executable, "-c", _INTERRUPTED_IN_A_JOIN, *texts]
        reading = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert writing.wait(60) == 0
    assert (reading.returncode, reading.stderr) == (0, "")
