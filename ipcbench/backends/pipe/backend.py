"""The standard library's own transport: one Unix stream socket per reader, as used by `multiprocessing.Pipe`.

Each reader listens in the channel's directory as soon as it opens, and the writer connects to all before its first
message, so endpoints may open in any order and the kernel keeps what a reader has not asked for yet. A message is its
size in eight bytes, then its bytes; a size that no message has ends the stream.

Flow control is by credit: a reader sends a byte (a receipt) for each batch of messages that it has read, and the writer
stops when the slowest reader is `depth` behind, or a quarter more (a 64th if messages may be 64 KiB or larger), since
receipts arrive that late. A message is accepted for all readers or for none: if a reader takes nothing, the part that
the kernel does not accept is copied and a thread sends it later, so no time-out leaves half a message behind.
"""

from __future__ import annotations

import os
from functools import partial
from typing import ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer
from ipcbench.backends.pipe.endpoint import doorbell_path
from ipcbench.backends.pipe.reader import PipeReader
from ipcbench.backends.pipe.writer import PipeWriter
from ipcbench.errors import (
    TransportError,
)
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_file, new_directory, remove_directory
from ipcbench.sync.interrupts import whole
from ipcbench.sync.latest import LatestValueReader
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.wait import Doorbell
from ipcbench.util.files import advice_on

_PATH_BYTES = 103
"""Longest socket path that every system allows."""


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
    )

    @classmethod
    def probe(cls) -> None:
        """Do nothing: every supported system has Unix sockets."""

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        with new_directory(channel.name) as (directory, location, _):
            longest = str(channel_file(Address(self.name, channel, location), reader_roles(channel)[-1]))
            if len(os.fsencode(longest)) > _PATH_BYTES:
                raise TransportError(f"{longest} is too long for a socket path; set TMPDIR to a shorter folder")
            try:
                Doorbell.make(doorbell_path(directory))
            except OSError as error:
                raise TransportError(f"cannot make a doorbell in {directory}: {error}{advice_on(error)}") from error
        return Address(self.name, channel, location)

    @whole
    def open_writer(self, address: Address) -> Writer:
        return PipeWriter(address)

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        reader = partial(PipeReader, address, index)
        if address.channel.delivery == "every_message":
            return reader()
        return LatestValueReader(reader, f"{address.channel.name} reader-{index}", views_last=False)

    @whole
    def destroy(self, address: Address) -> None:
        remove_directory(address)
