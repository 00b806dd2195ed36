"""Which sockets a forked child closes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ipcbench.sync.descriptors import close_sockets


def _joined(listener: socket.socket) -> list[socket.socket]:
    """Return it, a socket that has connected to it, and the one that it has accepted."""
    client = socket.socket(listener.family)
    client.connect(listener.getsockname())
    return [listener, client, listener.accept()[0]]


def _listening(family: str, path: Path) -> tuple[socket.socket, str]:
    """Return a socket that listens, and the words for its place."""
    if family == "unix":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        return listener, str(path)
    host, kind = ("127.0.0.1", socket.AF_INET) if family == "IPv4" else ("::1", socket.AF_INET6)
    listener = socket.create_server((host, 0), family=kind)
    port = listener.getsockname()[1]
    return listener, f"{host}:{port}" if family == "IPv4" else f"[{host}]:{port}"


def _is_open(held: socket.socket) -> bool:
    try:
        os.fstat(held.fileno())
    except OSError:
        held.detach()
        return False
    held.close()
    return True


@pytest.mark.parametrize("family", ["unix", "IPv4", "IPv6"])
def test_all_sockets_that_join_a_place_are_closed_and_no_others(family: str, tmp_path: Path) -> None:
    (listener, place), (stranger, _) = (_listening(family, tmp_path / name) for name in ("wanted", "other"))
    wanted, others = _joined(listener), [*_joined(stranger), *socket.socketpair()]
    close_sockets({place})
    assert [_is_open(held) for held in wanted] == [False] * 3
    assert [_is_open(held) for held in others] == [True] * 5
