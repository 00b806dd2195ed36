"""A backend wrapped around another one: passes every call on, for subclasses to change some of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ipcbench.backend import Address, Backend, Message, Reader, Waits, Writer
from ipcbench.spec import ChannelSpec, WaitStrategy


class WriterWrapper(Writer):
    """Passes every call on to `inner`."""

    def __init__(self, inner: Writer, address: Address) -> None:
        self.inner = inner
        self.address = address

    @property
    def waits(self) -> Waits | WaitStrategy | None:
        return self.inner.waits

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self.inner.write(message, timeout_s)

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        self.inner.write_parts(parts, timeout_s)

    def write_many(self, messages: Sequence[Message], timeout_s: float | None = None) -> int:
        return self.inner.write_many(messages, timeout_s)

    def reserve(self, size_bytes: int, timeout_s: float | None = None) -> memoryview:
        return self.inner.reserve(size_bytes, timeout_s)

    def commit(self, size_bytes: int | None = None, timeout_s: float | None = None) -> None:
        self.inner.commit(size_bytes, timeout_s)

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until the workers of a queue have finished with everything."""
        self.inner.drain(timeout_s)  # type: ignore[attr-defined] # only that of a queue has it

    def close(self) -> None:
        self.inner.close()


class ReaderWrapper(Reader):
    """Passes every call on to `inner`."""

    def __init__(self, inner: Reader, address: Address, index: int) -> None:
        self.inner = inner
        self.address = address
        self.index = index

    @property
    def waits(self) -> Waits | WaitStrategy | None:
        return self.inner.waits

    def read(self, timeout_s: float | None = None) -> memoryview:
        return self.inner.read(timeout_s)

    def read_many(self, most: int, timeout_s: float | None = None) -> list[memoryview]:
        return self.inner.read_many(most, timeout_s)

    def release(self) -> None:
        self.inner.release()

    def fileno(self) -> int | None:
        return self.inner.fileno()

    def close(self) -> None:
        self.inner.close()


class BackendWrapper(Backend):
    """Passes every call on to the backend `inner`, and wraps the endpoints that it opens.

    A subclass sets `inner`, `name`, `summary` and `capabilities`, and the wrapper class of either endpoint.
    """

    inner: ClassVar[type[Backend]]
    writer_class: ClassVar[type[WriterWrapper]] = WriterWrapper
    reader_class: ClassVar[type[ReaderWrapper]] = ReaderWrapper

    @classmethod
    def probe(cls) -> None:
        cls.inner.probe()

    def create(self, channel: ChannelSpec) -> Address:
        return self.inner().create(channel)

    def open_writer(self, address: Address, index: int = 0) -> Writer:
        inner = self.inner()
        return self.writer_class(inner.open_writer(address, index) if index else inner.open_writer(address), address)

    def open_reader(self, address: Address, index: int) -> Reader:
        return self.reader_class(self.inner().open_reader(address, index), address, index)

    def destroy(self, address: Address) -> None:
        self.inner().destroy(address)
