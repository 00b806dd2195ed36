"""Where an endpoint listens: a file in the channel's directory, with a secret.

Any user can connect to a port, or take it after the endpoint. So each side proves to the other that it knows the
secret, which only this user can read.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from pathlib import Path
from typing import NamedTuple

from ipcbench.sync.directory import write_private

_SECRET_BYTES = 16


class Place(NamedTuple):
    """Where an endpoint listens, in its transport's words, and a secret in hexadecimal digits."""

    target: str
    secret: str

    def proof(self, of: str) -> str:
        """Return what tells that one knows the secret, for one purpose."""
        return hmac.new(self.secret.encode(), of.encode(), "sha256").hexdigest()

    def is_proof(self, said: object, of: str) -> bool:
        """Return whether another side has said the proof for that purpose."""
        return hmac.compare_digest(str(said).encode(), self.proof(of).encode())


def free_port(host: str) -> int:
    """Return a port of the interface with that address at which nobody listens now.

    Raises:
        OSError: there is no such interface.
    """
    family, *_ = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.create_server((host, 0), family=family) as free:
        return int(free.getsockname()[1])


def publish(path: Path, target: str) -> Place:
    """Make known at `path` where this endpoint listens, with a new secret; return both.

    Raises:
        OSError: the file cannot be written.
    """
    place = Place(target, secrets.token_hex(_SECRET_BYTES))
    write_private(path, "\n".join(place))
    return place


def find(path: Path) -> Place:
    """Return the place that was made known at `path`.

    Raises:
        FileNotFoundError: there is none yet, or no longer.
        OSError: what is there is damaged, or cannot be read.
    """
    try:
        target, secret = path.read_text(encoding="utf-8").split("\n")
    except ValueError as error:
        raise damaged(path) from error
    return Place(target, secret)


def damaged(path: Path) -> OSError:
    """Return what to raise for a file that is there and makes no sense."""
    return OSError(f"{path} is damaged; destroy the channel and make another")
