"""gloo, by torch.distributed: point-to-point sends and receives of bytes, in a group of the writer with each reader.

gloo hands over nothing until the peer has asked for it, and a wait that times out closes the connection for good
(tests/conformance/test_gloo.py). So a reader asks for many messages ahead, the writer keeps what nobody has taken yet,
and the cursors say when there is one, and its length; gloo is asked only for what is on its way.

To connect takes both sides at once. A thread of each does it, at the first `write`, since opening waits for nobody.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from importlib.util import find_spec
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any, ClassVar

from ipcbench.backend import Address, Capabilities
from ipcbench.errors import BackendUnavailable, PeerLost, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync import CarriedBackend, CarriedReader, CarriedWriter, Doorbell, channel_directory
from ipcbench.sync.cursors import CLOSED
from ipcbench.sync.interrupts import is_of_handler, start_thread
from ipcbench.util.clock import deadline_ns, now_ns

_HELD_BYTES, _LEAST_HELD, _LEAST_ASKED = 2**24, 4, 2
"""How many bytes of messages a channel holds at most, and a reader asks for, unless fewer messages than that fit."""
_PATIENCE = timedelta(seconds=30)
"""For a peer that is stopped while both connect, or while it sends a message."""
_MOMENT = timedelta(seconds=0.2)
"""For what a dead writer may have sent."""
_LARGE_BYTES = 2**16
"""Of messages whose rest the writer may still have when it has handed them over."""
_LOOK_S = 0.1
_FOREVER_NS = -(10**6)
_WRITER, _READER, _TAG = 0, 1, 0
_SENT, _LENGTHS = 0, 8
"""Words of the file `lengths`: how many messages gloo has been given, and the lengths of the last ones."""


@cache
def _libraries() -> tuple[Any, Any]:
    """Return torch and torch.distributed; to import them takes seconds."""
    import torch
    import torch.distributed as dist

    with warnings.catch_warnings():  # torch warns once a process that bytes are not to be written to; nobody does
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)
    return torch, dist


def held_messages(channel: ChannelSpec) -> int:
    """Return how many messages a channel holds."""
    return min(channel.depth, max(_LEAST_HELD, _HELD_BYTES // max(1, channel.max_message_bytes)))


def _words(address: Address) -> memoryview:
    with (channel_directory(address) / "lengths").open("r+b") as file:
        return memoryview(mmap(file.fileno(), 0)).cast("Q")


def _place(folder: Path, index: int, kind: str) -> Path:
    return folder / f"gloo-{index}.{kind}"


class _Link:
    """One side of a group of two, which a thread makes; the thread refers to nothing else."""

    def __init__(self, store: Path, rank: int, slots: Sequence[Any] = ()) -> None:
        self._store, self._rank, self._slots = str(store), rank, slots
        self._is_closed = self.is_begun = False
        self.done = threading.Event()
        self.error: Exception | None = None
        self.group: Any = None
        self.asked: deque[Any] = deque()

    def begin(self, bell: Doorbell | None = None) -> None:
        """Have it made; if there is a doorbell, as soon as that rings."""
        start_thread(partial(self._make, bell))
        self.is_begun = True

    def _make(self, bell: Doorbell | None) -> None:
        if bell is not None:
            bell.sleep(_FOREVER_NS)
            bell.close()
        try:
            if not self._is_closed:
                self._join()
        except (OSError, RuntimeError) as error:
            self.error = error
        finally:
            self.done.set()
            if self._is_closed:
                self._drop()

    def _join(self) -> None:
        _, dist = _libraries()
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices, options._threads = [gloo.create_device(hostname="127.0.0.1")], 1
        options._timeout = _PATIENCE
        group = gloo(dist.FileStore(self._store, 2), self._rank, 2, options)
        for slot in self._slots:
            self.asked.append(group.recv([slot], _WRITER, _TAG))
        self.group = group

    def ask(self, slot: Any) -> None:
        """Ask for one more message. What has come already can be taken although the peer has gone meanwhile."""
        try:
            self.asked.append(self.group.recv([slot], _WRITER, _TAG))
        except RuntimeError as error:
            if is_of_handler(error):
                raise
            self.error = error

    def close(self) -> None:
        self._is_closed = True
        if self.done.is_set():
            self._drop()

    def _drop(self) -> None:
        self.asked.clear()
        self.group, self._slots = None, ()


class GlooWriter(CarriedWriter):
    """The writer, which keeps each message until all readers have it."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError,)
    descriptors: ClassVar[tuple[int, int]] = 5, 6

    def connect(self) -> tuple[object, ...]:
        torch, _ = _libraries()
        self.depth = held_messages(self.address.channel)
        self._shared, self._folder = _words(self.address), channel_directory(self.address)
        self._tensor, self._kept_count = partial(torch.frombuffer, dtype=torch.uint8), 0
        self._nothing = torch.zeros(1, dtype=torch.uint8)
        self._kept: deque[tuple[Any, list[Any]]] = deque()
        stores = [_place(self._folder, index, "store") for index in range(self.address.channel.readers)]
        self._links = [_Link(store, _WRITER) for store in stores]
        return self._links, self._kept

    def await_peers(self, timeout_s: float | None) -> None:
        deadline, links = deadline_ns(timeout_s), self._links
        for index in self.readers():
            if not links[index].is_begun:
                links[index].begin()
                bell = Doorbell(_place(self._folder, index, "bell"))
                bell.ring()
                bell.close()
        for index in self.readers():
            link = links[index]
            while not link.done.wait(_LOOK_S) and not self._has_closed(index):
                self._check_peers()
                if deadline is not None and now_ns() > deadline:
                    raise TransportTimeout(f"channel {self.address.channel.name!r} has not all of its readers yet")
            if link.error is not None and not self._has_closed(index):
                raise link.error

    def _has_closed(self, index: int) -> bool:
        return self._cursors.words[self._states[index]] == CLOSED

    def send(self, message: bytes | bytearray | memoryview) -> None:
        shared = self._shared
        if self._count > shared[_SENT]:
            self._hand_over(message if type(message) is bytes else bytes(message))
            shared[_LENGTHS + self._count % self.depth] = len(message)
            if self._cursors.fenced:
                self._cursors.fence()
            shared[_SENT] = self._count
            if self._cursors.fenced:
                self._cursors.fence()
        self._cursors.ring_sleepers()

    def _hand_over(self, message: bytes) -> None:
        tensor, sends = self._tensor(message) if message else self._nothing, []
        for index in self.readers():
            try:
                sends.append(self._links[index].group.send([tensor], _READER, _TAG))
            except RuntimeError as error:
                if is_of_handler(error) or not self._has_closed(index):
                    raise
        self._kept.append((tensor, sends))
        taken_count = self._room_until - self.depth
        while self._kept_count < taken_count:
            self._kept.popleft()
            self._kept_count += 1

    def disconnect(self) -> None:
        for link in self._links:
            link.close()
        self._kept.clear()


