"""Channels whose files were damaged, or whose temporary folder is another by now: one clear error, nothing left."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from ipcbench.backend import Address, Backend
from ipcbench.errors import TransportError
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.sync.locks import channel_directory
from ipcbench.testing.leaks import SHARED_MEMORY

BACKENDS = ["shm", "lmdb", "pipe", "zmq", "zmq-tcp", "mpi-buffer"]


def made(name: str, channel_name: str, **changes: object) -> tuple[Backend, Address]:
    backend = get_backend(name)()
    return backend, backend.create(ChannelSpec(channel_name, readers=1, **changes))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_channel_is_found_and_destroyed_whatever_the_temporary_folder_is_by_now(
    name: str, channel_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, address = made(name, channel_name)
    folder = channel_directory(address)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if name != "mpi-buffer":  # whose endpoints need ranks
        with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
            writer.write(b"found", 30.0)
            assert bytes(reader.read(30.0)) == b"found"
    backend.destroy(address)
    assert not os.path.lexists(folder)
    assert list(tmp_path.iterdir()) == []
    backend.destroy(address)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("location", ["", "relative", "/", "/tmp", "/etc/passwd"])
def test_an_address_that_names_no_folder_of_the_channel_is_refused(name: str, location: str, channel_name: str) -> None:
    backend, address = get_backend(name)(), Address(name, ChannelSpec(channel_name, readers=1), location)
    with pytest.raises(TransportError, match="pass the address that `create` returned"):
        backend.destroy(address)
    if name != "mpi-buffer":
        with pytest.raises(TransportError, match="pass the address that `create` returned"):
            backend.open_writer(address)


@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "zmq"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_destroy_removes_what_has_taken_the_place_of_the_folder(name: str, kind: str, channel_name: str) -> None:
    backend, address = made(name, channel_name)
    folder = channel_directory(address)
    kept = folder.rename(folder.with_name(f"{channel_name}-kept"))
    folder.touch() if kind == "file" else folder.symlink_to(kept)
    try:
        with pytest.raises(TransportError):
            backend.open_writer(address)
        backend.destroy(address)
        assert not os.path.lexists(folder)
        assert kept.is_dir()
    finally:
        kept.rename(folder)
        backend.destroy(address)


@pytest.mark.parametrize(("name", "file"), [("zmq-tcp", "keys"), ("lmdb", "data.mdb"), ("lmdb", "cursors")])
def test_a_pipe_in_the_place_of_a_file_does_not_hang(name: str, file: str, channel_name: str) -> None:
    backend, address = made(name, channel_name)
    path = channel_directory(address) / file
    path.unlink()
    os.mkfifo(path, 0o600)
    try:
        with pytest.raises(TransportError):
            backend.open_writer(address)
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("name", ["shm", "lmdb"])
def test_garbage_in_the_words_of_a_latest_value_is_one_clear_error(name: str, channel_name: str) -> None:
    backend, address = made(name, channel_name, delivery="latest_value")
    path = SHARED_MEMORY / channel_name if name == "shm" else channel_directory(address) / "cursors"
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            writer.write(b"sound", 30.0)
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as words:
                words[16:24] = b"\xff" * 6 + b"\0\0"  # what the writer has announced last
            with pytest.raises(TransportError, match="is damaged: there is no slot 65535"):
                reader.read(30.0)
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
def test_a_note_that_is_no_text_ends_a_stream_as_any_other(delivery: str, channel_name: str) -> None:
    backend, address = made("zmq", channel_name, delivery=delivery)
    try:
        with backend.open_reader(address, 0) as reader:
            backend.open_writer(address).close()
            (channel_directory(address) / "writer.left").write_bytes(b"\xff\xfe")
            with pytest.raises(TransportError, match=r"died without closing|closed without a message"):
                reader.read(30.0)
    finally:
        backend.destroy(address)
