"""Shared memory to the readers on the writer's host, ZeroMQ with keys to those on others: two channels that one writer
serves.

A message goes to all readers or to none: its room in shared memory is reserved, ZeroMQ takes it, and only then do the
near readers see it. So the slowest reader of either kind holds the writer.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ipcbench.backend import PLAIN_TYPES, Address, Backend, Capabilities, Message, Reader, Waits, Writer, bytes_of
from ipcbench.backends.zmq.backend import ZmqTcp
from ipcbench.errors import ConfigError, EndpointClosed, TransportError, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync.directory import SEPARATOR
from ipcbench.sync.folder import FolderBackend
from ipcbench.sync.interrupts import is_of_handler, uninterrupted, whole
from ipcbench.util.clock import deadline_ns, remaining_s

_NEAR, _FAR = "shm", ZmqTcp.name
_LONGEST_STEM = 33
"""Of the name of the near channel, before what tells it from all others."""
_PARTS = {_NEAR: 2, _FAR: 4}
"""Backend → lines of the location of a channel of it."""
_MAX_READERS = 64


class HybridWriter(Writer):
    """Writes to both channels."""

    def __init__(self, near: Any, far: Any, channel: ChannelSpec) -> None:
        self._near, self._far, self._name = near, far, channel.name
        self._limit_bytes = channel.max_message_bytes
        self._failure: TransportError | None = None
        self._is_torn = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return isinstance(self._failure, EndpointClosed)

    @property
    def waits(self) -> Waits | WaitStrategy | None:
        waits: Waits | WaitStrategy | None = self._near.waits
        return waits

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        deadline = deadline_ns(timeout_s)
        self._near.reserve(len(message), timeout_s)[:] = message
        try:
            self._far.write(message, remaining_s(deadline))
            self._near.commit()
        except BaseException as error:
            if is_of_handler(error) or not isinstance(error, TransportError):
                self._is_torn, self._failure = True, self._torn(error)
            elif not isinstance(error, TransportTimeout):
                self._failure = error
            raise

    def _torn(self, error: BaseException) -> TransportError:
        return TransportError(
            f"a write to channel {self._name!r} was interrupted by {type(error).__name__}, and some readers may lack "
            "its message: close the writer, destroy the channel and make another"
        )

    def close(self) -> None:
        self._failure = EndpointClosed(f"this writer of channel {self._name!r} is closed")
        uninterrupted(self._close)

    def _close(self) -> None:
        """Close both; if some readers may lack a message, none is told that the stream ends."""
        with ExitStack() as held:
            for writer in (self._near, self._far):
                held.callback(writer.let_go if self._is_torn else writer.close)


class Hybrid(Backend):
    """Shared memory to near readers and zmq-tcp to far ones; on one host, all are near."""

    name: ClassVar[str] = "hybrid"
    summary: ClassVar[str] = "shared memory to the readers on the writer's host, zmq-tcp to those on others"
    capabilities: ClassVar[Capabilities] = replace(
        FolderBackend.capabilities,
        deliveries=frozenset({"every_message"}),
        max_readers=_MAX_READERS,
        remote=True,
    )

    @classmethod
    def probe(cls) -> None:
        for name in (_NEAR, _FAR):
            get_backend(name).probe()

    @whole
    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        if len(set(channel.near)) < len(channel.near):
            raise ConfigError("near", channel.near, "each reader once")
        with ExitStack() as undo:
            parts = []
            near_name = f"{channel.name[:_LONGEST_STEM]}-near-{secrets.token_hex(4)}"
            for name, nested in _channels(channel, near_name).items():
                backend = get_backend(name)()
                made = backend.create(nested)
                undo.callback(backend.destroy, made)
                parts.append(made.location)
            undo.pop_all()
        return Address(self.name, channel, SEPARATOR.join(parts))

    @whole
    def open_writer(self, address: Address, index: int = 0) -> Writer:
        with ExitStack() as undo:
            writers = [
                undo.enter_context(get_backend(name)().open_writer(nested)) for name, nested in _nested(address).items()
            ]
            undo.pop_all()
        if len(writers) == 1:
            return writers[0]
        far, near = writers
        return HybridWriter(near, far, address.channel)

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        near = _near(address.channel)
        is_near = index in near
        place = sum((other in near) == is_near for other in range(index))
        name = _NEAR if is_near else _FAR
        if not (0 <= index < address.channel.readers and (nested := _nested(address).get(name))):
            raise TransportError(f"channel {address.channel.name!r} has no reader {index}")
        return get_backend(name)().open_reader(nested, place)

    def destroy(self, address: Address) -> None:
        for name, nested in _nested(address).items():
            get_backend(name)().destroy(nested)

    def release(self, address: Address) -> None:
        for name, nested in _nested(address).items():
            get_backend(name)().release(nested)


def _near(channel: ChannelSpec) -> tuple[int, ...]:
    return channel.near if channel.host else tuple(range(channel.readers))


def _channels(channel: ChannelSpec, near_name: str) -> dict[str, ChannelSpec]:
    """Return backend → its channel, to far and to near readers as far as there are any. The first has the channel's
    name.
    """
    near = len(_near(channel))
    found = {}
    if far := channel.readers - near:
        found[_FAR] = replace(channel, readers=far, near=(), processes=())
    if near:
        name = near_name if far else channel.name
        found[_NEAR] = replace(channel, name=name, readers=near, near=(), processes=(), host="")
    return found


def _nested(address: Address) -> dict[str, Address]:
    """Return backend → the address of its channel.

    Raises:
        TransportError: this is no address of a hybrid channel.
    """
    parts = address.location.split(SEPARATOR)
    found = {}
    near_name = Path(parts[min(_PARTS[_FAR], len(parts) - 1)]).name  # of its folder
    for name, nested in _channels(address.channel, near_name).items():
        found[name] = Address(name, nested, SEPARATOR.join(parts[: _PARTS[name]]))
        del parts[: _PARTS[name]]
    if parts:
        raise TransportError(f"the address of channel {address.channel.name!r} is not as `create` returned it")
    return found
