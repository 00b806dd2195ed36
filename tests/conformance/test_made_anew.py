"""A channel that is destroyed and made anew under its name: what is left of the old one has no part in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipcbench import get_backend
from ipcbench.backend import Address
from ipcbench.errors import PeerLost, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync import channel_directory, liveness, locks

BACKENDS = ["shm", "lmdb", "pipe", "tcp", "zmq", "zmq-tcp"]
EXAMPLES = Path(__file__).parents[2] / "examples"
CHANNEL = ChannelSpec(f"ipcb-anew-{os.getpid()}", max_message_bytes=64, depth=2)


@pytest.mark.parametrize("name", BACKENDS)
def test_old_endpoints_that_close_leave_the_new_channel_alone(name: str) -> None:
    """A defect: their notes tell the new endpoints that their peers have closed."""
    backend = get_backend(name)()
    address = backend.create(CHANNEL)
    old_writer, old_reader = backend.open_writer(address), backend.open_reader(address, 0)
    backend.destroy(address)
    address = backend.create(CHANNEL)
    with backend.open_writer(address) as writer:
        old_writer.close()
        old_reader.close()
        with backend.open_reader(address, 0) as reader:
            for number in range(5):
                writer.write(b"%d" % number, timeout_s=60.0)
                assert reader.read(timeout_s=60.0) == b"%d" % number
    backend.destroy(address)


@pytest.mark.parametrize("name", ["shm", "lmdb", "zmq", "zmq-tcp"])  # one of pipe is connected to its writer
def test_an_old_reader_that_waits_gets_nothing_of_the_new_channel(name: str) -> None:
    """A defect: it waits as long as the new writer lives, or reads on."""
    backend = get_backend(name)()
    address = backend.create(CHANNEL)
    old_writer, old_reader = backend.open_writer(address), backend.open_reader(address, 0)
    old_writer.write(b"old", timeout_s=60.0)
    assert old_reader.read(timeout_s=60.0) == b"old"
    ends: list[Any] = []

    def wait() -> None:
        try:
            ends.append(bytes(old_reader.read(timeout_s=60.0)))
        except TransportError as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    backend.destroy(address)
    address = backend.create(CHANNEL)
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        for number in range(5):
            writer.write(b"%d" % number, timeout_s=60.0)
            assert reader.read(timeout_s=60.0) == b"%d" % number
        waiting.join()
        assert isinstance(ends[0], PeerLost)
        old_reader.close()
        old_writer.close()
    backend.destroy(address)


@pytest.mark.parametrize("name", ["pipe", "tcp", "zmq", "zmq-tcp"])
def test_an_old_writer_that_waits_for_its_readers_does_not_find_the_new_ones(name: str) -> None:
    backend = get_backend(name)()
    address = backend.create(CHANNEL)
    with backend.open_writer(address) as old_writer:
        backend.destroy(address)
        address = backend.create(CHANNEL)
        with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
            with pytest.raises(PeerLost):
                old_writer.write(b"old", timeout_s=60.0)
            writer.write(b"new", timeout_s=60.0)
            assert reader.read(timeout_s=60.0) == b"new"
    backend.destroy(address)


@pytest.mark.parametrize("name", [*BACKENDS, "null"])
@pytest.mark.parametrize("changes", [{"max_message_bytes": 4096, "depth": 8}, {"delivery": "latest_value"}, {}])
def test_an_address_of_the_old_channel_opens_and_destroys_nothing(name: str, changes: dict[str, Any]) -> None:
    """A defect: a place is spent; where the channel is another one now, messages are torn or lost."""
    backend = get_backend(name)()
    old = backend.create(CHANNEL)
    backend.destroy(old)
    address = backend.create(replace(CHANNEL, **changes))
    with backend.open_reader(address, 0) as reader:
        for open_endpoint in (backend.open_writer, lambda old: backend.open_reader(old, 0)):
            with pytest.raises(TransportError, match=r"made anew by now|only a later one"):
                open_endpoint(old)
        backend.destroy(old)
        with backend.open_writer(address) as writer:
            writer.write(b"new", timeout_s=60.0)
            assert reader.read(timeout_s=60.0) == b"new"
    backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("token", ["", "\n", "\nabc", "\nxxxxxxxx", "\n../12345"])
def test_an_address_without_a_token_is_refused(name: str, token: str) -> None:
    backend = get_backend(name)()
    address = backend.create(CHANNEL)
    broken = replace(address, location=f"{channel_directory(address)}{token}")
    for act in (backend.open_writer, backend.destroy):
        with pytest.raises(TransportError, match="pass the address that `create` returned"):
            act(broken)
    (channel_directory(address) / "made").unlink()
    with pytest.raises(TransportError, match="only half of one"):
        backend.open_writer(address)
    backend.destroy(address)
    assert not channel_directory(address).exists()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("role", ["writer", "reader-0"])
def test_a_channel_that_is_made_anew_while_an_endpoint_opens_is_left_alone(
    name: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here between the lock and all that follows: a defect was that pipe listened in the new channel's folder."""
    backend = get_backend(name)()
    old = backend.create(CHANNEL)
    made: list[Address] = []
    lock = locks.EndpointLock.__init__

    def made_anew(self: locks.EndpointLock, directory: Path, taken: str) -> None:
        lock(self, directory, taken)
        if not made:
            backend.destroy(old)
            made.append(backend.create(CHANNEL))

    monkeypatch.setattr(locks.EndpointLock, "__init__", made_anew)
    with pytest.raises(TransportError, match="made anew by now"):
        backend.open_writer(old) if role == "writer" else backend.open_reader(old, 0)
    (address,) = made
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        writer.write(b"new", timeout_s=60.0)
        assert reader.read(timeout_s=60.0) == b"new"
    backend.destroy(address)


