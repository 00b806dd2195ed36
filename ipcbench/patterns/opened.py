"""What makes a backend offer patterns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import TypeVar

from ipcbench.backend import Address, Backend, Reader, Writer
from ipcbench.errors import TransportError
from ipcbench.patterns.fan_in import FanInReader
from ipcbench.patterns.parts import addresses_of, create_parts, destroy_parts
from ipcbench.patterns.queue import QueueReader, QueueWriter
from ipcbench.spec import PATTERNS, ChannelSpec
from ipcbench.sync.interrupts import whole
from ipcbench.sync.locks import is_open

Kind = TypeVar("Kind", bound=type[Backend])


def with_patterns(kind: Kind) -> Kind:
    """Let a class of backends offer all patterns, if its readers have descriptors; its own methods see broadcasts."""
    create, open_writer, open_reader, destroy = kind.create, kind.open_writer, kind.open_reader, kind.destroy
    release = kind.release

    @whole  # a handler's exception waits until all channels are made, and then they are destroyed
    @wraps(create)
    def create_any(self: Backend, channel: ChannelSpec) -> Address:
        if channel.pattern == "broadcast":
            return create(self, channel)
        self.require(channel)
        return create_parts(self, channel)

    @wraps(open_writer)
    def open_any_writer(self: Backend, address: Address, index: int = 0) -> Writer:
        _require_index("writer", index, address.channel.writers)
        is_whole = address.channel.pattern == "broadcast"
        return open_writer(self, address) if is_whole else _open_writer(self, address, index)

    @wraps(open_reader)
    def open_any_reader(self: Backend, address: Address, index: int) -> Reader:
        is_whole = address.channel.pattern == "broadcast"
        return open_reader(self, address, index) if is_whole else _open_reader(self, address, index)

    @wraps(destroy)
    def destroy_any(self: Backend, address: Address) -> None:
        if address.channel.pattern == "broadcast":
            destroy(self, address)
        else:
            destroy_parts(self, address)

    @wraps(release)
    def release_any(self: Backend, address: Address) -> None:
        for part in (address,) if address.channel.pattern == "broadcast" else addresses_of(address):
            release(self, part)

    kind.create, kind.open_writer = create_any, open_any_writer  # type: ignore[method-assign]
    kind.open_reader, kind.destroy = open_any_reader, destroy_any  # type: ignore[method-assign]
    kind.release = release_any  # type: ignore[method-assign]
    kind.capabilities = replace(kind.capabilities, patterns=frozenset(PATTERNS), redelivers=True)
    return kind


def _open_writer(backend: Backend, address: Address, index: int) -> Writer:
    parts = addresses_of(address)
    if address.channel.pattern == "fan_in":
        return backend.open_writer(parts[index])
    with ExitStack() as undo, _told_of_an_open_one(address, parts):
        workers = [
            (
                undo.enter_context(backend.open_writer(tasks)),
                undo.enter_context(backend.open_reader(finished, 0)),
                partial(is_open, tasks, "reader-0"),
            )
            for tasks, finished in zip(parts[::2], parts[1::2], strict=True)
        ]
        writer = QueueWriter(address.channel, workers)
        undo.pop_all()
        return writer


@contextmanager
def _told_of_an_open_one(address: Address, parts: list[Address]) -> Iterator[None]:
    """Say that a queue has its writer: of a worker that has left, that has closed its part."""
    try:
        yield
    except TransportError as error:
        if any(is_open(part, "writer") for part in parts[::2]):
            raise TransportError(f"channel {address.channel.name!r} already has its writer") from error
        raise


def _open_reader(backend: Backend, address: Address, index: int) -> Reader:
    parts = addresses_of(address)
    _require_index("reader", index, address.channel.readers)
    if address.channel.pattern == "fan_in":
        return FanInReader(address.channel, parts, lambda part: backend.open_reader(part, 0))
    with ExitStack() as undo:
        tasks = undo.enter_context(backend.open_reader(parts[2 * index], 0))
        worker = QueueReader(address.channel, tasks, undo.enter_context(backend.open_writer(parts[2 * index + 1])))
        undo.pop_all()
        return worker


def _require_index(role: str, index: int, count: int) -> None:
    if isinstance(index, bool) or not hasattr(index, "__index__") or not 0 <= index < count:
        raise TransportError(f"the channel has {role}s 0 to {count - 1}, not {index!r}")
