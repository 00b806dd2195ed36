"""A reader: a gRPC client, whose stream the loop reads, as far as the writer's credit goes."""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ipcbench.backend import Reader
from ipcbench.backends.grpc.loop import METHOD, OPTIONS, SERVICE, credit, loop
from ipcbench.backends.grpc.loop import library as grpc
from ipcbench.backends.grpc.places import UnixPlaces
from ipcbench.backends.grpc.writer import CHECK_S, RECEIPT, GrpcEndpoint
from ipcbench.errors import EndOfStream, PeerLost, TransportError, TransportTimeout
from ipcbench.sync.directory import as_transport_errors
from ipcbench.sync.liveness import Liveness
from ipcbench.sync.loop import News
from ipcbench.util.clock import deadline_ns, remaining_s

_LOOK_S, _MOST_LOOK_S = 0.001, 0.05
"""How soon a reader looks again whether there is a writer, at first and at most."""


class _Client:
    """What the loop does for a reader."""

    def __init__(self, name: str, role: str, liveness: Liveness) -> None:
        self.inbox: deque[bytes] = deque()
        self.news = News()
        self.failure: TransportError | None = None
        """Why nothing comes after what is in the inbox."""
        self.taken_count = 0
        self._name, self._role, self._liveness = name, role, liveness
        self._receipts = asyncio.Event()
        self._work: asyncio.Future[None] | None = None

    async def start(self, places: UnixPlaces, path: Path) -> None:
        self._work = asyncio.ensure_future(self._run(places, path))

    async def stop(self, _: float) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def receipt(self) -> None:
        """Tell the writer how many messages are taken."""
        self._receipts.set()

    async def _run(self, places: UnixPlaces, path: Path) -> None:
        try:
            place = await self._place(places, path)
            async with grpc.aio.insecure_channel(place.target, options=OPTIONS) as channel:
                proof = ("role", self._role), ("proof", place.proof(f"to {self._role}"))
                call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=proof, wait_for_ready=True)
                writing = asyncio.ensure_future(self._send_receipts(call))
                try:
                    await self._receive(call, place.proof(f"from {self._role}"))
                finally:
                    writing.cancel()
                    call.cancel()
        except TransportError as failure:
            self.failure = failure
        except (OSError, grpc.RpcError) as error:
            self.failure = TransportError(f"cannot connect to the writer of channel {self._name!r}: {error}")
            self.failure.__cause__ = error
        finally:
            self.news.tell()

    async def _place(self, places: UnixPlaces, path: Path) -> Any:
        pause_s = _LOOK_S
        while (place := places.find(path)) is None:
            self._check_note()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_LOOK_S)
        return place

    def _check_note(self) -> None:
        """Raise EndOfStream if the writer has closed without a message, maybe before it could be found."""
        if self._liveness.note_of("writer") == "unused":
            raise EndOfStream(f"channel {self._name!r} was closed without a message")

    async def _receive(self, call: Any, proof: str) -> None:
        inbox, news, read = self.inbox, self.news, call.read
        beginning = asyncio.ensure_future(call.initial_metadata())
        while not (await asyncio.wait([beginning], timeout=CHECK_S))[0]:
            self._check_note()
        with suppress(grpc.RpcError):
            told = dict(await beginning or ())
            end = str(told.get("end", "")).encode()
            if end and not hmac.compare_digest(str(told.get("proof")), proof):
                raise TransportError(f"another program listens in the place of the writer of channel {self._name!r}")
            while end and (message := await read()) is not grpc.aio.EOF:
                if message == end:
                    raise EndOfStream(f"channel {self._name!r} has ended")
                inbox.append(message)
                if news.is_awaited:
                    news.tell()
        self._check_note()
        raise PeerLost(f"the writer of channel {self._name!r} died without closing: {await call.details()}")

    async def _send_receipts(self, call: Any) -> None:
        with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the stream has ended, and the other task knows why
            while True:
                await self._receipts.wait()
                self._receipts.clear()
                await call.write(RECEIPT.pack(self.taken_count))


class GrpcReader(GrpcEndpoint, Reader):
    """Connects as soon as there is a writer."""

    def _open(self, undo: ExitStack) -> None:
        self._side = self._client = _Client(self._channel.name, self._liveness.role, self._liveness)
        self._batch = credit(self._channel)[1]
        self._count, self._due_count = 0, self._batch
        self._start()

    def read(self, timeout_s: float | None = None) -> memoryview:
        client = self._client
        inbox = client.inbox
        if not inbox or self._failure is not None:
            self._await(timeout_s)
        view = memoryview(inbox[0])
        if self._count + 1 >= self._due_count:
            client.taken_count = self._count + 1
            loop.soon(client.receipt)
            self._due_count = self._count + 1 + self._batch
        # No exception of a signal handler comes between the step of an iterator in C and the first call in the body.
        for _ in iter(inbox.popleft, None):
            self._count += 1
            break
        return view

    def _await(self, timeout_s: float | None) -> None:
        """Wait until a message is there."""
        client, deadline = self._client, deadline_ns(timeout_s)
        while True:
            self._require_usable()
            failure = client.failure  # before the look: what is in the inbox then came before it
            if client.inbox:
                return
            if failure is not None:
                self._failure = failure
                continue
            left_s = remaining_s(deadline)
            if left_s == 0.0:
                client.news.silence()
                if client.inbox or client.failure is not None:
                    continue
                self._check_writer()
                raise TransportTimeout(f"no message in channel {self._channel.name!r} within {timeout_s} s")
            client.news.wait(self._has_news, CHECK_S if left_s is None else min(left_s, CHECK_S))
            if not self._has_news():
                self._check_writer()

    def _has_news(self) -> bool:
        return bool(self._client.inbox) or self._client.failure is not None

    def _check_writer(self) -> None:
        """Raise PeerLost if the writer has died, though a child of its may keep the connection."""
        if self._liveness.is_check_due() and self._liveness.is_gone("writer"):
            if self._liveness.note_of("writer") is not None or self._has_news():
                return  # the end is on its way
            self._fail(self._lost())

    def fileno(self) -> int:
        self._require_open()
        with as_transport_errors(f"cannot wait for channel {self._channel.name!r}"):
            return self._client.news.fileno()

    def _close(self) -> None:
        try:
            self._liveness.leave_note()
        finally:
            self.let_go()
