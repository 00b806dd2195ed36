"""NATS, by nats-py: one subject for all readers, in a server of the channel's own, or in one that is there already.

The server hands a message on to whoever has subscribed by then, and closes the connection of a reader for which it
would have to hold more than `max_pending`, or to which it could not write for `write_deadline`: what it held is lost
(tests/conformance/test_nats.py). So a reader hears only once the server has confirmed its subscription, the writer
waits for all, and its credit keeps what the server holds below its limits.

nats-py is a library of asyncio. Its loop runs in a thread of its own, and not in the calls: so it answers the server,
sends the rest of a large message and notices the server's end also between calls, and it swallows no exception that a
signal handler raises in a call.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ipcbench.backend import Address, Capabilities, unavailable
from ipcbench.errors import PeerLost, Unsupported
from ipcbench.spec import ChannelSpec
from ipcbench.sync import CarriedBackend, CarriedReader, CarriedWriter, kill_group, start_service
from ipcbench.sync.directory import channel_directory, channel_token, write_private
from ipcbench.sync.loop import LoopThread, News
from ipcbench.sync.server import Server, keep_url, url_of
from ipcbench.util.files import read_limited

absence: ModuleNotFoundError | None = None
try:
    import nats
    from nats.aio.client import Client
except ModuleNotFoundError as error:
    nats, absence = None, error  # type: ignore[assignment]

SERVER = Server("nats", ("nats-server",), variable="IPCBENCH_NATS_URL")

_MOST_FILE_BYTES = 65_536
_LARGEST_BYTES = 2**26
_SPARE_BYTES = 4096
"""More than what the server adds to a message."""
_MOST_HELD_BYTES = 2**25
"""Half of the `max_pending` that servers have by default."""
_ANSWER_S, _CLOSE_S, _LINGER_S = 10.0, 1.0, 3.0
_NEVER_S = 31_536_000

_CONFIGURATION = """\
host: 127.0.0.1
port: -1
ports_file_dir: {folder}
authorization {{ token: "{token}", timeout: 60 }}
max_payload: {largest}
max_pending: {most}
write_deadline: "8760h"
ping_interval: "8760h"
"""

_DESCRIPTORS = 12, 0
"""More than an event loop and a connection open."""
_ERRORS: tuple[type[Exception], ...] = (nats.errors.Error, asyncio.TimeoutError) if nats else ()
_thread = LoopThread("nats-py")


class _Link:
    """A connection to the server. All but `send` and what is read is of the loop's thread.

    Attributes:
        client: nats-py's.
        news: tells when a message has come, the end was handed over, or the connection is lost.
        came: messages that have come.
        is_ended: whether the server has all that was sent.
    """

    def __init__(self, channel: str) -> None:
        self.client, self.news = Client(), News()
        self.came: deque[bytes] = deque()
        self.is_ended = False
        self._channel, self._error = channel, ""
        self._out: deque[bytes | None] = deque()
        self._is_idle = True
        self._wake: asyncio.Event
        self._pumping: asyncio.Task[None] | None = None

    async def open(self, url: str, role: str = "probe") -> None:
        """Connect.

        Raises:
            OSError: there is no server, it does not answer, or it refuses; or one of `_ERRORS`, or ValueError.
        """
        asyncio.get_running_loop().set_exception_handler(_ignore)
        try:
            await self.client.connect(
                url,
                name=f"{self._channel}:{role}",
                error_cb=self._failed,
                closed_cb=self._closed,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_ANSWER_S,  # type: ignore[arg-type]
                ping_interval=_NEVER_S,
            )
        except BaseException as error:
            await self.close()
            if isinstance(error, asyncio.TimeoutError):
                raise TimeoutError(f"the server does not answer within {_ANSWER_S:.0f} s") from error
            if isinstance(error, nats.errors.NoServersError):
                raise ConnectionRefusedError(f"no server listens: {self._error}") from error
            raise

    async def hear(self, subject: str) -> None:
        """Subscribe, and wait until the server knows."""
        await self.client.subscribe(subject, cb=self._take, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self.client.flush(_ANSWER_S)  # type: ignore[arg-type]

    async def speak(self, subject: str) -> None:
        """Publish from now on what is sent."""
        self._wake = asyncio.Event()
        self._pumping = asyncio.create_task(self._pump(subject))

    async def _take(self, message: Any) -> None:
        self.came.append(message.data)
        if self.news.is_awaited:
            self.news.tell()

    async def _failed(self, error: Exception) -> None:
        self._error = self._error or str(error) or type(error).__name__
        self.news.tell()

    async def _closed(self) -> None:
        self.news.tell()

    async def _pump(self, subject: str) -> None:
        publish, out = self.client.publish, self._out
        while not self.is_ended:
            while out:
                message = out.popleft()
                if message is not None:
                    await publish(subject, message)
                    continue
                await self.client.flush(_NEVER_S)
                self.is_ended = True
                self.news.tell()
            self._is_idle = True
            if not out:
                await self._wake.wait()
                self._wake.clear()

    def send(self, message: bytes | None) -> None:
        """Have the loop publish a message, at once; after None, `is_ended` says when the server has them all.

        Raises:
            OSError: the server has gone.
        """
        if self.is_lost():
            raise ConnectionResetError(self._error)
        self._out.append(message)
        if self._is_idle:
            self._is_idle = False
            _thread.soon(self._wake.set)

    def is_lost(self) -> bool:
        """Return whether the connection is; nats-py does not always call back."""
        return bool(self._error) or self.client.is_closed

    def check(self) -> None:
        """Raise PeerLost if the connection is lost."""
        if self.is_lost():
            raise PeerLost(f"the server of channel {self._channel!r} has died, or closed the connection: {self._error}")

    async def close(self) -> None:
        """Close the connection, whether or not the server takes what was not sent."""
        if self._pumping is not None:
            self._pumping.cancel()
        with suppress(OSError, *_ERRORS):
            await asyncio.wait_for(self.client.close(), _CLOSE_S)
        stream = getattr(self.client._transport, "_io_writer", None)
        if stream is not None:
            stream.transport.abort()


def _ignore(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """Print nothing of tasks that fail: whoever waits for one looks whether the connection is lost."""


class NatsWriter(CarriedWriter):
    """The writer, which publishes."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = _ERRORS
    library_folder = "/nats/"
    descriptors = _DESCRIPTORS
    library: _Link

    def connect(self) -> _Link:
        return _connect(self, "writer", "speak")

    def send(self, message: bytes | bytearray | memoryview) -> None:
        self.library.send(bytes(message))

    def is_handed_over(self) -> bool:
        link = self.library
        if self._is_heard and not link.is_lost():
            link.send(None)
            link.news.wait(lambda: link.is_ended or link.is_lost(), _LINGER_S)
        return link.is_ended or link.is_lost() or not self._is_heard

    def disconnect(self) -> None:
        _thread.done(self.library.close())


