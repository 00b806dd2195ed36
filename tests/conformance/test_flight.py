"""Backend `flight` against the contract, with a reader that is stopped, and what Flight itself does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ipcbench import Address, Writer, get_backend
from ipcbench.errors import EndOfStream, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.agents.client import until
from ipcbench.testing.leaks import traces

flight = pytest.importorskip("pyarrow.flight")

READER = """
import json, sys
from ipcbench import Address, get_backend
from ipcbench.errors import EndOfStream
address = Address.from_dict(json.loads(sys.argv[1]))
with get_backend("flight")().open_reader(address, 0) as reader:
    print(len(reader.read(60.0)), flush=True)
    sys.stdin.readline()
    sizes = []
    try:
        while True:
            sizes.append(len(reader.read(60.0)))
    except EndOfStream:
        print(len(sizes), set(sizes), flush=True)
"""


WRITER = """
import json, sys
from ipcbench import Address, get_backend
with get_backend("flight")().open_writer(Address.from_dict(json.loads(sys.argv[1]))) as writer:
    writer.write(b"first", 60.0)
    print(flush=True)
    sys.stdin.readline()
    for _ in range(2):
        writer.write(bytes(2**22), 60.0)
"""


class TestFlight(ConformanceSuite):
    backend = "flight"


@pytest.fixture
def channel() -> Iterator[Callable[..., Address]]:
    backend, made = get_backend("flight")(), list[Address]()

    def make(depth: int) -> Address:
        name = f"ipcb-flight-{os.getpid()}-{len(made)}"
        made.append(backend.create(ChannelSpec(name, 1, max_message_bytes=2**22, depth=depth)))
        return made[-1]

    yield make
    for address in made:
        backend.destroy(address)
        for thread in threading.enumerate():  # a closed writer may still end its streams
            if thread.name.startswith(address.channel.name):
                thread.join(60.0)
        name = address.channel.name  # its server ends in a thread, too, where a stopped reader held it up
        assert until(lambda name=name: traces(name, [os.getpid()]) == [], 60.0), traces(name, [os.getpid()])


@contextmanager
def running(program: str, address: Address) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, json.dumps(address.as_dict())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def fill(writer: Writer, size: int) -> int:
    """Write until there is no room; return how often."""
    written = 0
    while True:
        try:
            writer.write(bytes(size), 0.2)
        except TransportTimeout:
            return written
        written += 1


@pytest.mark.parametrize(("size", "depth"), [(8, 500), (521, 200), (30_000, 20), (60_000, 20), (2**22, 3)])
def test_a_write_to_a_stopped_reader_ends_by_its_time_out(
    channel: Callable[..., Address], size: int, depth: int
) -> None:
    address = channel(depth)
    with get_backend("flight")().open_writer(address) as writer, running(READER, address) as reader:
        writer.write(bytes(size), 60.0)
        assert line_of(reader) == str(size)
        os.kill(reader.pid, signal.SIGSTOP)
        written = fill(writer, size)
        assert depth - 1 <= written <= depth
        writer.close()
        os.kill(reader.pid, signal.SIGCONT)
        print(file=reader.stdin, flush=True)
        assert line_of(reader) == f"{written} {{{size}}}"


def test_a_read_from_a_stopped_writer_ends_by_its_time_out(channel: Callable[..., Address]) -> None:
    address = channel(4)
    with get_backend("flight")().open_reader(address, 0) as reader, running(WRITER, address) as writer:
        assert reader.read(60.0) == b"first"
        os.kill(writer.pid, signal.SIGSTOP)
        print(file=writer.stdin, flush=True)
        for _ in range(2):
            with pytest.raises(TransportTimeout):
                reader.read(0.2)
        os.kill(writer.pid, signal.SIGCONT)
        assert [len(reader.read(60.0)) for _ in range(2)] == [2**22, 2**22]
        with pytest.raises(EndOfStream):
            reader.read(60.0)


def test_a_writer_ends_beside_a_reader_that_stays_stopped(channel: Callable[..., Address]) -> None:
    address = channel(4)
    with running(READER, address) as reader, running(WRITER, address) as writer:
        assert line_of(reader) == "5"
        assert line_of(writer) == ""
        os.kill(reader.pid, signal.SIGSTOP)
        writer.communicate("\n", timeout=60.0)
        assert writer.returncode == 0


def test_an_endpoint_left_open_does_not_hold_up_the_end_of_its_process(channel: Callable[..., Address]) -> None:
    program = (
        "import json, sys; from ipcbench import Address, get_backend\n"
        "backend, address = get_backend('flight')(), Address.from_dict(json.loads(sys.argv[1]))\n"
        "writer, reader = backend.open_writer(address), backend.open_reader(address, 0)\n"
        "writer.write(b'x', 60.0); reader.read(60.0); writer.write(b'y', 60.0)"
    )
    command = [sys.executable, "-c", program, json.dumps(channel(4).as_dict())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=True)
    assert done.stderr == ""


def test_a_reader_that_leaves_early_prints_nothing(channel: Callable[..., Address]) -> None:
    program = (
        "import json, sys; from ipcbench import Address, get_backend\n"
        "backend, address = get_backend('flight')(), Address.from_dict(json.loads(sys.argv[1]))\n"
        "with backend.open_writer(address) as writer:\n"
        "    with backend.open_reader(address, 0) as reader:\n"
        "        writer.write(b'x', 60.0); reader.read(60.0)\n"
        "    for _ in range(9): writer.write(b'y', 60.0)"
    )
    command = [sys.executable, "-c", program, json.dumps(channel(4).as_dict())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=True)
    assert done.stderr == ""


def test_a_forked_child_of_a_process_that_has_used_flight_cannot_open(channel: Callable[..., Address]) -> None:
    backend, first, second = get_backend("flight")(), channel(2), channel(2)
    with backend.open_writer(first):
        child = os.fork()
        if not child:
            try:
                backend.open_writer(second)
            except TransportError:
                os._exit(3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        with backend.open_reader(second, 0):
            pass


def test_flight_itself_reports_an_empty_message_as_the_end_and_an_absent_server_at_once(tmp_path: Path) -> None:
    class Server(flight.FlightServerBase):  # type: ignore[misc] # whose base is Any
        def do_exchange(self, _context: object, _descriptor: object, _reader: object, writer: Any) -> None:
            for message in (b"first", b"", b"last"):
                writer.write_metadata(message)

    location = f"grpc+unix://{tmp_path}/s"
    whose = flight.FlightDescriptor.for_command(b"")
    with flight.FlightClient(location) as absent, pytest.raises(flight.FlightUnavailableError):
        absent.do_exchange(whose)
    with Server(location), flight.FlightClient(location) as client:
        _, stream = client.do_exchange(whose)
        assert stream.read_chunk().app_metadata == b"first"
        with pytest.raises(StopIteration):
            stream.read_chunk()
        assert stream.read_chunk().app_metadata == b"last"
