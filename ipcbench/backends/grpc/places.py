"""Where the writer of a channel listens, and how a reader finds it: a Unix socket, or a port with a secret."""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import Any, NamedTuple

from ipcbench.sync.directory import require_socket_path, write_private

_SECRET_BYTES = 16


class Place(NamedTuple):
    """Where a writer listens, in gRPC's words, and the secret of its channel, empty if nobody else can connect."""

    target: str
    secret: str = ""

    def proof(self, of: str) -> str:
        """Return what tells that one knows the secret, for one purpose."""
        return hmac.new(self.secret.encode(), of.encode(), "sha256").hexdigest()


class UnixPlaces:
    """A Unix socket in the channel's directory: only this user can connect."""

    @staticmethod
    def require(path: Path) -> None:
        """Raise TransportError if nothing can listen at that path."""
        require_socket_path(path)

    def listen(self, server: Any, path: Path) -> Place:
        """Have the server listen at `path`, and make that known.

        Raises:
            OSError: it cannot.
        """
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise OSError(str(error).partition("\n")[0]) from error
        return Place(f"unix:{path}")

    def find(self, path: Path) -> Place | None:
        """Return the place of a writer; None if it does not listen yet.

        Raises:
            OSError: what is there is damaged.
        """
        return Place(f"unix:{path}") if path.exists() else None


class TcpPlaces(UnixPlaces):
    """A free port of the loopback interface. The path is a file with the address and a secret, which both sides prove
    to each other that they know: any user can connect, or take the port after the writer.
    """

    @staticmethod
    def require(path: Path) -> None:
        """Do nothing: the name of a file may be longer."""

    def listen(self, server: Any, path: Path) -> Place:
        for host in ("127.0.0.1", "[::1]"):
            try:
                place = Place(f"{host}:{server.add_insecure_port(f'{host}:0')}", secrets.token_hex(_SECRET_BYTES))
                break
            except RuntimeError as error:
                failure = error
        else:
            raise OSError(str(failure).partition("\n")[0]) from failure
        write_private(path, " ".join(place))
        return place

    def find(self, path: Path) -> Place | None:
        try:
            target, secret = path.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise OSError(f"{path} is damaged; destroy the channel and make another") from error
        return Place(target, secret)
