"""The writer and the readers of a channel, for which the loop works."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack

from ipcbench.backend import Address, Message, bytes_of
from ipcbench.backends.grpc.calls import Client, Server
from ipcbench.backends.grpc.loop import loop
from ipcbench.errors import MessageTooLarge, TransportTimeout
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.directory import as_transport_errors, channel_file
from ipcbench.sync.inbox import InboxReader
from ipcbench.sync.liveness import CHECK_NS
from ipcbench.sync.locks import reader_roles
from ipcbench.sync.ownership import keep_for_ever
from ipcbench.sync.peers import PeerEndpoint, PeerWriter, credit
from ipcbench.util.clock import deadline_ns, slice_s

_CHECK_S = CHECK_NS / 1e9
_DESCRIPTORS, _PER_READER = 14, 2
"""More than gRPC opens for its loop and an endpoint, and for each reader of a writer; where it may not, it aborts."""
_CREDIT_BYTES, _LEAST_COUNT = 2**24, 4
"""How large the messages together may be that a reader is behind, unless they are so few."""


class GrpcEndpoint(PeerEndpoint):
    """What both endpoints have in common."""

    _side: Client | Server

    def __init__(self, address: Address, targets: Iterable[str], *index: int) -> None:
        most_count = max(_LEAST_COUNT, _CREDIT_BYTES // max(1, address.channel.max_message_bytes))
        self._window, self._batch = credit(address.channel, 2, most_count)
        self._targets = targets
        super().__init__(address, *index)

    def _start(self, descriptors_count: int) -> None:
        """Have the loop begin its work for this endpoint.

        Raises:
            TransportError: it cannot, or gRPC would not find that many descriptors.
        """
        with as_transport_errors(f"cannot open the {self._liveness.role} of channel {self._channel.name!r}"):
            require_descriptors(descriptors_count)
            loop.done(self._side.start(self._targets, channel_file(self._address, "place")))

    def _drop(self) -> None:
        self._side.news.close()
        if loop.pid != os.getpid():
            keep_for_ever(self._side)  # to free it would touch a library whose threads the child does not have
        elif not sys.is_finalizing():
            loop.done(self._side.stop())


class GrpcReader(GrpcEndpoint, InboxReader):
    """Connects as soon as there is a writer."""

    _side: Client

    def _open(self, undo: ExitStack) -> None:
        self._side = Client(self._liveness)
        self._receive_into(self._side.inbox)
        self._start(_DESCRIPTORS)

    def _tell_taken(self, count: int) -> None:
        self._side.taken_count = count
        loop.soon(self._side.changed.set)


class GrpcWriter(GrpcEndpoint, PeerWriter):
    """Listens from its opening on."""

    _side: Server

    def _open(self, undo: ExitStack) -> None:
        self._side = Server(reader_roles(self._channel))
        self._readers = dict(self._side.streams)
        self._limit_bytes = self._channel.max_message_bytes
        self._start(_DESCRIPTORS + _PER_READER * self._channel.readers)

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) is not bytes:
            message = bytes(bytes_of(message))
        if len(message) > self._limit_bytes and self._failure is None:
            raise MessageTooLarge(len(message), self._limit_bytes)
        if self._room <= 0:
            self._make_room(deadline_ns(timeout_s))
        server = self._side
        # No exception of a signal handler comes between the step of an iterator in C and the first call in the body.
        for _ in map(server.log.append, (message,)):
            self._room -= 1
        if server.is_idle:
            server.is_idle = False
            loop.soon(server.pump)

    def _make_room(self, deadline: int | None) -> None:
        """Wait until all readers are connected and none is too far behind; after a loss or `close`, raise its error."""
        server = self._side
        while True:
            self._require_usable()
            for role in [role for role, stream in self._readers.items() if stream.has_left]:
                self._forget(role)
            awaited = [role for role, stream in self._readers.items() if stream.serving is None]
            self._begun = not awaited
            if self._begun and self._count_room(stream.taken_count for stream in self._readers.values()):
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

    def _check_readers(self) -> None:
        """Look for readers that are gone, though a child of theirs may keep their connection, or never came."""
        for role, stream in list(self._readers.items()):
            has_closed = stream.serving is None and self._liveness.note_of(role) is not None
            if has_closed or self._liveness.is_gone(role):
                self._forget(role)

    def _leave_out(self, role: str) -> None:
        loop.soon(self._readers.pop(role).leave)

    def _flush(self, timeout_s: float) -> None:
        server, deadline = self._side, deadline_ns(timeout_s)
        server.log.append(server.end)
        loop.soon(server.pump)
        while any(stream.serving and not stream.has_left for stream in self._readers.values()):
            left_s = slice_s(deadline, _CHECK_S)
            if not left_s or sys.is_finalizing():  # when the loop has stopped
                return
            server.news.wait(lambda: False, left_s)
            if self._liveness.is_check_due() and self._liveness.is_current():
                for role in [role for role in self._readers if self._liveness.is_gone(role)]:
                    self._leave_out(role)
