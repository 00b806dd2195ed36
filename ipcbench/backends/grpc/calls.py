"""What the loop does for the endpoints: a server and a stream to each reader for a writer, a call for a reader.

A reader finds the writer by a file with its target and a secret. Both sides prove to each other that they know the
secret: any user can connect to a port, or take it after the writer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any

from ipcbench.backends.grpc.loop import METHOD, OPTIONS, SERVICE, loop
from ipcbench.backends.grpc.loop import library as grpc
from ipcbench.errors import EndOfStream, PeerLost, TransportError
from ipcbench.sync.liveness import Liveness
from ipcbench.sync.loop import News
from ipcbench.sync.place import Place, find, publish

_RECEIPT = Struct("<Q")
"""How many messages a reader has taken in all."""
_ANY_PORT = ":0"
_LOOK_S, _MOST_LOOK_S = 0.001, 0.05
"""How soon a reader looks again whether there is a writer, at first and at most."""


def listen(server: Any, targets: Iterable[str]) -> str:
    """Have a server listen at the first of the targets where it can; return that, with its port.

    Raises:
        OSError: it cannot listen at any.
    """
    for target in targets:
        try:
            port = server.add_insecure_port(target)
        except RuntimeError as error:
            failure = OSError(str(error).partition("\n")[0])
            continue
        return f"{target.removesuffix(_ANY_PORT)}:{port}" if target.endswith(_ANY_PORT) else target
    raise failure


class Stream:
    """The messages between the writer and one reader, at one of their sides.

    Attributes:
        messages: not yet sent, or not yet read.
        taken_count: how many the reader has taken.
        changed: set when there is something to send, messages or that count.
        has_come: whether the reader has connected.
        has_left: whether its stream has ended, whatever the reason.
    """

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.taken_count = 0
        self.changed = asyncio.Event()
        self.has_come = self.has_left = False

    def leave(self) -> None:
        """End the stream to a reader that is gone."""
        self.has_left = True
        self.changed.set()


class Client:
    """What the loop does for a reader: it reads the stream, as far as the writer's credit goes. It knows no endpoint,
    so that one which is dropped can end it.
    """

    def __init__(self, liveness: Liveness) -> None:
        self.news, self.stream = News(), Stream()
        self.failure: TransportError | None = None
        """Why nothing comes after the messages of the stream."""
        self._name, self._role, self._liveness = liveness.directory.name, liveness.role, liveness

    def has_news(self) -> bool:
        """Return whether there is a message, or there will be none."""
        return bool(self.stream.messages) or self.failure is not None

    async def start(self, targets: Iterable[str], path: Path) -> None:
        self._work = asyncio.ensure_future(self._run(path))

    async def stop(self, grace_s: float) -> None:
        self._work.cancel()
        await asyncio.wait([self._work])

    async def _run(self, path: Path) -> None:
        pause_s = _LOOK_S
        try:
            while True:
                with suppress(FileNotFoundError):  # it does not listen yet
                    await self._receive(find(path))
                self._liveness.check_unused()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_LOOK_S)
        except TransportError as failure:
            self.failure = failure.with_traceback(None)  # which would keep the channel
        except (OSError, grpc.RpcError) as error:
            self.failure = TransportError(f"cannot connect to the writer of channel {self._name!r}: {error}")
            self.failure.__cause__ = error
        finally:
            self.news.tell()

    async def _receive(self, place: Place) -> None:
        """Receive until the end, and raise it; return if there is no writer yet."""
        told: dict[str, str] = {}
        async with grpc.aio.insecure_channel(place.target, options=OPTIONS) as channel:
            proof = ("role", self._role), ("proof", place.proof(f"to {self._role}"))
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=proof)
            sending = asyncio.ensure_future(self._send_receipts(call))
            try:
                with suppress(grpc.RpcError):
                    told |= await self._greeted(call)
                    await self._take(call.read, told, place)
                if not told and await call.code() is grpc.StatusCode.UNAVAILABLE:
                    return
                await asyncio.to_thread(self._liveness.note_at_end, "writer")
                self._liveness.check_unused()
                raise PeerLost(f"the writer of channel {self._name!r} died without closing: {await call.details()}")
            finally:
                sending.cancel()
                call.cancel()

    async def _greeted(self, call: Any) -> dict[str, str]:
        """Wait until the writer has taken the call, and return what it says of itself. A server that closes may leave a
        connection without an answer.
        """
        greeting = asyncio.ensure_future(call.initial_metadata())
        try:
            while not (await asyncio.wait([greeting], timeout=_MOST_LOOK_S))[0]:
                self._liveness.check_unused()
            return dict(greeting.result() or ())
        finally:
            greeting.cancel()

    async def _take(self, read: Any, told: dict[str, str], place: Place) -> None:
        messages, news, end = self.stream.messages, self.news, str(told.get("end", "")).encode()
        if end and not place.is_proof(told.get("proof"), f"from {self._role}"):
            raise TransportError(f"another program listens in the place of the writer of channel {self._name!r}")
        while end and (message := await read()) is not grpc.aio.EOF:
            if message == end:
                raise EndOfStream(f"channel {self._name!r} has ended")
            messages.append(message)
            if news.is_awaited:
                news.tell()

    async def _send_receipts(self, call: Any) -> None:
        with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the stream has ended, and the other task knows why
            while True:
                await self.stream.changed.wait()
                self.stream.changed.clear()
                await call.write(_RECEIPT.pack(self.stream.taken_count))


class Server:
    """What the loop does for a writer: it sends each message to all readers."""

    def __init__(self, roles: Iterable[str]) -> None:
        self.news = News()
        self.log: deque[bytes] = deque()
        """Messages that the loop has not handed to the streams. One step puts a message there, for all readers."""
        self.streams = {role: Stream() for role in roles}
        self.is_idle = True
        self._has_ended = False
        self._end = secrets.token_hex(16).encode()
        """The message that ends a stream, and that no message is by chance."""

    async def start(self, targets: Iterable[str], path: Path) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self._place = publish(path, listen(self._server, targets))
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def pump(self) -> None:
        """Hand on what was written."""
        while self.log:
            message = self.log.popleft()
            for stream in self.streams.values():
                if not stream.has_left:
                    stream.messages.append(message)
        self.is_idle = True
        if self.log:  # it came just before, and nobody has rung
            loop.soon(self.pump)
        for stream in self.streams.values():
            stream.changed.set()

    def end(self) -> None:
        """End all streams after what was written."""
        self._has_ended = True
        self.pump()

    async def _serve(self, _requests: Any, context: Any) -> None:
        role, proof = (str(dict(context.invocation_metadata()).get(key, "")) for key in ("role", "proof"))
        if role not in self.streams or not self._place.is_proof(proof, f"to {role}"):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED)
        stream = self.streams[role]
        if stream.has_come:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS)
        stream.has_come = True
        receiving = asyncio.ensure_future(self._receive(stream, context))
        try:
            proof = self._place.proof(f"from {role}")
            await context.send_initial_metadata((("proof", proof), ("end", self._end.decode())))
            self.news.tell()
            while not stream.has_left and not (self._has_ended and not stream.messages):
                while stream.messages:
                    await context.write(stream.messages.popleft())
                stream.changed.clear()
                if not self._has_ended:
                    await stream.changed.wait()
            if not stream.has_left:
                await context.write(self._end)
                await receiving  # until the reader has left: its receipts would meet no call, and gRPC then drops …
                # … what it has received and its reader has not read
        finally:
            stream.has_left = True
            stream.messages.clear()
            receiving.cancel()
            self.news.tell()

    async def _receive(self, stream: Stream, context: Any) -> None:
        while (receipt := await context.read()) is not grpc.aio.EOF:
            (stream.taken_count,) = _RECEIPT.unpack(receipt)
            self.news.tell()
