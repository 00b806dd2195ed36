"""An endpoint as a user writes it: `ipc://`, `tcp://`, `unix://`, `shm://`, `lmdb://`, or a plain path."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Final, Literal

from ipcbench.errors import ConfigError

ALLOWED: Final = "ipc:///path, ipc://@name, unix:///path, a plain /path, tcp://host:port, shm://name or lmdb:///folder"
_MOST_BYTES: Final = 107
_HERE: Final = {"localhost", "127.0.0.1", "::1", "*", "0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
"""Hosts that are all reached at one port of this host."""
_TCP = re.compile(r"(\[(?P<inside>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^:/@\s\[\]]+)):0*(?P<port>\d{1,5})")


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
        if self.kind == other.kind == "tcp" and {self.address, other.address} <= _HERE:
            return self.port == other.port
        return (self.kind, self.address, self.port) == (other.kind, other.address, other.port)


def parse_endpoint(url: str, field: str = "endpoint") -> Endpoint:
    """Return an endpoint.

    Raises:
        ConfigError: it is none.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "unix", url
    if scheme in {"ipc", "unix"}:
        return Endpoint(url, "unix", _path(rest, url, field))
    if scheme == "tcp" and (match := _TCP.fullmatch(rest.rpartition(";")[2])) and 0 < int(match["port"]) < 2**16:
        return Endpoint(url, "tcp", plain_host(match["inside"] or match["host"]), int(match["port"]))
    if scheme == "shm" and rest.strip("/") and "/" not in rest.strip("/"):
        return Endpoint(url, "shm", rest.strip("/"))
    if scheme == "lmdb" and rest.startswith("/"):
        return Endpoint(url, "lmdb", rest.rstrip("/") or "/")
    raise ConfigError(field, url, ALLOWED)


def _path(path: str, url: str, field: str) -> str:
    if not path.startswith("/") and (not path.startswith("@") or len(path) == 1):
        raise ConfigError(field, url, f"{ALLOWED}; the path is absolute")
    if path.startswith("/") and path.endswith("/"):
        raise ConfigError(field, url, "the path of a socket, with no slash at its end")
    if len(os.fsencode(path)) > _MOST_BYTES + path.startswith("@"):  # a name has its @ besides
        raise ConfigError(field, url, f"a path of at most {_MOST_BYTES} bytes, as the kernel has no place for more")
    return path


def plain_host(host: str) -> str:
    """Return a host as the kernel's list has it: an IPv4 address inside IPv6 as IPv4."""
    try:
        mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
    except ValueError:
        return host  # a name
    return host if mapped is None else str(mapped)
