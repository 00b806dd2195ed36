"""The standard library's own transports: one stream socket per reader, Unix as in `multiprocessing.Pipe`, or TCP.

Each reader listens as soon as it opens (see places.py), and the writer connects to all before its first
message, so endpoints may open in any order and the kernel keeps what a reader has not asked for yet. A message is its
size in eight bytes, then its bytes; a size that no message has ends the stream.

Flow control is by credit: a reader sends a byte (a receipt) for each batch of messages that it has read, and the writer
stops when the slowest reader is `depth` behind, or a quarter more (a 64th if messages may be 64 KiB or larger), since
receipts arrive that late. A message is accepted for all readers or for none: if a reader takes nothing, the part that
the kernel does not accept is copied and a thread sends it later, so no time-out leaves half a message behind.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ipcbench.backend import Address, Capabilities
from ipcbench.backends.stream.endpoint import doorbell_path
from ipcbench.backends.stream.places import Places, TcpPlaces, UnixPlaces
from ipcbench.backends.stream.reader import StreamReader
from ipcbench.backends.stream.writer import StreamWriter
from ipcbench.patterns import with_patterns
from ipcbench.sync.directory import channel_file
from ipcbench.sync.folder import FolderBackend
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.wait import Doorbell


@with_patterns
class Pipe(FolderBackend):
    """Unix stream sockets, with the standard library only."""

    name: ClassVar[str] = "pipe"
    summary: ClassVar[str] = "one Unix stream socket per reader, standard library only (like multiprocessing.Pipe)"
    capabilities: ClassVar[Capabilities] = replace(
        FolderBackend.capabilities, waits=frozenset({"spin", "yield", "block"}), holds_one_of_max=True
    )
    writer, reader = StreamWriter, StreamReader
    _places: ClassVar[Places] = UnixPlaces()

    @classmethod
    def probe(cls) -> None:
        """Do nothing: every supported system has these sockets."""

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        self._places.require(channel_file(address, reader_roles(address.channel)[-1]))
        Doorbell.make(doorbell_path(folder))

    def means(self, address: Address) -> tuple[Places]:
        return (self._places,)


class Tcp(Pipe):
    """Plain TCP, over the loopback interface or between hosts: `pipe`'s messages and credit, so what TCP itself costs
    can be told.
    """

    name: ClassVar[str] = "tcp"
    summary: ClassVar[str] = "one plain TCP connection per reader, standard library only, TCP_NODELAY"
    capabilities: ClassVar[Capabilities] = replace(Pipe.capabilities, remote=True)
    _places: ClassVar[Places] = TcpPlaces()
