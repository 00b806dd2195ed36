"""zenoh, by eclipse-zenoh: its publish/subscribe between peers, over a Unix socket in the channel's folder, or between
hosts over TCP (far.py).

Each reader subscribes to a key of its own, so that the writer sees by `matching_status` when it may write: what is put
before that is lost. zenoh looks for nobody (no scouting) and listens nowhere else.

zenoh's `CongestionControl.BLOCK` alone is not lossless: a transport closes when a peer takes nothing for
`wait_before_close`, or says nothing for `lease`, and what was put is lost although every `put` returned
(tests/conformance/test_zenoh.py). With the cursors' credit a put waits only for a process that is stopped, without a
limit of time; so may a `write`. `express` sends each message at once: a tenth of the messages, at ten times the costs.

zenoh bears no fork: a child of a process that has used it opens no endpoint (`TransportError`).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock
from typing import Any, ClassVar

from ipcbench.backend import Address, Capabilities, Reader, Writer, unavailable
from ipcbench.backends.zenoh.far import FarReader, FarWriter, make_login
from ipcbench.backends.zenoh.session import ERRORS, Session, absence, zenoh
from ipcbench.errors import TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync import (
    PUBLISHED,
    CarriedBackend,
    CarriedReader,
    CarriedWriter,
    channel_file,
    require_socket_path,
    whole,
)
from ipcbench.util.clock import deadline_ns, now_ns

_LOOK_S = 0.001
"""Until the writer looks again whether all subscriptions have come."""
_YIELDS, _ON_ITS_WAY_S = 20, 0.00005
"""How often a reader lets others run, and then how long it sleeps, until it looks for what is on its way."""


def _place(address: Address) -> str:
    return str(channel_file(address, "writer"))


def _key(index: int) -> str:
    return f"reader/{index}"


def _at(address: Address) -> list[str]:
    """Return where the writer listens, in zenoh's words."""
    return [f"unixsock-stream/{_place(address)}"]


class ZenohWriter(CarriedWriter):
    """The writer, which listens in the channel's folder."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = ERRORS
    descriptors: ClassVar[tuple[int, int]] = 18, 2
    bears_fork: ClassVar[bool] = False

    def connect(self) -> Session:
        made, block = Session(self.address.channel, listen=_at(self.address)), zenoh.CongestionControl.BLOCK
        keys = map(_key, range(self.address.channel.readers))
        made.parts = [made.session.declare_publisher(key, congestion_control=block) for key in keys]
        return made

    def await_peers(self, timeout_s: float | None) -> None:
        deadline, publishers, pause = deadline_ns(timeout_s), self.library.parts, Event()
        while not all(publishers[index].matching_status.matching for index in self._not_closed()):  # one may yet close
            self._check_peers()
            if deadline is not None and now_ns() > deadline:
                raise TransportTimeout(f"channel {self.address.channel.name!r} has not all of its readers yet")
            pause.wait(_LOOK_S)

    def send(self, message: bytes | bytearray | memoryview) -> None:
        payload = zenoh.ZBytes(message if type(message) is bytes else bytes(message))
        publishers = self.library.parts
        for index in self.readers():
            publishers[index].put(payload)
        self._cursors.ring_sleepers()

    def disconnect(self) -> None:
        self.library.close()


class ZenohReader(CarriedReader):
    """A reader, which sleeps until the cursors say that there is something: `recv` of zenoh takes no time-out, and with
    a callback zenoh's thread and the reader wait for the interpreter's lock in turns, at twice the CPU time.
    """

    library_errors: ClassVar[tuple[type[Exception], ...]] = ERRORS
    descriptors: ClassVar[tuple[int, int]] = 18, 2
    bears_fork: ClassVar[bool] = False

    def connect(self) -> Session:
        self._pause = Lock()
        self._pause.acquire()
        made = Session(self.address.channel, connect=_at(self.address))
        queue: Any = zenoh.handlers.FifoChannel(self.depth + 1)
        subscriber = made.session.declare_subscriber(_key(self.index), queue)
        self._try_recv = subscriber.try_recv
        self.wakes_after = max(1, self.depth // 4)
        made.parts = [subscriber]
        return made

    def receive(self, timeout_s: float) -> bytes | None:
        sample = self._try_recv()
        if sample is None and (timeout_s == 0.0 or (sample := self._await_sample(timeout_s)) is None):
            return None
        message: bytes = sample.payload.to_bytes()
        return message

    def _await_sample(self, timeout_s: float) -> Any:
        words, count, deadline = self._cursors.words, self._count, now_ns() + int(1e9 * timeout_s)
        try:
            self._cursors.wait_until(lambda: words[PUBLISHED] > count, timeout_s)
        except TransportTimeout as error:
            if self._is_of_handler(error):
                raise
        yields_left = _YIELDS
        while (sample := self._try_recv()) is None and now_ns() < deadline and words[PUBLISHED] > count:
            if yields_left:  # it is on its way
                yields_left -= 1
                os.sched_yield()
            else:
                self._pause.acquire(timeout=_ON_ITS_WAY_S)
        return sample

    def disconnect(self) -> None:
        self.library.close()


class Zenoh(CarriedBackend):
    """zenoh over a Unix socket."""

    name: ClassVar[str] = "zenoh"
    summary: ClassVar[str] = "zenoh (eclipse-zenoh), publish/subscribe between peers over a Unix socket"
    capabilities: ClassVar[Capabilities] = replace(CarriedBackend.capabilities, remote=True)
    writer, reader = ZenohWriter, ZenohReader

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            raise unavailable(cls.name, absence, "zenoh", "pip install 'ipcbench[zenoh]'") from absence

    def lay_out(self, folder: Path, channel: ChannelSpec) -> None:
        if not channel.host:
            super().lay_out(folder, channel)

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        if address.channel.host:
            make_login(address)
        else:
            require_socket_path(_place(address))

    @whole
    def open_writer(self, address: Address, index: int = 0) -> Writer:
        return FarWriter(address) if address.channel.host else ZenohWriter(address)

    @whole
    def open_reader(self, address: Address, index: int) -> Reader:
        return FarReader(address, index) if address.channel.host else ZenohReader(address, index)
