"""The writer: a gRPC server, and a stream to each reader."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import sys
from collections import deque
from contextlib import ExitStack, suppress
from struct import Struct
from typing import Any

from ipcbench.backend import Address, Message, Writer, bytes_of
from ipcbench.backends.grpc.loop import METHOD, OPTIONS, SERVICE, credit, loop
from ipcbench.backends.grpc.loop import library as grpc
from ipcbench.backends.grpc.places import UnixPlaces
from ipcbench.errors import MessageTooLarge, TransportError, TransportTimeout
from ipcbench.sync.directory import as_transport_errors, channel_file
from ipcbench.sync.interrupts import in_background
from ipcbench.sync.liveness import CHECK_NS
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.loop import News
from ipcbench.sync.ownership import keep_for_ever
from ipcbench.sync.peers import PeerEndpoint
from ipcbench.util.clock import deadline_ns, remaining_s

RECEIPT = Struct("<Q")
"""How many messages a reader has taken in all."""
CHECK_S = CHECK_NS / 1e9
_LINGER_S, _CLOSE_S = 30.0, 0.1
"""How long a closed writer continues to send to slow readers, and how long `close` waits for it."""


class GrpcEndpoint(PeerEndpoint):
    """What both endpoints have in common: the loop works for them."""

    _side: Any
    """What the loop does for this endpoint. It knows no endpoint, so that one which is dropped can end it."""

    def __init__(self, address: Address, places: UnixPlaces, *index: int) -> None:
        self._pid, self._places = os.getpid(), places
        loop.running()
        super().__init__(address, *index)

    def _start(self) -> None:
        loop.done(self._start_side())

    async def _start_side(self) -> None:
        grpc.aio.init_grpc_aio()  # or whoever frees the last channel or server would wait for a thread to end
        await self._side.start(self._places, channel_file(self._address, "writer"))

    def _drop(self) -> None:
        self._side.news.close()
        if self._pid != os.getpid():
            keep_for_ever(self._side)  # to free it would touch a library whose threads the child does not have
        elif not sys.is_finalizing():
            loop.done(self._side.stop(0))


class _Stream:
    """The stream to one reader."""

    def __init__(self) -> None:
        self.unsent: deque[bytes] = deque()
        self.news = asyncio.Event()
        self.read_count = 0


class _Server:
    """What the loop does for a writer."""

    def __init__(self, roles: list[str]) -> None:
        self.log: deque[bytes] = deque()
        """Messages that the loop has not handed to the streams. One step puts a message there, for all readers."""
        self.news = News()
        self.streams: dict[str, _Stream] = {role: _Stream() for role in roles}
        self.came: set[str] = set()
        self.left: set[str] = set()
        """Readers whose streams have ended, whatever the reason."""
        self.is_idle = True
        self.has_ended = False
        self._end = secrets.token_hex(16).encode()
        """The message that ends a stream, and that no message is by chance."""

    async def start(self, places: UnixPlaces, path: Any) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self._place = places.listen(self._server, path)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def pump(self) -> None:
        """Hand on what was written."""
        while self.log:
            message = self.log.popleft()
            for role, stream in self.streams.items():
                if role not in self.left:
                    stream.unsent.append(message)
        self.is_idle = True
        if self.log:  # it came just before, and nobody has rung
            loop.running().call_soon(self.pump)
        for stream in self.streams.values():
            stream.news.set()

    def end(self) -> None:
        """End all streams after what was written."""
        self.has_ended = True
        self.pump()

    def end_one(self, role: str) -> None:
        """End the stream to a reader that is gone."""
        self.left.add(role)
        self.streams[role].news.set()

    async def _serve(self, _requests: Any, context: Any) -> None:
        role, proof = (dict(context.invocation_metadata()).get(key, "") for key in ("role", "proof"))
        if role not in self.streams or not hmac.compare_digest(str(proof), self._place.proof(f"to {role}")):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED)
        if role in self.came:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS)
        self.came.add(role)
        stream = self.streams[role]
        receiving = asyncio.ensure_future(self._receive(stream, context))
        try:
            proof = self._place.proof(f"from {role}")
            await context.send_initial_metadata((("proof", proof), ("end", self._end.decode())))
            self.news.tell()
            while role not in self.left and not (self.has_ended and not stream.unsent):
                while stream.unsent:
                    await context.write(stream.unsent.popleft())
                stream.news.clear()
                if not self.has_ended:
                    await stream.news.wait()
            if role not in self.left:
                await context.write(self._end)
                await receiving  # until the reader has left: its receipts would meet no call, and gRPC then drops …
                # … what it has received and its reader has not read
        finally:
            self.left.add(role)
            stream.unsent.clear()
            receiving.cancel()
            self.news.tell()

    async def _receive(self, stream: _Stream, context: Any) -> None:
        while (receipt := await context.read()) is not grpc.aio.EOF:
            (stream.read_count,) = RECEIPT.unpack(receipt)
            self.news.tell()


class GrpcWriter(GrpcEndpoint, Writer):
    """Listens from its opening on."""

    def _open(self, undo: ExitStack) -> None:
        self._readers = reader_roles(self._channel)
        self._side = self._server = _Server(self._readers)
        self._awaited = [*self._readers]
        self._limit_bytes = self._channel.max_message_bytes
        self._window = credit(self._channel)[0]
        self._sent_count = self._granted_count = self._read_count = 0
        self._begun = False
        with as_transport_errors(f"the writer of channel {self._channel.name!r} cannot listen"):
            self._start()

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) is not bytes:
            message = bytes(bytes_of(message))
        if len(message) > self._limit_bytes and self._failure is None:
            raise MessageTooLarge(len(message), self._limit_bytes)
        if self._sent_count >= self._granted_count:
            self._make_room(deadline_ns(timeout_s))
        server = self._server
        # No exception of a signal handler comes between the step of an iterator in C and the first call in the body.
        for _ in map(server.log.append, (message,)):
            self._sent_count += 1
        if server.is_idle:
            server.is_idle = False
            loop.soon(server.pump)

    def _make_room(self, deadline: int | None) -> None:
        """Wait until all readers are connected and none is too far behind; after a loss or `close`, raise its error."""
        while True:
            self._require_usable()
            server = self._server
            for role in [role for role in self._readers if role in server.left]:
                self._forget(role)
            awaited = [role for role in self._awaited if role not in server.came]
            self._begun = not awaited
            if self._begun and self._count_room():
                return
            if self._liveness.is_check_due():
                self._check_readers()
            if not server.is_idle or server.log:  # an interrupted write may not have rung
                loop.soon(server.pump)
            left_s = remaining_s(deadline)
            if left_s == 0.0:
                what = f"has no {awaited[0]} yet" if awaited else "has no room: a reader is too far behind"
                raise TransportTimeout(f"channel {self._channel.name!r} {what}")
            server.news.wait(lambda: False, CHECK_S if left_s is None else min(left_s, CHECK_S))

    def _count_room(self) -> bool:
        streams = self._server.streams
        self._read_count = min((streams[role].read_count for role in self._readers), default=self._sent_count)
        self._granted_count = self._read_count + self._window
        return self._sent_count < self._granted_count

    def _check_readers(self) -> None:
        """Look for readers that are gone, though a child of theirs may keep their connection, or never came."""
        for role in list(self._readers):
            has_closed = role not in self._server.came and self._liveness.note_of(role) is not None
            if has_closed or self._liveness.is_gone(role):
                self._forget(role)

    def _forget(self, role: str) -> None:
        """Forget a reader that is gone.

        Raises:
            PeerLost: it did not close.
        """
        self._readers.remove(role)
        self._awaited = [each for each in self._awaited if each != role]
        loop.soon(self._server.end_one, role)
        if self._liveness.note_of(role) is None:
            self._fail(self._lost(role))

    def _refuse(self, failure: TransportError) -> None:
        self._granted_count = 0
        super()._refuse(failure)

    def _close(self) -> None:
        self._refuse_all()
        try:
            self._liveness.leave_note("ended" if self._begun else "unused")
        finally:
            if sys.is_finalizing():
                self._liveness.release()
            else:
                in_background(self._flush, f"{self._channel.name} flush", _CLOSE_S)

    def _flush(self) -> None:
        """Send the rest, as long as there are readers that take it."""
        server = self._server
        loop.soon(server.end)
        stopping = asyncio.run_coroutine_threadsafe(server.stop(_LINGER_S), loop.running())
        while not stopping.done():
            with suppress(TimeoutError, asyncio.TimeoutError):
                stopping.result(CHECK_S)
            for role in server.came - server.left:
                if self._liveness.is_current() and self._liveness.is_gone(role):
                    loop.soon(server.end_one, role)
        self._liveness.release()
