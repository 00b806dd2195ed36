"""The control channel admits nobody without the key, never unpickles, and never waits without a deadline."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client

import pytest

from ipcbench.errors import TrialError, WorkerTimeout
from ipcbench.processes.control_channel import KEY_VARIABLE, ControlConnection, Switchboard, connect


@pytest.fixture(params=["unix", "tcp"])
def switchboard(request, tmp_path, monkeypatch):
    with Switchboard(tmp_path, None if request.param == "unix" else "127.0.0.1") as switchboard:
        for name, value in switchboard.environment().items():
            monkeypatch.setenv(name, value)
        yield switchboard


def target_of(switchboard: Switchboard) -> str | tuple[str, int]:
    """Return the address as the standard library takes it."""
    host, _, port = switchboard.address.rpartition(":")
    return (host, int(port)) if host else switchboard.address


def accepted(switchboard: Switchboard, connecting) -> ControlConnection | None:
    thread = threading.Thread(target=connecting)
    thread.start()
    try:
        return switchboard.accept(5.0)
    finally:
        thread.join()


def test_both_sides_understand_each_other(switchboard):
    worker = []
    channel = accepted(switchboard, lambda: worker.append(connect(switchboard.address)))
    channel.send({"do": "open", "bytes": b"\0" * 100_000})
    assert worker[0].receive(5.0) == {"do": "open", "bytes": b"\0" * 100_000}
    channel.close()
    with pytest.raises(TrialError, match="gone"):
        worker[0].receive(5.0)
    worker[0].close()


def test_a_caller_for_whom_there_is_no_thread_does_not_end_the_listening(switchboard, monkeypatch):
    start, refused = threading.Thread.start, []

    def start_or_refuse(thread):
        if thread.name == "handshake" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    with pytest.raises(TrialError, match="no coordinator"):
        connect(switchboard.address)
    assert refused
    worker = []
    channel = accepted(switchboard, lambda: worker.append(connect(switchboard.address)))
    channel.close()
    worker[0].close()


def test_a_stranger_without_the_key_is_not_let_in(switchboard, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, os.urandom(32).hex())
    refused = []

    def stranger():
        with pytest.raises(TrialError, match="no coordinator"):
            connect(switchboard.address)
        refused.append(True)

    thread = threading.Thread(target=stranger)
    thread.start()
    assert switchboard.accept(0.5) is None
    thread.join()
    assert refused


def test_a_caller_that_hangs_up_at_once_does_not_disturb(switchboard):
    target = target_of(switchboard)
    with socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET) as caller:
        caller.connect(target)
    assert accepted(switchboard, lambda: connect(switchboard.address).close()) is not None


@pytest.mark.parametrize("words", [b"", b"\0\0\0", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 10_000, b"\0\0\0\4junk"])
def test_strangers_hold_up_nobody(switchboard, words):
    target = target_of(switchboard)
    with ExitStack() as strangers:
        for _ in range(100):
            stranger = strangers.enter_context(
                socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
            )
            stranger.connect(target)
            with suppress(ConnectionError):  # it may have been refused before it has said everything
                stranger.sendall(words)
        worker = []
        channel = accepted(switchboard, lambda: worker.append(connect(switchboard.address)))
        channel.send({"do": "open"})
        assert worker[0].receive(5.0) == {"do": "open"}
        assert switchboard.accept(0.0) is None
        channel.close()
        worker[0].close()


def test_a_pickle_is_never_loaded(switchboard):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("a pickle was loaded",)

    def sender():
        with Client(target_of(switchboard), authkey=bytes.fromhex(os.environ[KEY_VARIABLE])) as client:
            client.send_bytes(pickle.dumps(Trap()))

    channel = accepted(switchboard, sender)
    with pytest.raises(TrialError, match="not a message"):
        channel.receive(5.0)
    channel.close()


def test_waiting_ends_at_its_deadline(switchboard):
    assert switchboard.accept(0.05) is None
    worker = []
    channel = accepted(switchboard, lambda: worker.append(connect(switchboard.address)))
    with pytest.raises(WorkerTimeout, match="no answer"):
        channel.receive(0.05)
    channel.close()
    worker[0].close()


def test_a_folder_that_takes_no_socket_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        Switchboard(tmp_path / "absent")
    assert raised.value.filename == str(tmp_path / "absent" / "control")
