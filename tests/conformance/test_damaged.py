"""Channels whose files were damaged, or whose temporary folder is another by now: one clear error, nothing left."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.backend import Address, Backend
from ipcbench.errors import ConfigError, TransportError, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_directory, channel_token
from ipcbench.sync.liveness import note_path
from ipcbench.sync.locks import EndpointLock
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


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["open to others", "private", "file", "link"])
def test_nothing_is_removed_that_is_no_folder_of_a_channel(
    name: str, kind: str, channel_name: str, tmp_path: Path
) -> None:
    """An address may be made by hand, or something else may have taken the folder's place."""
    foreign = tmp_path / channel_name
    if kind == "file":
        foreign.touch()
    elif kind == "link":
        foreign.symlink_to(tmp_path)
    else:
        foreign.mkdir(mode=0o700 if kind == "private" else 0o755)
        (foreign / "work").touch()
    places = "".join(f"\ntcp://127.0.0.1:{port}" for port in (5555, 5556)) if name == "zmq-tcp" else ""
    address = Address(name, ChannelSpec(channel_name, readers=1), f"{foreign}\n01234567{places}")
    with pytest.raises(TransportError, match="is no folder of a channel of this user"):
        get_backend(name)().destroy(address)
    assert os.path.lexists(foreign)
    assert "open" not in kind or (foreign / "work").exists()
    assert kind != "private" or (foreign / "work").exists()


@pytest.mark.parametrize("name", ["shm", "mpi-buffer"])
def test_a_segment_without_its_channels_folder_is_not_removed(name: str, channel_name: str, tmp_path: Path) -> None:
    segment = SHARED_MEMORY / channel_name
    segment.touch(mode=0o600)
    try:
        address = Address(name, ChannelSpec(channel_name, readers=1), str(tmp_path / channel_name))
        with pytest.raises(TransportError, match="may be another program's: remove it yourself"):
            get_backend(name)().destroy(address)
        assert segment.exists()
    finally:
        segment.unlink()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_channel_that_others_destroy_meanwhile_is_destroyed(name: str, channel_name: str) -> None:
    for turn in range(20):
        backend, address = made(name, f"{channel_name}-{turn}")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: backend.destroy(address), range(4)))  # noqa: B023 # all end here
        assert not os.path.lexists(channel_directory(address))


@pytest.mark.parametrize("name", ["zmq", "zmq-tcp", "pipe"])
def test_an_opening_that_was_refused_is_no_death(name: str, channel_name: str) -> None:
    """It may be tried again, and the peer that waits for it goes on waiting."""
    backend, address = made(name, channel_name)
    lock = EndpointLock(channel_directory(address), "reader-0")
    lock.abandon()
    try:
        with backend.open_writer(address) as writer:
            with pytest.raises(TransportTimeout):
                writer.write(b"early", 1.0)
            with backend.open_reader(address, 0) as reader:
                writer.write(b"whole", 30.0)
                assert bytes(reader.read(30.0)) == b"whole"
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("text", ["/tmp/a\0b", "/tmp/\ud800", "/tmp/\x1b[2J", "/tmp/a\rb"])
def test_a_location_that_is_no_text_of_a_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"address\.location"):
        Address("pipe", ChannelSpec("a"), text)


@pytest.mark.parametrize(
    "places",
    [
        "",
        "\ntcp://*:5999\ntcp://127.0.0.1:5998",
        "\nipc:///a\nipc:///b",
        "\nx",
        "\ntcp://127.0.0.1:0\ntcp://127.0.0.1:5998",
        "\ntcp://127.0.0.1:5998\ntcp://127.0.0.1:5998",
        "\ntcp://127.0.0.1:99999\ntcp://127.0.0.1:5998",
    ],
)
def test_only_ports_of_this_host_are_opened(places: str, channel_name: str) -> None:
    backend, address = made("zmq-tcp", channel_name)
    try:
        with pytest.raises(TransportError, match="names no two ports of one host"):
            backend.open_writer(
                replace(address, location=f"{channel_directory(address)}\n{channel_token(address)}{places}")
            )
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("kind", ["gone", "dangling link"])
def test_without_keys_nothing_is_sent_in_the_clear(kind: str, channel_name: str) -> None:
    backend, address = made("zmq-tcp", channel_name)
    keys = channel_directory(address) / "keys"
    keys.unlink()
    if kind == "dangling link":
        keys.symlink_to("nowhere")
    try:
        for opening in (backend.open_writer, lambda address: backend.open_reader(address, 0)):
            with pytest.raises(TransportError, match=r"its keys in .* cannot be used .*create it anew"):
                opening(address)
    finally:
        backend.destroy(address)


def test_a_path_of_a_socket_is_measured_in_bytes(
    channel_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("ü" * 45)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    for name in ("pipe", "zmq"):
        with pytest.raises(TransportError, match="too long for a socket path; set TMPDIR to a shorter folder"):
            made(name, channel_name)
        assert list(folder.iterdir()) == []


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
            note_path(address, "writer").write_bytes(b"\xff\xfe")
            with pytest.raises(TransportError, match=r"died without closing|closed without a message"):
                reader.read(30.0)
    finally:
        backend.destroy(address)
