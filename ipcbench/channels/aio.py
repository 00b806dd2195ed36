"""Channels by name with asyncio: `await channel.send(…)`, `await channel.recv()`, `async for obj in channel`.

>>> from ipcbench.channels import aio
>>> async with aio.connect("name") as channel:
...     await channel.send({"frame": frame})
...     async for obj in channel: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from ipcbench.channels import connect as blocking
from ipcbench.channels.channel import Channel as BlockingChannel
from ipcbench.channels.rendezvous import Rendezvous
from ipcbench.errors import EndOfStream, EndpointClosed, TransportTimeout
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

_LEAST_LOOK_S, _LOOKS_PER_S = 0.1, 500
"""Of looks whether the other side lives, since a death makes no descriptor readable: the shortest interval of each
channel or client, and how many all of a process make, about 2 % of a core."""
_FULL_S = 0.001
"""Interval of tries to send where there is no room."""
_MOST_IN_A_ROW = 8
"""Objects that may come or go before the loop's other tasks have their turn."""

_looking: WeakSet[object] = WeakSet()
"""Those that look."""


def look_s(owner: object) -> float:
    """Return how long `owner` may wait until it looks again whether the other side lives."""
    _looking.add(owner)
    return max(_LEAST_LOOK_S, len(_looking) / _LOOKS_PER_S)


def connect(name: str, backend: str | None = None, **options: Any) -> Channel:
    """Return an end of the channel of that name; it connects when it is entered, or at the first use.

    Args:
        name: of the channel.
        backend: name of the transport.
        options: as of `ipcbench.connect`.
    """
    Rendezvous("at", name)  # to refuse a wrong one at once
    return Channel(name, partial(blocking.connect, name, backend, **options))


class Channel:
    """One end of a channel, for one event loop; see `ipcbench.channels.channel.Channel`.

    Attributes:
        name: of the channel.
    """

    def __init__(self, name: str, connect: Callable[[], BlockingChannel]) -> None:
        self.name = name
        self._connect = connect
        self._channel: BlockingChannel | None = None
        self._descriptor: int | None = None
        self._waiting_count = 0
        self._news = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._in_a_row_count = 0
        self._is_closed = False

    async def _connected(self) -> BlockingChannel:
        if self._is_closed:
            raise EndpointClosed(f"this end of channel {self.name!r} is closed")
        if self._channel is None:
            async with self._connecting:
                if self._channel is None:
                    self._channel = await asyncio.to_thread(self._connect)
        return self._channel

    def _watch(self, channel: BlockingChannel) -> None:
        if self._descriptor is None and (descriptor := channel.fileno()) is not None:
            asyncio.get_running_loop().add_reader(descriptor, self._notice)
            self._descriptor = descriptor

    def _notice(self) -> None:
        self._news.set()
        if not self._waiting_count:  # the descriptor stays readable until somebody receives
            self._unwatch()

    def _unwatch(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._descriptor = None

    async def send(self, obj: Any, timeout_s: float | None = None) -> None:
        """Send an object; see `Channel.send`."""
        channel, deadline = await self._connected(), deadline_ns(timeout_s)
        await self._give_turn()
        while True:
            try:
                return channel.send(obj, 0.0)
            except TransportTimeout as error:
                if deadline is not None and now_ns() >= deadline:
                    raise TransportTimeout(f"channel {self.name!r}: not sent within {timeout_s:g} s: {error}") from None
                await asyncio.sleep(_FULL_S)

    async def recv(self, timeout_s: float | None = None, copy: bool = True) -> Any:
        """Return the next object; see `Channel.recv`."""
        channel, deadline = await self._connected(), deadline_ns(timeout_s)
        await self._give_turn()
        while True:
            self._news.clear()
            try:
                return channel.recv(0.0, copy)
            except TransportTimeout:
                left_s = remaining_s(deadline)
                if left_s == 0.0:
                    raise TransportTimeout(f"channel {self.name!r}: nothing came within {timeout_s:g} s") from None
            wait_s = look_s(self) if left_s is None else min(left_s, look_s(self))
            self._watch(channel)
            self._waiting_count += 1
            timer = asyncio.get_running_loop().call_later(wait_s, self._news.set)
            try:
                await self._news.wait()
            finally:
                self._waiting_count -= 1
                timer.cancel()
            self._in_a_row_count = 0

    async def _give_turn(self) -> None:
        """Let other tasks run where objects come or go without a wait: another process may never stop."""
        self._in_a_row_count += 1
        if self._in_a_row_count > _MOST_IN_A_ROW:
            self._in_a_row_count = 0
            await asyncio.sleep(0)

    async def value(self, timeout_s: float | None = None) -> Any:
        """Return the latest value; see `Channel.value`."""
        channel = await self._connected()
        if not channel.has_value:
            channel.keep(await self.recv(timeout_s))
        return channel.value()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield objects until the other side has closed."""
        while True:
            try:
                obj = await self.recv()
            except EndOfStream:
                return
            yield obj

    async def reconnect(self, timeout_s: float | None = None) -> None:
        """Wait for a place in the next epoch; see `Channel.reconnect`."""
        channel = await self._connected()
        self._unwatch()
        await asyncio.to_thread(channel.reconnect, timeout_s)

    async def close(self) -> None:
        """Leave the channel; a second call does nothing."""
        self._is_closed = True
        _looking.discard(self)
        self._unwatch()
        if self._channel is not None:
            await asyncio.to_thread(self._channel.close)

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
