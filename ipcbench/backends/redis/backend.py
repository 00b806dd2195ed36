"""Redis, or Valkey: a stream for all readers in a server of the channel's own, or in one that is there already.

The writer adds a message to the stream by XADD, which the server does as a whole, once for all readers. Its number is
its identity there, so readers see where the server has refused one. A reader takes what it has not read, up to a
quarter of `depth`, by XREAD; where there is nothing, that stays outstanding when a call times out, and the socket
becomes readable when it is answered. It takes nothing out of the stream: the writer's next XADD drops what all have
read (MINID). Of `latest_value`, it drops all older values. The end is an entry with a field of another name.

Flow control is by credit: before it asks for more, a reader pushes a receipt, how many messages it has read, to the
list of all readers' receipts. With each message the writer pops what is there, and does not wait for the answer. When
the slowest reader is too far behind, it waits for receipts by BLMPOP, which also stays outstanding when a call times
out. A reader that closes pushes a last receipt, by another connection, since its own may be blocked.

Deaths are found by endpoint locks, as with other transports: they cost the server nothing, and the kernel releases them
before any time-out. The names of connections (CLIENT LIST) are for people.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from ipcbench.backend import Address, Capabilities, Reader, unavailable
from ipcbench.backends.redis.endpoints import RedisReader, RedisWriter
from ipcbench.backends.redis.wire import absence, ask, keys_of
from ipcbench.errors import TransportError, Unsupported
from ipcbench.sync.directory import require_socket_path, write_private
from ipcbench.sync.folder import FolderBackend
from ipcbench.sync.interrupts import whole
from ipcbench.sync.place import free_port
from ipcbench.sync.server import Server, keep_url, url_of
from ipcbench.sync.service import end_services, kill_group, start_service

SERVER = Server("redis", ("valkey-server", "redis-server"), variable="IPCBENCH_REDIS_URL")
_OF_THIS_HOST = {"localhost", "127.0.0.1", "::1"}
_HAS_BLMPOP = "COMMAND", "INFO", "BLMPOP"


def _require_new(channel: str, role: str, url: str) -> None:
    """Require a server that has the commands.

    Raises:
        OSError: there is none.
        TransportError: it is too old.
    """
    if ask(channel, url, role, *_HAS_BLMPOP) == [None]:
        raise TransportError(f"the server is older than Redis 7.0, without {_HAS_BLMPOP[-1]}")


def _is_ready(channel: str, url: str) -> bool:
    with suppress(OSError):
        _require_new(channel, "create", url)
        return True
    return False


def _place(path: Path, host: str) -> tuple[str, list[str]]:
    """Return the URL of a server that is to be started, and the arguments by which it listens there only: at a Unix
    socket, or between hosts at a free port of this one. The password is in a file, since all users can read arguments.
    """
    if not host:
        require_socket_path(path)
        url = path.as_uri().replace("file", "unix", 1)
        return url, ["--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"]
    port, password = str(free_port(host)), secrets.token_hex(16)
    write_private(path, f"requirepass {password}\n")
    shown = f"[{host}]" if ":" in host else host
    return f"redis://:{password}@{shown}:{port}", [str(path), "--bind", host, "--port", port]


def _server(folder: Path, place: list[str]) -> list[str]:
    """Return the command that starts a server which keeps nothing on disk and logs to stdout."""
    options = {"save": "", "appendonly": "no", "daemonize": "no", "logfile": "", "dir": str(folder)}
    options |= {"databases": "1"}
    return [SERVER.program, *place, *(word for name, value in options.items() for word in (f"--{name}", value))]


class Redis(FolderBackend):
    """A stream of a Redis or Valkey server."""

    name: ClassVar[str] = "redis"
    summary: ClassVar[str] = "Redis or Valkey: a stream for all readers, in a server of the channel's own"
    capabilities: ClassVar[Capabilities] = replace(
        FolderBackend.capabilities, max_message_bytes=2**29, holds_one_of_max=True, remote=True
    )
    writer, reader = RedisWriter, RedisReader

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            package = "hiredis" if absence.name == "hiredis" else "redis"
            raise unavailable(cls.name, absence, package, "pip install 'ipcbench[redis]'") from absence
        SERVER.probe(cls.name, partial(_require_new, cls.name, "probe"))

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        url = SERVER.named_url
        if not url:
            url, place = _place(folder / SERVER.service, address.channel.host)
            is_ready = partial(_is_ready, folder.name, url)
            undo.callback(kill_group, start_service(folder, SERVER.service, _server(folder, place), is_ready))
        elif address.channel.host and (urlsplit(url).hostname or "localhost") in _OF_THIS_HOST:
            raise Unsupported(
                f"other hosts cannot reach the server at {SERVER.variable}; name it by an address of theirs"
            )
        keep_url(folder, url)

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        return RedisReader(address, index)  # the server keeps the latest value

    def end(self, folder: Path, address: Address) -> None:
        end_services(folder)
        if not SERVER.is_own(folder):
            ask(folder.name, url_of(folder), "destroy", "UNLINK", *keys_of(address))
