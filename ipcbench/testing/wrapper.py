"""A backend around another one that changes nothing: the ground on which faults.py stands."""

from __future__ import annotations

from typing import ClassVar

from ipcbench.backend import Address, Backend, Capabilities, Message, Reader, Writer
from ipcbench.spec import ChannelSpec


class WriterAround(Writer):
    """Passes everything on to another writer."""

    def __init__(self, inner: Writer, address: Address) -> None:
        self.inner = inner
        self.address = address

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self.inner.write(message, timeout_s)

    def close(self) -> None:
        self.inner.close()


class ReaderAround(Reader):
    """Passes everything on to another reader."""

    def __init__(self, inner: Reader, address: Address, index: int) -> None:
        self.inner = inner
        self.address = address
        self.index = index

    def read(self, timeout_s: float | None = None) -> memoryview:
        return self.inner.read(timeout_s)

    def close(self) -> None:
        self.inner.close()


class BackendAround(Backend):
    """Passes everything on to `inner`, with other classes of endpoints around its own."""

    inner: ClassVar[type[Backend]]
    writer_class: ClassVar[type[WriterAround]] = WriterAround
    reader_class: ClassVar[type[ReaderAround]] = ReaderAround

    name: ClassVar[str]
    summary: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @classmethod
    def probe(cls) -> None:
        cls.inner.probe()

    def create(self, channel: ChannelSpec) -> Address:
        return self.inner().create(channel)

    def open_writer(self, address: Address) -> Writer:
        return self.writer_class(self.inner().open_writer(address), address)

    def open_reader(self, address: Address, index: int) -> Reader:
        return self.reader_class(self.inner().open_reader(address, index), address, index)

    def destroy(self, address: Address) -> None:
        self.inner().destroy(address)
