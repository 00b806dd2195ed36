"""The gRPC backends against the contract, and that their library interrupts nobody."""

from __future__ import annotations

import json
import os
import signal
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


_READS_AND_FORKS = """
import json, os, signal, sys
from ipcbench import Address, get_backend

address = Address.from_dict(json.loads(sys.argv[1]))
reader = get_backend(address.backend)().open_reader(address, 0)
reader.read(60.0)
if child := os.fork():
    print(child, flush=True)
signal.pause()
"""

_WRITES_AND_CLOSES = """
import json, sys
from ipcbench import Address, get_backend

address = Address.from_dict(json.loads(sys.argv[1]))
with get_backend(address.backend)().open_writer(address) as writer:
    for _ in range(3):
        writer.write(bytes(2**23), 60.0)
    print("written", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("name", ["grpc", "grpc-tcp"])
def test_a_writer_leaves_a_dead_reader_whose_child_keeps_the_connection(name: str, channel_name: str) -> None:
    """Its process would wait for ever for the reader to take the rest."""
    backend = get_backend(name)()
    address = backend.create(ChannelSpec(channel_name, max_message_bytes=2**23))
    text = json.dumps(address.as_dict())

    def started(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, text]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    try:
        with started(_READS_AND_FORKS) as reading, started(_WRITES_AND_CLOSES) as writing:
            assert reading.stdout is not None
            assert writing.stdout is not None
            child = int(reading.stdout.readline())
            try:
                assert writing.stdout.readline() == "written\n"
                reading.kill()
                writing.communicate("\n", timeout=120)
            finally:
                os.kill(child, signal.SIGKILL)
                writing.kill()
        assert writing.returncode == 0
    finally:
        backend.destroy(address)
