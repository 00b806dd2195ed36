"""An endpoint as a user writes it: `ipc://`, `tcp://`, `unix://`, `shm://`, `lmdb://`, or a plain path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from ipcbench.errors import ConfigError

ALLOWED: Final = "ipc:///path, ipc://@name, unix:///path, a plain /path, tcp://host:port, shm://name or lmdb:///folder"
_TCP = re.compile(r"(\[(?P<inside>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^:/\s\[\]]+)):(?P<port>\d{1,5})/?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is to be found."""

    url: str
    """As it was given."""
    kind: Literal["unix", "tcp", "shm", "lmdb"]
    """`unix` is a Unix socket, ZeroMQ's `ipc://` too."""
    address: str
    """Path, `@name`, host, name of a segment, or folder."""
    port: int | None = None
    """Of TCP."""

    def is_same(self, other: Endpoint) -> bool:
        """Return whether both are the same place, whatever their scheme."""
        return (self.kind, self.address, self.port) == (other.kind, other.address, other.port)


def parse_endpoint(url: str, field: str = "endpoint") -> Endpoint:
    """Return an endpoint.

    Raises:
        ConfigError: it is none.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "unix", url
    if scheme in {"ipc", "unix"} and (rest.startswith("/") or (rest.startswith("@") and len(rest) > 1)):
        return Endpoint(url, "unix", rest)
    if scheme == "tcp" and (match := _TCP.fullmatch(rest)) and 0 < int(match["port"]) < 2**16:
        return Endpoint(url, "tcp", match["inside"] or match["host"], int(match["port"]))
    if scheme == "shm" and rest.strip("/") and "/" not in rest.strip("/"):
        return Endpoint(url, "shm", rest.strip("/"))
    if scheme == "lmdb" and rest.startswith("/"):
        return Endpoint(url, "lmdb", rest.rstrip("/") or "/")
    raise ConfigError(field, url, ALLOWED)
