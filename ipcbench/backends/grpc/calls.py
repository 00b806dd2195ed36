"""What the loop does for the endpoints: a server and a stream to each reader for a writer, a call for a reader.

A reader finds the writer by a file with its target and a secret. Both sides prove to each other that they know the
secret: any user can connect to a port, or take it after the writer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any

from ipcbench.backends.grpc.loop import METHOD, OPTIONS, SERVICE, loop
from ipcbench.backends.grpc.loop import library as grpc
from ipcbench.errors import EndOfStream, PeerLost, TransportError
from ipcbench.sync.directory import as_transport_errors
from ipcbench.sync.inbox import Inbox
from ipcbench.sync.liveness import Liveness
from ipcbench.sync.loop import News
from ipcbench.sync.place import Place, find, publish

_RECEIPT = Struct("<Q")
"""How many messages a reader has taken in all."""
_ANY_PORT = ":0"
_LOOK_S, _MOST_LOOK_S = 0.001, 0.05
"""How soon a reader looks again whether there is a writer, at first and at most."""
_STOP_S = 3.0
"""How long a server may take to stop. If a dead reader's child keeps a connection that is full, it would for ever."""


def listen(server: Any, targets: Iterable[str]) -> str:
    """Have a server listen at the first of the targets where it can; return that, with its port.

    Raises:
        OSError: it cannot listen at any.
    """
    for target in targets:
        try:
            port = server.add_insecure_port(target)
            return f"{target.removesuffix(_ANY_PORT)}:{port}" if target.endswith(_ANY_PORT) else target
        except RuntimeError as error:
            failure = OSError(str(error).partition("\n")[0])
    raise failure


class Stream:
    """The messages to one reader.

    Attributes:
        messages: not yet sent.
        taken_count: how many the reader has taken.
        changed: set when there is something to send.
        serving: the task that sends, as soon as the reader has connected.
        has_left: whether the stream has ended, whatever the reason.
    """

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.taken_count = 0
        self.changed = asyncio.Event()
        self.serving: asyncio.Task[Any] | None = None
        self.has_left = False

    def leave(self) -> None:
        """End the stream to a reader that is gone, though a child of it may keep the connection."""
        self.has_left = True
        if self.serving is not None:
            self.serving.cancel()


class Client:
    """What the loop does for a reader: it reads the stream, as far as the writer's credit goes.

    Attributes:
        inbox: where it puts messages.
        taken_count: how many the reader has taken.
        changed: set when the writer is to know that.
    """

    def __init__(self, liveness: Liveness) -> None:
        self.inbox, self.taken_count, self.changed = Inbox(), 0, asyncio.Event()
        self._liveness, self._writer = liveness, f"the writer of channel {liveness.directory.name!r}"

    @property
    def news(self) -> News:
        """Tells whoever reads that there is something."""
        return self.inbox.news

    async def start(self, targets: Iterable[str], path: Path) -> None:
        grpc.aio.init_grpc_aio()  # or whoever frees the last channel or server would wait for a thread to end
        self._work = asyncio.ensure_future(self._run(path))

    async def stop(self) -> None:
        self._work.cancel()
        await asyncio.wait([self._work])

    async def _run(self, path: Path) -> None:
        pause_s = _LOOK_S
        try:
            while True:
                # Whatever it is, or a reader without a time-out would wait for ever.
                with as_transport_errors(f"cannot read from {self._writer}", Exception), suppress(FileNotFoundError):
                    await self._receive(find(path))
                self._liveness.check_unused()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_LOOK_S)
        except TransportError as failure:
            self.inbox.end(failure)

    async def _receive(self, place: Place) -> None:
        """Receive until the end, and raise it; return if there is no writer yet."""
        role, proof = self._liveness.role, None
        async with grpc.aio.insecure_channel(place.target, options=OPTIONS) as channel:
            words = ("role", role), ("proof", place.proof(f"to {role}"))
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=words)
            sending, greeting = map(asyncio.ensure_future, (self._send_receipts(call), call.initial_metadata()))
            try:
                with suppress(grpc.RpcError):
                    while not (await asyncio.wait([greeting], timeout=_MOST_LOOK_S))[0]:  # a server that closes may …
                        self._liveness.check_unused()  # … leave a connection without an answer
                    if proof := dict(greeting.result() or ()).get("proof"):
                        await self._take(call.read, place, proof)
                if proof is None and await call.code() is grpc.StatusCode.UNAVAILABLE:
                    return
                await asyncio.to_thread(self._liveness.note_at_end, "writer")
                self._liveness.check_unused()
                raise PeerLost(f"{self._writer} died without closing: {await call.details()}")
            finally:
                for work in (sending, greeting, call):
                    work.cancel()

    async def _take(self, read: Any, place: Place, proof: str) -> None:
        """Take messages until the stream breaks; raise what ends it, or what is wrong with it."""
        if not place.is_proof(proof, f"from {self._liveness.role}"):
            raise TransportError(f"another program listens in the place of {self._writer}")
        put, end = self.inbox.put, place.proof("end").encode()
        while (message := await read()) is not grpc.aio.EOF:
            if message == end:
                raise EndOfStream(f"channel {self._liveness.directory.name!r} has ended")
            put(message)

    async def _send_receipts(self, call: Any) -> None:
        with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the stream has ended, and the other task knows why
            while True:
                await self.changed.wait()
                self.changed.clear()
                await call.write(_RECEIPT.pack(self.taken_count))


class Server:
    """What the loop does for a writer: it sends each message to all readers.

    Attributes:
        news: told when a reader has come, has taken messages, or has left.
        log: messages that the loop has not handed to the streams. One step puts a message there, for all readers.
        streams: of each role.
        is_idle: whether `pump` is to be called when something is put into the log.
        end: the message that ends the streams, which no message is by chance, and which readers know by the secret.
    """

    def __init__(self, roles: Iterable[str]) -> None:
        self.news = News()
        self.log: deque[bytes] = deque()
        self.streams = {role: Stream() for role in roles}
        self.is_idle = True

    async def start(self, targets: Iterable[str], path: Path) -> None:
        grpc.aio.init_grpc_aio()  # see `Client.start`
        self._server = grpc.aio.server(options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self._place = publish(path, listen(self._server, targets))
        self.end = self._place.proof("end").encode()
        await self._server.start()

    async def stop(self) -> None:
        await asyncio.wait([asyncio.ensure_future(self._server.stop(0))], timeout=_STOP_S)

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

    async def _serve(self, _requests: Any, context: Any) -> None:
        words = dict(context.invocation_metadata())
        role, message = str(words.get("role")), b""
        if role not in self.streams or not self._place.is_proof(words.get("proof"), f"to {role}"):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED)
        stream = self.streams[role]
        if stream.serving is not None:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS)
        stream.serving, receiving = asyncio.current_task(), asyncio.ensure_future(self._receive(stream, context))
        try:
            await context.send_initial_metadata((("proof", self._place.proof(f"from {role}")),))
            self.news.tell()
            while message is not self.end:
                await stream.changed.wait()
                stream.changed.clear()
                while stream.messages:
                    message = stream.messages.popleft()
                    await context.write(message)
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
