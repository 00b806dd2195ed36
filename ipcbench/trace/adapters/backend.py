"""A Backend of ipcbench whose messages carry a context and are recorded.

The 40 bytes and the payload are written as two parts, which a backend that `writes_in_place` need not join first.
Reading copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Self

from ipcbench.backend import PLAIN_TYPES, Address, Backend, Message, Reader, Waits, Writer, bytes_of, require_size
from ipcbench.errors import TransportTimeout
from ipcbench.spec import ChannelSpec, WaitStrategy
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
        self._head = memoryview(b"")

    def carry(self, call: Call) -> Self:
        """Let the next message carry the context of `call`; it then has no record of its own."""
        self._traffic.carry(call)
        return self

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        self.write_parts((message,), timeout_s)

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        with self._recorded() as call:
            pieces = [part if type(part) in PLAIN_TYPES else bytes_of(part) for part in parts]
            self._inner.write_parts((self._traffic.context(call), *pieces), timeout_s)
            self._payload_bytes = sum(map(len, pieces))
        self._give_up_reserved()  # as the inner one may have done

    def reserve(self, size_bytes: int, timeout_s: float | None = None) -> memoryview:
        require_size(size_bytes)
        self._give_up_reserved()
        room = self._inner.reserve(CONTEXT_BYTES + size_bytes, timeout_s)
        self._head, self._reserved = room[:CONTEXT_BYTES], room[CONTEXT_BYTES:]
        return self._reserved

    def commit(self, size_bytes: int | None = None, timeout_s: float | None = None) -> None:
        with self._recorded() as call:
            self._payload_bytes = len(self._committed(size_bytes))
            self._head[:] = self._traffic.context(call)
            self._inner.commit(CONTEXT_BYTES + self._payload_bytes, timeout_s)
        self._give_up_reserved()

    def _give_up_reserved(self) -> None:
        super()._give_up_reserved()
        self._head.release()

    @contextmanager
    def _recorded(self) -> Iterator[Call]:
        call = self._traffic.begin()
        try:
            yield call
        except TransportTimeout:
            self._traffic.abandon(call)  # nothing was sent, and it may be tried again
            raise
        except BaseException as error:
            self._traffic.fail(call, error)
            raise
        self._traffic.end(call, self._payload_bytes)

    @property
    def waits(self) -> Waits | WaitStrategy | None:
        return self._inner.waits

    def close(self) -> None:
        self._give_up_reserved()
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

    def release(self) -> None:
        self._inner.release()

    def fileno(self) -> int | None:
        return self._inner.fileno()

    @property
    def waits(self) -> Waits | WaitStrategy | None:
        return self._inner.waits

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

    def open_writer(self, address: Address, index: int = 0) -> Writer:
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
