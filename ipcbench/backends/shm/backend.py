"""Shared memory: a ring for every_message, spare slots for latest_value; reads copy nothing."""

from __future__ import annotations

import errno
import os
import sys
from _posixshmem import shm_unlink  # type: ignore[import-not-found] # which typeshed does not know
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer
from ipcbench.backends.shm.latest import LatestReader, LatestWriter
from ipcbench.backends.shm.mapping import Mapping
from ipcbench.backends.shm.segment import SEGMENTS, SharedSegment
from ipcbench.errors import BackendUnavailable, TransportError
from ipcbench.patterns import with_patterns
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import MAX_READERS, make_doorbells
from ipcbench.sync.directory import new_directory, remove_with_file
from ipcbench.sync.interrupts import whole
from ipcbench.sync.native_ring import RingReader, RingWriter
from ipcbench.sync.ring_memory import Layout
from ipcbench.util.files import advice_on
from ipcbench.util.units import format_bytes


def _why_not(error: OSError, directory: Path, channel: ChannelSpec) -> str:
    """Return why a channel cannot be made, and what helps."""
    layout = Layout(channel)
    if isinstance(error, FileExistsError):
        return f"a shared memory segment {directory.name!r} exists already; run `ipcbench clean`"
    if Path(str(error.filename)).parent == directory:
        return f"cannot make {error.filename}: {error.strerror}{advice_on(error)}"
    what = f"no shared memory segment of {format_bytes(layout.total_bytes)}: {error.strerror}"
    if error.errno in {errno.EROFS, errno.EACCES}:
        return f"{what}; mount /dev/shm so that it can be written"
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return what + advice_on(error)
    shorter = " or a smaller depth" if Layout(replace(channel, depth=2)).total_bytes < layout.total_bytes else ""
    return f"{what}; use smaller messages{shorter}, or free or enlarge /dev/shm (`docker run --shm-size`)"


@with_patterns
class Shm(Backend):
    """POSIX shared memory."""

    name: ClassVar[str] = "shm"
    summary: ClassVar[str] = "shared memory ring (POSIX shm), zero-copy reads"
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message", "latest_value"}),
        when_full="block",
        max_message_bytes=2**40,
        max_readers=MAX_READERS,
        zero_copy_read=True,
        waits=frozenset({"spin", "yield", "block"}),
        launcher="spawn",
        remote=False,
        persistent=False,
        detects_peer_exit=True,
        writes_in_place=True,
        holds_one_of_max=True,
    )

    @classmethod
    def probe(cls) -> None:
        if sys.platform == "win32":
            raise BackendUnavailable(cls.name, "it needs POSIX shared memory and file locks", "use Linux or macOS")

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        with new_directory(channel.name) as (directory, location, undo):
            try:
                make_doorbells(directory, channel.readers)
                segment = SharedSegment(channel.name, Layout(channel).total_bytes)
            except OSError as error:
                raise TransportError(_why_not(error, directory, channel)) from error
            undo.callback(segment.unlink_made, os.fstat(segment.fileno()))
            segment.close()
        return Address(self.name, channel, location)

    @whole
    def open_writer(self, address: Address, index: int = 0) -> Writer:
        kind = LatestWriter if address.channel.delivery == "latest_value" else RingWriter
        mapping = Mapping(address)
        try:
            return kind(address, mapping)
        except TransportError:
            mapping.close()
            raise

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        kind = LatestReader if address.channel.delivery == "latest_value" else RingReader
        mapping = Mapping(address)
        try:
            return kind(address, mapping, index)
        except TransportError:
            mapping.close()
            raise

    @whole
    def destroy(self, address: Address) -> None:
        name = address.channel.name
        remove_with_file(address, SEGMENTS / name, lambda: shm_unlink(f"/{name}"))