@pytest.mark.parametrize("name", ["pipe", "tcp"])
def test_no_socket_is_found_by_the_path_of_a_later_channel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made anew between the last look and `connect` or `bind`."""
    backend = get_backend(name)()
    old = backend.create(CHANNEL)
    old_writer = backend.open_writer(old)
    monkeypatch.setattr(liveness.Liveness, "is_current", lambda self: True)
    backend.destroy(old)
    address = backend.create(CHANNEL)
    with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
        with pytest.raises(TransportError):
            old_writer.write(b"old", timeout_s=0.3)
        writer.write(b"new", timeout_s=60.0)
        old_writer.close()  # its note is not the new writer's
        assert reader.read(timeout_s=60.0) == b"new"
        writer.write(b"newer", timeout_s=60.0)
        assert reader.read(timeout_s=60.0) == b"newer"
    backend.destroy(address)


_OLD_BESIDE_NEW = """
import sys
from contextlib import suppress
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec

backend, channel = get_backend(sys.argv[1])(), ChannelSpec(sys.argv[2], max_message_bytes=64, depth=2)
old = backend.create(channel)
old_writer = backend.open_writer(old)
old_writer.write(b"old", timeout_s=60.0)
backend.destroy(old)
address = backend.create(channel)
with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
    for number in range(4):
        with suppress(TransportError):
            old_writer.write(b"old", timeout_s=0.0)
        writer.write(b"%d" % number, timeout_s=60.0)
        assert reader.read(timeout_s=60.0) == b"%d" % number
    with suppress(TransportError):
        old_writer.close()
    writer.write(b"last", timeout_s=60.0)
    assert reader.read(timeout_s=60.0) == b"last"
backend.destroy(address)
"""


def test_endpoints_of_the_example_have_no_part_in_a_later_channel() -> None:
    command = [sys.executable, "-c", _OLD_BESIDE_NEW, "ipcbench_file:File", CHANNEL.name]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES / "ipcbench-file")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
