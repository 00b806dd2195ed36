"""Channels that are a folder, and what a transport puts there: how they are made, opened and removed."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import SEPARATOR, as_transport_errors, channel_directory, new_directory, remove_with_file
from ipcbench.sync.interrupts import whole
from ipcbench.sync.latest import LatestValueReader


class FolderBackend(Backend):
    """A transport of such channels. Its readers get every message; where it offers latest values, a thread of the
    reader keeps the latest.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message", "latest_value"}),
        when_full="block",
        max_message_bytes=2**30,
        max_readers=256,
        zero_copy_read=False,
        waits=frozenset({"block"}),
        launcher="spawn",
        remote=False,
        persistent=False,
        detects_peer_exit=True,
    )
    writer: ClassVar[type[Any]]
    """Made of the address and `means`."""
    reader: ClassVar[type[Any]]
    """Made of the address, `means` and its index."""
    views_last: ClassVar[bool] = False
    """Whether a view of the reader's stays valid after its next read."""

    def lay_out(self, folder: Path, channel: ChannelSpec) -> None:
        """Make what all transports of a kind have in the folder."""

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> list[str] | None:
        """Make what the channel needs besides, such as a service.

        Args:
            folder: of the channel; it goes with the channel.
            address: of the channel.
            undo: what to do if it fails.

        Returns:
            Further lines of the address' location, if there are any.

        Raises:
            OSError: it cannot.
        """

    def means(self, address: Address) -> tuple[Any, ...]:
        """Return what endpoints are made of besides the address."""
        return ()

    def end(self, folder: Path, address: Address) -> None:
        """End what `prepare` has made outside the folder; a second call does nothing."""

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.probe()
        self.require(channel)
        with (
            as_transport_errors(f"no channel of {self.name}"),
            new_directory(channel.name) as (folder, location, undo),
        ):
            self.lay_out(folder, channel)
            lines = self.prepare(folder, Address(self.name, channel, location), undo)
        return Address(self.name, channel, SEPARATOR.join((location, *(lines or ()))))

    @whole
    def open_writer(self, address: Address, index: int = 0) -> Writer:
        writer: Writer = self.writer(address, *self.means(address))
        return writer

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        means = self.means(address)

        def opened() -> Any:
            return self.reader(address, *means, index)

        if address.channel.delivery == "latest_value":
            return LatestValueReader(opened, f"{address.channel.name} reader-{index}", views_last=self.views_last)
        reader: Reader = opened()
        return reader

    @whole
    def destroy(self, address: Address) -> None:
        folder = channel_directory(address)
        remove_with_file(address, folder, partial(self.end, folder, address))
