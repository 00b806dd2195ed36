"""Long streams between processes: nothing is torn, repeated or older, however fast the writer is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from ipcbench.backend import Address
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from tests.end_to_end.shell import ROOT

LIMIT_S = 280
SOUND = {"torn": 0, "repeated": 0, "backwards": 0}
LATEST_READS = 10**6
SIZES = (0, 1, 7, 100, 4096, 65_536, 2**20, 16 * 2**20, 64 * 2**20)


@contextmanager
def channel(backend: str, spec: ChannelSpec) -> Iterator[Address]:
    maker = get_backend(backend)()
    address = maker.create(spec)
    try:
        yield address
    finally:
        maker.destroy(address)


def start(address: Address, role: str, index: int, count: int, sizes: tuple[int, ...]) -> subprocess.Popen[str]:
    arguments = [role, json.dumps(address.as_dict()), str(index), str(count), *map(str, sizes)]
    command = [sys.executable, "-m", "tests.conformance.streams", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    """Wait for an endpoint, and return what a reader found."""
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    return json.loads(said) if said else {}


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("reads", [LATEST_READS // 50, pytest.param(LATEST_READS, marks=pytest.mark.soak)])
@pytest.mark.parametrize("size", [4096, 65_536])
@pytest.mark.parametrize("backend", ["shm", "lmdb"])
def test_latest_values_under_a_writer_at_full_speed_are_whole_and_new(
    backend: str, size: int, reads: int, channel_name: str
) -> None:
    spec = ChannelSpec(channel_name, max_message_bytes=size, delivery="latest_value")
    with channel(backend, spec) as address, ExitStack() as ends:
        writer = ends.enter_context(start(address, "write", 0, 0, (size,)))
        ends.callback(writer.kill)
        reader = ends.enter_context(start(address, "read", 0, reads, (size,)))
        ends.callback(reader.kill)
        assert finish(reader) == {"read": reads, **SOUND}
        finish(writer)


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize(
    ("readers", "most_bytes"),
    [
        (1, 2**20),
        (3, 65_536),
        *(pytest.param(readers, SIZES[-1], marks=pytest.mark.soak) for readers in (1, 3, 7)),
    ],
)
@pytest.mark.parametrize("backend", ["shm", "lmdb", "pipe", "zmq"])
def test_a_writer_that_overwrites_its_buffer_after_each_write_spoils_nothing(
    backend: str, readers: int, most_bytes: int, channel_name: str
) -> None:
    sizes = tuple(size for size in SIZES if size <= most_bytes)
    count = 3 * len(sizes)
    spec = ChannelSpec(channel_name, readers=readers, max_message_bytes=most_bytes, depth=4)
    with channel(backend, spec) as address, ExitStack() as ends:
        every = [start(address, "read", index, 0, sizes) for index in range(readers)]
        every.append(start(address, "write", 0, count, sizes))
        for process in every:
            ends.enter_context(process)
            ends.callback(process.kill)
        *found, _ = [finish(process) for process in every]
        assert found == [{"read": count, **SOUND}] * readers