class GlooReader(CarriedReader):
    """A reader, which asks for as many messages as it has room for, and sleeps until the cursors say one is sent."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError,)
    descriptors: ClassVar[tuple[int, int]] = 5, 6

    def connect(self) -> _Link:
        torch, _ = _libraries()
        channel, folder = self.address.channel, channel_directory(self.address)
        self.depth = held_messages(channel)
        self.wakes_after = max(1, self.depth // 4)
        self._shared = _words(self.address)
        self._is_shown = False
        step = max(1, channel.max_message_bytes)
        rooms = min(self.depth + 1, max(_LEAST_ASKED, _HELD_BYTES // step))
        self._is_large = step >= _LARGE_BYTES
        room = mmap(-1, rooms * step, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        starts = range(0, rooms * step, step)
        self._slots = [torch.frombuffer(room, dtype=torch.uint8, count=step, offset=start) for start in starts]
        self._views = [memoryview(room)[start : start + step] for start in starts]
        self._bell = Doorbell(_place(folder, self.index, "bell"))
        link = _Link(_place(folder, self.index, "store"), _READER, self._slots)
        link.begin(self._bell)
        return link

    def receive(self, timeout_s: float) -> memoryview | None:
        link, shared, count = self.library, self._shared, self._count
        if self._is_shown:
            self._is_shown = False
            link.ask(self._slots[(count - 1) % len(self._slots)])
        if shared[_SENT] <= count and not (timeout_s and self._await_message(timeout_s)):
            return None
        link.done.wait()
        if not link.asked:
            raise link.error or TransportError(f"channel {self.address.channel.name!r} is not connected")
        self._await_bytes(link.asked.popleft())
        self._is_shown = True
        return self._views[count % len(self._views)][: shared[_LENGTHS + (count + 1) % self.depth]]

    def _await_bytes(self, work: Any) -> None:
        """Wait for a message that is on its way, unless it never comes: a forked child keeps the connection open."""
        try:
            if self._is_large:  # of a smaller one, nothing stays with the writer
                self._cursors.check_peers()
        except PeerLost as loss:
            if self._is_of_handler(loss):
                raise
            work.wait(_MOMENT)
        else:
            work.wait()
        finally:
            del work  # which the traceback of an error would keep, with a thread that no forked child has

    def _await_message(self, timeout_s: float) -> bool:
        shared, count = self._shared, self._count
        try:
            return self._cursors.wait_until(lambda: shared[_SENT] > count, timeout_s)
        except TransportTimeout as error:
            if self._is_of_handler(error):
                raise
            return False

    def disconnect(self) -> None:
        self.library.close()
        self._bell.ring()


class Gloo(CarriedBackend):
    """gloo over TCP connections of the loopback interface."""

    name: ClassVar[str] = "gloo"
    summary: ClassVar[str] = "gloo (torch.distributed), send and recv in a group with each reader over loopback TCP"
    capabilities: ClassVar[Capabilities] = replace(CarriedBackend.capabilities, private=False, holds_one_of_max=True)
    writer, reader = GlooWriter, GlooReader

    @classmethod
    def probe(cls) -> None:
        if find_spec("torch") is None:
            hint = "pip install 'ipcbench[gloo]'"
            raise BackendUnavailable(cls.name, "Python package 'torch' is not installed", hint)

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        channel = address.channel
        (folder / "lengths").write_bytes(bytes(8 * (_LENGTHS + held_messages(channel))))
        for index in range(channel.readers):
            Doorbell.make(_place(folder, index, "bell"))
