"""gRPC: lossless broadcast by a stream of a call to each reader, over a Unix socket (`grpc`) or loopback TCP.

The writer is a server, each reader a client with one bidirectional call: messages come as responses, as they are
(handlers without serializers: bytes in, bytes out, no protobuf), one message of gRPC each. A message made of the
channel's secret ends the stream, not the end of the call: a receipt that a client sends to a call that has ended fails,
and `grpc.aio` then drops what has arrived and was not read.

Flow control is by credit in messages, since that of HTTP/2 is in bytes: a reader sends a receipt, how many messages it
has taken so far, on the request stream of the same call after every half window. The writer stops when the slowest
reader is `depth` behind, or a half more, since receipts arrive that late; or 16 MiB of messages, but at least four.
Receipts in the call work wherever the call does, which counters in shared memory would not, and cost a message in
`depth / 2`. For this the call is bidirectional: server streaming, without any credit, took a fifth less CPU time, and
has no way back.

Both sides are `grpc.aio`, in one event loop for all endpoints of a process, in a thread of its own: with the
synchronous API each message goes through two more threads on the server, and a round trip of 64 bytes took about twice
as long. Nothing is compressed, and no keepalive is asked for: a death shows at the connection,
or, where a forked child holds that, at the endpoint's lock.

gRPC bears no fork: a child of a process that has used it opens no endpoint (`TransportError`).

The writer notes in the channel's directory where it listens, over TCP at a free port, with a secret. Each side proves
to the other that it knows the secret, so neither takes a stranger for its peer. Nothing is encrypted, also not between
hosts, where `grpc-tcp` listens on the interface that has the host's address.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from ipcbench.backend import Address, Capabilities, unavailable
from ipcbench.backends.grpc.endpoints import GrpcReader, GrpcWriter
from ipcbench.backends.grpc.loop import absence
from ipcbench.patterns import with_patterns
from ipcbench.sync.directory import channel_file, require_socket_path
from ipcbench.sync.folder import FolderBackend


@with_patterns
class Grpc(FolderBackend):
    """gRPC over a Unix socket."""

    name: ClassVar[str] = "grpc"
    summary: ClassVar[str] = "gRPC (grpc.aio), a bidirectional stream per reader over a Unix socket, bytes as they are"
    writer, reader, views_last = GrpcWriter, GrpcReader, True

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            raise unavailable(cls.name, absence, "grpc", "pip install 'ipcbench[grpc]'") from absence

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        require_socket_path(channel_file(address, "writer"), without=",")

    def means(self, address: Address) -> tuple[tuple[str, ...]]:
        """Return where the writer may listen, in gRPC's words."""
        return ((f"unix:{quote(str(channel_file(address, 'writer')))}",),)


class GrpcTcp(Grpc):
    """gRPC over the loopback interface, or between hosts."""

    name: ClassVar[str] = "grpc-tcp"
    summary: ClassVar[str] = "gRPC (grpc.aio), a bidirectional stream per reader over TCP, bytes as they are"
    capabilities: ClassVar[Capabilities] = replace(Grpc.capabilities, remote=True)

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        """Do nothing: the name of a file may be longer."""

    def means(self, address: Address) -> tuple[tuple[str, ...]]:
        host = address.channel.host
        return ((f"[{host}]:0" if ":" in host else f"{host}:0",) if host else ("127.0.0.1:0", "[::1]:0"),)
