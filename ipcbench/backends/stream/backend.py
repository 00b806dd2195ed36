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

from functools import partial
from typing import ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer
from ipcbench.backends.stream.endpoint import doorbell_path
from ipcbench.backends.stream.places import Places, TcpPlaces, UnixPlaces
from ipcbench.backends.stream.reader import StreamReader
from ipcbench.backends.stream.writer import StreamWriter
from ipcbench.errors import (
    TransportError,
)
from ipcbench.patterns import with_patterns
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_file, new_directory, remove_directory
from ipcbench.sync.interrupts import whole
from ipcbench.sync.latest import LatestValueReader
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.wait import Doorbell
from ipcbench.util.files import advice_on


@with_patterns
class Pipe(Backend):
    """Unix stream sockets, with the standard library only."""

    name: ClassVar[str] = "pipe"
    summary: ClassVar[str] = "one Unix stream socket per reader, standard library only (like multiprocessing.Pipe)"
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message", "latest_value"}),
        when_full="block",
        max_message_bytes=2**30,
        max_readers=256,
        zero_copy_read=False,
        waits=frozenset({"spin", "yield", "block"}),
        launcher="spawn",
        remote=False,
        persistent=False,
        detects_peer_exit=True,
        holds_one_of_max=True,
    )

    _places: ClassVar[Places] = UnixPlaces()

    @classmethod
    def probe(cls) -> None:
        """Do nothing: every supported system has these sockets."""

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        with new_directory(channel.name) as (directory, location, _):
            self._places.require(channel_file(Address(self.name, channel, location), reader_roles(channel)[-1]))
            try:
                Doorbell.make(doorbell_path(directory))
            except OSError as error:
                raise TransportError(f"cannot make a doorbell in {directory}: {error}{advice_on(error)}") from error
        return Address(self.name, channel, location)

    @whole
    def open_writer(self, address: Address, index: int = 0) -> Writer:
        return StreamWriter(address, self._places)

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        reader = partial(StreamReader, address, self._places, index)
        if address.channel.delivery == "every_message":
            return reader()
        return LatestValueReader(reader, f"{address.channel.name} reader-{index}", views_last=False)

    @whole
    def destroy(self, address: Address) -> None:
        remove_directory(address)


class Tcp(Pipe):
    """Plain TCP over the loopback interface: `pipe`'s messages and credit, so what TCP itself costs can be told."""

    name: ClassVar[str] = "tcp"
    summary: ClassVar[str] = "one plain loopback TCP connection per reader, standard library only, TCP_NODELAY"
    _places: ClassVar[Places] = TcpPlaces()