class NatsReader(CarriedReader):
    """A reader, which has subscribed."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = _ERRORS
    library_folder = "/nats/"
    descriptors = _DESCRIPTORS
    library: _Link

    def connect(self) -> _Link:
        return _connect(self, f"reader-{self.index}", "hear")

    def receive(self, timeout_s: float) -> bytes | None:
        link = self.library
        if not link.came and timeout_s:
            link.news.wait(lambda: link.came or link.is_lost(), timeout_s)
        return link.came.popleft() if link.came else None

    def disconnect(self) -> None:
        _thread.done(self.library.close())


def _connect(endpoint: NatsWriter | NatsReader, role: str, begin: str) -> _Link:
    """Return the connection of an endpoint, which from now on also looks whether that is lost."""
    address = endpoint.address
    folder = channel_directory(address)
    link, url = _Link(address.channel.name), url_of(folder)

    async def start() -> None:
        await link.open(url, role)
        try:
            await getattr(link, begin)(f"ipcbench.{address.channel.name}.{channel_token(address)}")
        except BaseException:
            await link.close()
            raise

    try:
        _thread.done(start())
    except ConnectionError as error:
        raise PeerLost(f"no connection to the server of channel {address.channel.name!r}, which has died") from error
    if not SERVER.is_own(folder):
        endpoint.depth = min(endpoint.depth, max(1, _MOST_HELD_BYTES // (address.channel.max_message_bytes or 1)))
    endpoint._cursors.check_carrier = link.check
    return link


def _ask(url: str) -> int:
    """Return how large a message that server takes.

    Raises:
        OSError: there is none; or one of `_ERRORS`, or ValueError.
    """
    try:
        parts = urlsplit(url)
        is_place = parts.scheme == "nats" and bool(parts.hostname) and parts.port != 0  # of tls nothing would be seen
    except ValueError:
        is_place = False
    if not is_place:  # nats-py would not say what is wrong
        raise OSError(f"{url!r} is not nats://host:port")
    link = _Link("ipcbench")
    _thread.done(link.open(url))
    _thread.done(link.close())
    return int(link.client.max_payload)


def _start(folder: Path, channel: ChannelSpec, undo: ExitStack) -> str:
    """Start a server that listens on the loopback interface, and return its URL, which has its token."""
    token, path = secrets.token_hex(16), folder / f"{SERVER.service}.conf"
    most = max(_LARGEST_BYTES, 2 * (channel.depth + 1) * (channel.max_message_bytes + _SPARE_BYTES))
    quoted = json.dumps(str(folder), ensure_ascii=False)
    write_private(path, _CONFIGURATION.format(folder=quoted, token=token, largest=_LARGEST_BYTES, most=most))
    places: list[str] = []

    def is_ready() -> bool:
        for file in folder.glob("*.ports"):
            with suppress(OSError, ValueError, KeyError):  # it is being written
                places.extend(json.loads(read_limited(file, _MOST_FILE_BYTES))["nats"])
        return bool(places)

    command = [SERVER.program, "-c", str(path)]
    undo.callback(kill_group, start_service(folder, SERVER.service, command, is_ready))
    return places[0].replace("://", f"://{token}@")


class Nats(CarriedBackend):
    """Subjects of a NATS server."""

    name: ClassVar[str] = "nats"
    summary: ClassVar[str] = "NATS (nats-py): a subject for all readers, in a server of the channel's own"
    capabilities: ClassVar[Capabilities] = replace(CarriedBackend.capabilities, max_message_bytes=_LARGEST_BYTES)
    writer, reader = NatsWriter, NatsReader

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            raise unavailable(cls.name, absence, "nats", "pip install 'ipcbench[nats]'") from absence
        SERVER.probe(cls.name, _ask, _ERRORS)

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        channel, url = address.channel, SERVER.named_url
        if not url:
            url = _start(folder, channel, undo)
        elif (most_bytes := _ask(url)) < channel.max_message_bytes:
            raise Unsupported(
                f"the server at {SERVER.variable} takes no messages of {channel.max_message_bytes} bytes: its "
                f"max_payload is {most_bytes}"
            )
        keep_url(folder, url)
