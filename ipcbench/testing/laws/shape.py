"""Laws C18 and C19: importing and pickling, and the type of every error."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ipcbench.backend import Address
from ipcbench.spec import DELIVERIES, WAIT_STRATEGIES
from ipcbench.testing.agents.pattern import UNFIT
from ipcbench.testing.agents.pool import SpawnPool
from ipcbench.testing.failure import AgentError, Failure, LawBroken, require
from ipcbench.testing.fixture import DEADLINE_S, PATIENCE_S, SHORT_S, ChannelUnderTest, EndpointUnderTest, Fixture
from ipcbench.testing.laws.limits import expect_failure, fill

_MOST_READERS_ASKED = 1024
_MOST_BYTES_ASKED = 2**40

_ODD_TIMEOUTS_S: tuple[object, ...] = (math.nan, -math.inf, -1e300, "1", [])


def importing_is_pure(fixture: Fixture) -> None:
    """C18: importing touches no resource; backends and addresses survive pickling."""
    pool = SpawnPool()
    try:
        (agent,) = pool.acquire(1)
        touched = agent.start("touched_by_import", "import", module=fixture.backend.__module__).result(DEADLINE_S)
    finally:
        pool.discard()
    require(not touched, f"importing {fixture.backend.__module__} touched {'; '.join(touched)}")
    backend = fixture.backend()
    with fixture.channel(opened=False) as channel:
        channel.destroy()
        make = fixture.create if fixture.can.launcher == "fork" else backend.create
        address = make(channel.address.channel)
        try:
            for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
                _survives_pickling(address, backend, protocol)
            require(Address.from_dict(address.as_dict()) == address, "from_dict(as_dict) gives another address")
        finally:
            backend.destroy(address)


def _survives_pickling(address: Address, backend: object, protocol: int) -> None:
    try:
        same = pickle.loads(pickle.dumps(address, protocol))  # noqa: S301 - our own bytes
        again = pickle.loads(pickle.dumps(backend, protocol))  # noqa: S301 - our own bytes
    except Exception as error:
        raise LawBroken(f"pickling with protocol {protocol} raised {Failure.of(error)}") from error
    require(same == address, f"an address became {same} by pickling, not {address}")
    require(type(again) is type(backend), f"a backend became a {type(again).__name__} by pickling")


def errors_are_ours(fixture: Fixture) -> None:
    """C19: every error is an IpcbenchError, and names the error that it replaces as its cause."""
    for what, failure in _provoked(fixture):
        kind = failure.kind
        require(bool(failure.kinds), f"{what} raised {failure}, which is not an IpcbenchError\n{failure.trace}")
        require(not failure.hidden, f"{what} raised {kind} for {failure.hidden}, without naming it as __cause__")


def _provoked(fixture: Fixture) -> Iterator[tuple[str, Failure]]:
    """Provoke errors of every kind; yield what was done and the failure, if there was one."""
    yield from _unsupported(fixture)
    for delivery in fixture.deliveries:
        with fixture.channel(delivery=delivery, max_message_bytes=1_000, depth=2) as channel:
            yield from _at_open_ends(channel)
            yield from _at_closed_ends(channel)
    alone = fixture.can.launcher != "mpiexec"  # under mpiexec, opening waits for all endpoints
    if alone and not fixture.can.remote:
        with fixture.channel(opened=False) as channel:
            channel.destroy()
            for endpoint in channel.endpoints:
                yield from _raised(f"opening a {endpoint.role} of a channel that was destroyed", endpoint)


def _unsupported(fixture: Fixture) -> Iterator[tuple[str, Failure]]:
    """Ask for channels beyond the capabilities."""
    can, base = fixture.can, fixture.spec()
    channels = [replace(base, delivery=d) for d in DELIVERIES if d not in can.deliveries]
    channels += [replace(base, wait=w) for w in WAIT_STRATEGIES if w not in can.waits and w != "auto"]
    if can.max_readers < _MOST_READERS_ASKED:
        channels.append(replace(base, readers=can.max_readers + 1))
    if can.max_message_bytes < _MOST_BYTES_ASKED:
        channels.append(replace(base, max_message_bytes=can.max_message_bytes + 1))
    for channel in channels:
        try:
            fixture.create(channel)
        except AgentError as error:
            yield f"create({channel})", error.failure
        else:
            raise LawBroken(f"create made {channel}, which is beyond the capabilities")


def _raised(what: str, endpoint: EndpointUnderTest) -> Iterator[tuple[str, Failure]]:
    try:
        endpoint.open()
    except AgentError as error:
        yield what, error.failure


def _failed(what: str, outcome: dict[str, Any]) -> Iterator[tuple[str, Failure]]:
    if outcome["failure"] is not None:
        yield what, Failure.from_dict(outcome["failure"])


def _at_open_ends(channel: ChannelUnderTest) -> Iterator[tuple[str, Failure]]:
    writer, reader = channel.endpoints
    yield from _failed("read of an empty channel", reader.play("read", timeout_s=SHORT_S))
    yield from _failed("read(0) of an empty channel", reader.play("read", timeout_s=0.0))
    large = writer.play("write", seed=channel.seed, sequence=0, size=1_001, timeout_s=SHORT_S)
    yield from _failed("write of too many bytes", large)
    for kind in UNFIT:
        unfit = writer.play("write", seed=channel.seed, sequence=0, size=0, timeout_s=SHORT_S, kind=kind)
        yield f"write of {kind}", expect_failure(writer, unfit, "PayloadTypeError", f"a write of {kind}")
    for odd in _ODD_TIMEOUTS_S:
        yield from _failed(f"read with a time-out of {odd!r}", reader.play("read", timeout_s=odd))
    yield from _raised("opening a second writer", EndpointUnderTest(channel, "writer", 0, reader.agent))
    yield from _raised("opening a reader a second time", EndpointUnderTest(channel, "reader", 0, writer.agent))
    yield from _raised("opening a reader beyond the last", EndpointUnderTest(channel, "reader", 1, writer.agent))
    if channel.address.channel.delivery == "every_message":
        yield from _failed("write to a full channel", fill(channel, 0, SHORT_S, size=1_000))


def _at_closed_ends(channel: ChannelUnderTest) -> Iterator[tuple[str, Failure]]:
    """Close the writer, read to the end and beyond, then use both endpoints after their close."""
    writer, reader = channel.endpoints
    closing = writer.start("close")
    stream = {"seed": channel.seed, "first": 0, "count": 2**40, "sizes": [1_000]}
    reader.play("read_stream", **stream, timeout_s=PATIENCE_S, extra_s=0)
    closing.result(DEADLINE_S)
    yield from _failed("read after the end of the stream", reader.play("read", timeout_s=SHORT_S))
    reader.close()
    yield from _failed("read after close", reader.play("read", timeout_s=SHORT_S))
    closed = writer.play("write", seed=channel.seed, sequence=0, size=64, timeout_s=SHORT_S)
    yield from _failed("write after close", closed)
