"""Backend `iox2` against the contract, and what iceoryx2 does by itself that would break it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from ctypes import c_uint8
from pathlib import Path

import numpy as np
import pytest

from ipcbench import get_backend
from ipcbench.errors import TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync import channel_directory
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.leaks import SHARED_MEMORY, files

iox = pytest.importorskip("iceoryx2")


class TestIox2(ConformanceSuite):
    backend = "iox2"


def test_a_full_subscriber_loses_samples_in_silence(channel_name: str, tmp_path: Path) -> None:
    """iceoryx2 alone: nothing is raised; only the number of subscribers that `send` returns tells."""
    config = iox.config.default()
    config.global_cfg.prefix = iox.FileName.new(f"{channel_name}-")
    config.global_cfg.root_path = iox.Path.new(f"{tmp_path}/")
    builder = iox.NodeBuilder.new().config(config).signal_handling_mode(iox.SignalHandlingMode.Disabled)
    node = builder.create(iox.ServiceType.Ipc)
    try:
        service = (
            node.service_builder(iox.ServiceName.new("messages"))
            .publish_subscribe(iox.Slice[c_uint8])
            .enable_safe_overflow(False)
            .history_size(0)
            .subscriber_max_buffer_size(2)
            .open_or_create()
        )
        discard = iox.BackpressureStrategy.DiscardData
        publisher = service.publisher_builder().backpressure_strategy(discard).initial_max_slice_len(4).create()
        subscriber = service.subscriber_builder().create()
        reached = [publisher.loan_slice_uninit(size).assume_init().send() for size in (1, 2, 3, 4)]
        assert reached == [1, 1, 0, 0]
        got = [subscriber.receive() for _ in range(2)]
        assert [sample.payload().len() for sample in got] == [1, 2]
        assert subscriber.receive() is None
    finally:
        for path in SHARED_MEMORY.glob(f"{channel_name}*"):
            path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to mount a small /dev/shm")
def test_without_room_for_its_messages_a_channel_is_refused() -> None:
    """The system killed the process, which touched memory that was not there."""
    program = (
        "import ipcbench; from ipcbench.spec import ChannelSpec; from ipcbench.errors import TransportError\n"
        "try: ipcbench.get_backend('iox2')().create(ChannelSpec('ipcb-iox2-full'))\n"
        "except TransportError as error: print(error)"
    )
    mounted = f'mount -t tmpfs -o size=200k none /dev/shm && exec "{sys.executable}" -c "{program}"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(done.stderr)
    assert (done.returncode, "MB of /dev/shm" in done.stdout) == (0, True), (done.returncode, done.stdout, done.stderr)


def test_only_the_owner_can_open_what_a_channel_has(channel_name: str) -> None:
    backend = get_backend("iox2")()
    address = backend.create(ChannelSpec(channel_name))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            writer.write(b"x")
            assert bytes(reader.read(1.0)) == b"x"
            segments = list(SHARED_MEMORY.glob(f"{channel_name}*"))
            assert len(segments) >= 4
            assert not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in segments)
            assert stat.S_IMODE(channel_directory(address).stat().st_mode) & 0o077 == 0
    finally:
        backend.destroy(address)
    assert not list(files(channel_name))


def test_what_opens_later_than_the_channel_is_destroyed_leaves_nothing(channel_name: str) -> None:
    backend = get_backend("iox2")()
    address = backend.create(ChannelSpec(channel_name))
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        backend.destroy(address)
        with pytest.raises(TransportError):
            writer.write(b"x", 1.0)  # its first: it would connect to the reader
        with pytest.raises(TransportError):
            reader.read(0.0)
    assert not list(files(channel_name))


def test_a_folder_whose_path_is_too_long_is_refused(
    channel_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """iceoryx2 itself would abort the process, at the first subscriber."""
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(TransportError, match="too long a path for iceoryx2; set TMPDIR to a shorter folder"):
        get_backend("iox2")().create(ChannelSpec(channel_name))
    assert not os.listdir(folder)


def test_a_channel_takes_the_memory_of_what_it_holds(channel_name: str) -> None:
    backend = get_backend("iox2")()
    address = backend.create(ChannelSpec(channel_name, max_message_bytes=99_999, depth=8))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            (segment,) = SHARED_MEMORY.glob(f"{channel_name}*.data")
            status = segment.stat()
            assert 9 * 99_999 < status.st_size <= 512 * status.st_blocks < 11 * 99_999
            for number in range(20):
                writer.write(bytes([number]) * 99_999)
                view = reader.read(1.0)
                assert view.tobytes() == bytes([number]) * 99_999
                assert np.frombuffer(view[:99_992], np.float64).flags.aligned
    finally:
        backend.destroy(address)


def test_a_reader_that_closes_early_is_missed_by_nobody(channel_name: str) -> None:
    """The writer took a sample that one reader fewer got for lost."""
    backend = get_backend("iox2")()
    address = backend.create(ChannelSpec(channel_name, readers=2, max_message_bytes=1000, depth=4))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            with backend.open_reader(address, 1) as other:
                writer.write(b"0", timeout_s=60.0)
                assert bytes(other.read(timeout_s=60.0)) == bytes(reader.read(timeout_s=60.0)) == b"0"
            for number in range(1, 10):
                writer.write(str(number).encode(), timeout_s=60.0)
                assert bytes(reader.read(timeout_s=60.0)) == str(number).encode()
    finally:
        backend.destroy(address)


def test_a_reader_that_is_stopped_while_it_closes_holds_up_the_writer_and_breaks_nothing(
    channel_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer took the room of a reader whose samples iceoryx2 had not back, and failed with OutOfMemory."""
    backend = get_backend("iox2")()
    address = backend.create(ChannelSpec(channel_name, readers=2, max_message_bytes=1000, depth=4))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            other = backend.open_reader(address, 1)
            disconnect = other.disconnect

            def disconnect_late() -> None:
                with pytest.raises(TransportTimeout):
                    writer.write(b"x", timeout_s=0.1)
                disconnect()

            for _ in range(4):
                writer.write(b"x", timeout_s=60.0)
                assert bytes(reader.read(timeout_s=60.0)) == b"x"
            monkeypatch.setattr(other, "disconnect", disconnect_late)
            other.close()
            reader.release()
            for _ in range(4):
                writer.write(b"x", timeout_s=60.0)
            assert [bytes(reader.read(timeout_s=60.0)) for _ in range(4)] == [b"x"] * 4
    finally:
        backend.destroy(address)
