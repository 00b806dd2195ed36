"""A Backend of ipcbench whose messages carry a context and are recorded.

A backend takes a message as one buffer, so the 40 bytes and the payload are joined: this copies the payload once,
unless it was written into what `reserve` returns. Reading copies nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Self

from ipcbench.backend import Address, Backend, Message, Reader, Writer
from ipcbench.spec import ChannelSpec
from ipcbench.trace.adapters.messages import Traffic
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.context import CONTEXT_BYTES, unpack_context
from ipcbench.trace.record.serve import Receiving
from ipcbench.util.clock import now_ns


class TracedWriter(Writer):
    """Writes messages with a context in front, and records each of them."""

    def __init__(self, inner: Writer, traffic: Traffic) -> None:
        self._inner = inner
        self._traffic = traffic
        self._buffer = memoryview(bytearray(4096))
        self._reserved = self._buffer[:0]

    def carry(self, call: Call) -> Self:
        """Let the next message carry the context of `call`; it then has no record of its own."""
        self._traffic.carry(call)
        return self

    def reserve(self, payload_bytes: int) -> memoryview:
        """Return room for a payload of this size; `write` of this very view copies nothing."""
        size = CONTEXT_BYTES + payload_bytes
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        self._reserved = self._buffer[CONTEXT_BYTES:size]
        return self._reserved

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        call = self._traffic.begin()
        try:
            if message is not self._reserved:
                view = memoryview(message).cast("B")
                self.reserve(len(view))[:] = view
            size = len(self._reserved)
            self._buffer[:CONTEXT_BYTES] = self._traffic.context(call)
            self._inner.write(self._buffer[: CONTEXT_BYTES + size], timeout_s)
        except BaseException as error:
            self._traffic.fail(call, error)
            raise
        self._traffic.end(call, size)

    def close(self) -> None:
        self._inner.close()


class TracedReader(Reader, Receiving):
    """Reads such messages, and records each of them; `trace.serve(reader)` serves the latest."""

    def __init__(self, inner: Reader, traffic: Traffic) -> None:
        self._inner = inner
        self._traffic = traffic

    def read(self, timeout_s: float | None = None) -> memoryview:
        asked_ns = now_ns()
        view = self._inner.read(timeout_s)
        context = unpack_context(view)
        payload = view if context is None else view[CONTEXT_BYTES:]
        self._traffic.arrive(asked_ns, len(payload), context)
        self.arrival = self._traffic.arrival
        return payload

    def close(self) -> None:
        self._inner.close()


class TracedBackend(Backend):
    """The wrapped backend, with room for a context of 40 bytes in each message."""

    inner_kind: ClassVar[type[Backend]]

    def __init__(self, inner: Backend, name: str) -> None:
        self._inner = inner
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return wrap_backend, (self._inner, self._name)

    @classmethod
    def probe(cls) -> None:
        cls.inner_kind.probe()

    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        return self._inner.create(replace(channel, max_message_bytes=channel.max_message_bytes + CONTEXT_BYTES))

    def open_writer(self, address: Address) -> Writer:
        return TracedWriter(self._inner.open_writer(address), self._traffic(address))

    def open_reader(self, address: Address, index: int) -> Reader:
        return TracedReader(self._inner.open_reader(address, index), self._traffic(address))

    def destroy(self, address: Address) -> None:
        self._inner.destroy(address)

    def _traffic(self, address: Address) -> Traffic:
        return Traffic(self._name or address.channel.name, address.backend)


@cache
def _kind_of(inner: type[Backend]) -> type[TracedBackend]:
    """Return a subclass of TracedBackend with the name, summary and capabilities of `inner`."""
    capabilities = replace(inner.capabilities, max_message_bytes=inner.capabilities.max_message_bytes - CONTEXT_BYTES)
    facts = {"name": inner.name, "summary": inner.summary, "capabilities": capabilities, "inner_kind": inner}
    return type(f"Traced{inner.__name__}", (TracedBackend,), {"__doc__": TracedBackend.__doc__, **facts})


def wrap_backend(inner: Backend, name: str = "", propagate: bool = True) -> Backend:
    """Return the backend with every channel recorded; contexts always travel."""
    return inner if isinstance(inner, TracedBackend) else _kind_of(type(inner))(inner, name)


def wrap_writer(inner: Writer, name: str = "", propagate: bool = True) -> Writer:
    """Return the writer with every message recorded; its channel must have room for 40 more bytes."""
    return inner if isinstance(inner, TracedWriter) else TracedWriter(inner, Traffic(name or "channel"))


def wrap_reader(inner: Reader, name: str = "", propagate: bool = True) -> Reader:
    """Return the reader with every message recorded."""
    return inner if isinstance(inner, TracedReader) else TracedReader(inner, Traffic(name or "channel"))
