"""The writer and the readers of a channel, for which the loop works."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import wait
from contextlib import ExitStack

from ipcbench.backend import Address, Message, Reader, Writer, bytes_of
from ipcbench.backends.grpc.calls import Client, Server
from ipcbench.backends.grpc.loop import credit, loop
from ipcbench.backends.grpc.loop import library as grpc
from ipcbench.errors import MessageTooLarge, TransportError, TransportTimeout
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.directory import as_transport_errors, channel_file
from ipcbench.sync.interrupts import in_background
from ipcbench.sync.liveness import CHECK_NS
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.ownership import keep_for_ever
from ipcbench.sync.peers import PeerEndpoint
from ipcbench.util.clock import deadline_ns, slice_s

_CHECK_S = CHECK_NS / 1e9
_DESCRIPTORS, _PER_READER = 14, 2
"""More than gRPC opens for its loop and an endpoint, and for each reader of a writer; where it may not, it aborts."""
_LINGER_S, _CLOSE_S = 30.0, 0.1
"""How long a closed writer continues to send to slow readers, and how long `close` waits for it."""


class GrpcEndpoint(PeerEndpoint):
    """What both endpoints have in common."""

    _side: Client | Server

    def __init__(self, address: Address, targets: Iterable[str], *index: int) -> None:
        self._pid, self._targets = os.getpid(), targets
        with as_transport_errors(f"cannot open an endpoint of channel {address.channel.name!r}"):
            require_descriptors(_DESCRIPTORS + (0 if index else _PER_READER * address.channel.readers))
        loop.running()
        super().__init__(address, *index)

    async def _start(self) -> None:
        grpc.aio.init_grpc_aio()  # or whoever frees the last channel or server would wait for a thread to end
        await self._side.start(self._targets, channel_file(self._address, "place"))

    def _drop(self) -> None:
        self._side.news.close()
        if self._pid != os.getpid():
            keep_for_ever(self._side)  # to free it would touch a library whose threads the child does not have
        elif not sys.is_finalizing():
            loop.done(self._side.stop(0))


class GrpcReader(GrpcEndpoint, Reader):
    """Connects as soon as there is a writer."""

    def _open(self, undo: ExitStack) -> None:
        self._side = self._client = Client(self._liveness)
        self._inbox = self._client.stream.messages
        self._batch = credit(self._channel)[1]
        self._count, self._due_count = 0, self._batch
        loop.done(self._start())

    def read(self, timeout_s: float | None = None) -> memoryview:
        inbox = self._inbox
        if not inbox or self._failure is not None:
            self._await(timeout_s)
        view = memoryview(inbox[0])
        if self._count + 1 >= self._due_count:
            stream = self._client.stream
            stream.taken_count = self._count + 1
            loop.soon(stream.changed.set)
            self._due_count = self._count + 1 + self._batch
        # No exception of a signal handler comes between the step of an iterator in C and the first call in the body.
        for _ in iter(inbox.popleft, None):
            self._count += 1
            break
        return view

    def _await(self, timeout_s: float | None) -> None:
        """Wait until a message is there."""
        client, deadline = self._client, deadline_ns(timeout_s)
        self._require_usable()
        while not client.has_news():
            left_s = slice_s(deadline, _CHECK_S)
            client.news.wait(client.has_news, left_s)
            if not left_s:
                client.news.silence()
            if not client.has_news():
                self._check_writer()
                if not left_s:
                    raise self._timed_out("no message in", timeout_s)
            self._require_usable()
        if not self._inbox and client.failure is not None:  # which came after all messages
            self._fail(client.failure)

    def _check_writer(self) -> None:
        """Raise PeerLost if the writer has died, though a child of its may keep the connection."""
        if not (self._liveness.is_check_due() and self._liveness.is_gone("writer")):
            return
        if self._liveness.note_of("writer") is None and not self._client.has_news():  # else the end is on its way
            self._fail(self._lost())

    def fileno(self) -> int:
        self._require_open()
        with as_transport_errors(f"cannot wait for channel {self._channel.name!r}"):
            return self._client.news.fileno()


class GrpcWriter(GrpcEndpoint, Writer):
    """Listens from its opening on."""

    def _open(self, undo: ExitStack) -> None:
        self._side = self._server = Server(reader_roles(self._channel))
        self._readers = dict(self._server.streams)
        self._limit_bytes = self._channel.max_message_bytes
        self._window = credit(self._channel)[0]
        self._sent_count = self._granted_count = 0
        self._begun = False
        with as_transport_errors(f"the writer of channel {self._channel.name!r} cannot listen"):
            loop.done(self._start())

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
            for role in [role for role, stream in self._readers.items() if stream.has_left]:
                self._forget(role)
            awaited = [role for role, stream in self._readers.items() if not stream.has_come]
            self._begun = not awaited
            if self._begun and self._count_room():
                return
            if self._liveness.is_check_due():
                self._check_readers()
            if not server.is_idle or server.log:  # an interrupted write may not have rung
                loop.soon(server.pump)
            left_s = slice_s(deadline, _CHECK_S)
            if not left_s:
                what = f"has no {awaited[0]} yet" if awaited else "has no room: a reader is too far behind"
                raise TransportTimeout(f"channel {self._channel.name!r} {what}")
            server.news.wait(lambda: False, left_s)

    def _count_room(self) -> bool:
        taken_count = min((stream.taken_count for stream in self._readers.values()), default=self._sent_count)
        self._granted_count = taken_count + self._window
        return self._sent_count < self._granted_count

    def _check_readers(self) -> None:
        """Look for readers that are gone, though a child of theirs may keep their connection, or never came."""
        for role, stream in list(self._readers.items()):
            has_closed = not stream.has_come and self._liveness.note_of(role) is not None
            if has_closed or self._liveness.is_gone(role):
                self._forget(role)

    def _forget(self, role: str) -> None:
        """Forget a reader that is gone.

        Raises:
            PeerLost: it did not close.
        """
        loop.soon(self._readers.pop(role).leave)
        if self._liveness.note_at_end(role) is None:
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
        loop.soon(self._server.end)
        stopping = loop.begin(self._server.stop(_LINGER_S))
        while wait([stopping], _CHECK_S).not_done:
            for role, stream in self._server.streams.items():
                is_served = stream.has_come and not stream.has_left
                if is_served and self._liveness.is_current() and self._liveness.is_gone(role):
                    loop.soon(stream.leave)
        self._liveness.release()
