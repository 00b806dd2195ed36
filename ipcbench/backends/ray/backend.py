"""Ray, used as its `ray.util.queue` is: an actor hands on messages to the readers, small ones by value, large ones as
references to objects of the object store, where all readers map the same bytes.

In a cluster of the channels' own one actor serves all of them, which spares each channel the start of a process; in one
that was there, the writer has an actor of its own, which dies with its process. Each reader has one call outstanding,
which returns what is there, and asks for more when it takes the last one. Calls wait in Python, not in Ray, so that
signal handlers run.

Ray's channels of compiled graphs (`ray.experimental.channel.Channel`, an alpha interface) can join two drivers, if the
handle of some actor stands in for the reader. They are not used: a reader does not notice that its writer was killed,
but waits out its time-out, and two named semaphores then stay in /dev/shm.
"""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ipcbench.backend import Address, Capabilities
from ipcbench.backends.ray import cluster, head
from ipcbench.errors import BackendUnavailable, TransportTimeout
from ipcbench.sync import CarriedBackend, CarriedReader, CarriedWriter
from ipcbench.sync.carried import CarriedEndpoint
from ipcbench.sync.cursors import CLOSED, PUBLISHED, WRITER_STATE
from ipcbench.sync.directory import channel_token
from ipcbench.util.clock import deadline_ns

_LARGEST_BYTES = 2**26
_HELD_BYTES, _LEAST_HELD = 2**26, 4
"""How many bytes of messages a channel holds at most, unless fewer messages than that fit."""
_LOOK_S, _LINGER_S = 0.1, 3.0
_BY_VALUE_BYTES = 2**16
"""Up to this size a message goes with the call; Ray itself puts arguments above 100 KiB into the store."""


class _RayEndpoint(CarriedEndpoint):
    library_folder = "/ray/"

    def connect(self) -> Any:
        """Connect to the cluster; from now on this endpoint also looks whether that has died."""
        self._cluster = cluster.Cluster(self.address)
        self._ray = self._cluster.connect()
        type(self).library_errors = (self._ray.exceptions.RayError, RuntimeError, ValueError)
        self._cursors.check_carrier = self._cluster.check
        channel, self._token = self.address.channel, channel_token(self.address)
        self.depth = min(channel.depth, max(_LEAST_HELD, _HELD_BYTES // max(1, channel.max_message_bytes)))
        self._name = head.POST if self._cluster.folder else self._token
        return self._ray


class RayWriter(_RayEndpoint, CarriedWriter):
    """The writer."""

    def connect(self) -> Any:
        super().connect()
        self._sent_count, self._is_owner = 0, not self._cluster.folder
        self._pushed: Any = None
        try:
            actor = head.post(self._ray, self._name)
            self._cluster.watch(actor)
        except BaseException:
            self._cluster.disconnect()
            raise
        return actor

    def await_peers(self, timeout_s: float | None) -> None:
        """Wait until the actor runs, which may take the start of a process."""
        runs, deadline = self.library.__ray_ready__.remote().future(), deadline_ns(timeout_s)
        wait([runs], _LOOK_S)  # which notices it at once, but no peer that dies
        if not self._cursors.waiter.until(runs.done, deadline):
            raise TransportTimeout(f"the actor of channel {self.address.channel.name!r} has not started yet")

    def send(self, message: bytes | bytearray | memoryview) -> None:
        if self._count > self._sent_count:
            self._sent_count = self._count
            is_small = len(message) <= _BY_VALUE_BYTES
            sent = bytes(message) if is_small else [self._ray.put(np.frombuffer(message, np.uint8))]
            self._is_owner = self._is_owner or not is_small
            self._pushed = self.library.push.remote(self._token, self._count, sent, self.readers())
        self._cursors.ring_sleepers()

    def is_handed_over(self) -> bool:
        """Return whether a cluster of ours has everything by value; what is in the store goes with its writer."""
        return not self._is_owner and (self._pushed is None or bool(wait([self._pushed.future()], _LINGER_S).done))

    def disconnect(self) -> None:
        if not self._cluster.folder:
            self._ray.kill(self.library)
        self._cluster.disconnect()


class RayReader(_RayEndpoint, CarriedReader):
    """A reader, which has a call of the actor outstanding."""

    def connect(self) -> Any:
        ray = super().connect()
        self._actor: Any = None
        self._asked: Any = None
        self._came: list[Any] = []
        self._next_number, self.wakes_after = 1, max(1, self.depth // 4)
        return ray

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        if not self._came and not self._await_messages(timeout_s):
            return None
        message = self._came.pop(0)
        if not self._came:
            self._ask()
        return message if type(message) is bytes else memoryview(self._ray.get(message[0]))

    def _ask(self) -> None:
        call = self._actor.take.remote(self._token, self.index, self._next_number, self.wakes_after)
        self._asked = call.future()

    def _await_messages(self, timeout_s: float) -> bool:
        if self._actor is None and not self._find(timeout_s):
            return False
        self.is_waiting = True
        wait([self._asked], timeout_s)
        self.is_waiting = False
        if self._asked.done():
            self._came = self._asked.result()
            self._next_number += len(self._came)
        return bool(self._came)

    def _find(self, timeout_s: float) -> bool:
        """Look up the actor and ask it, once the writer, which makes it, has sent something."""
        words, waiter = self._cursors.words, self._cursors.waiter
        self.is_waiting = True
        waiter.until(lambda: words[PUBLISHED] > 0 or words[WRITER_STATE] == CLOSED, deadline_ns(timeout_s))
        self.is_waiting = False
        if words[PUBLISHED]:
            self._actor = self._ray.get_actor(self._name, head.NAMESPACE)
            self._cluster.watch(self._actor)
            self._ask()
        return self._actor is not None

    def disconnect(self) -> None:
        if self._actor is not None and not self._cluster.is_lost():
            self._actor.forget.remote(self._token, self.index)
        self._actor = self._asked = None
        self._came.clear()
        self._cluster.disconnect()


class Ray(CarriedBackend):
    """Objects of Ray's store."""

    name: ClassVar[str] = "ray"
    summary: ClassVar[str] = "Ray: objects of its store, handed over by an actor, in a cluster of the channels' own"
    capabilities: ClassVar[Capabilities] = replace(
        CarriedBackend.capabilities, max_message_bytes=_LARGEST_BYTES, zero_copy_read=True, holds_one_of_max=True
    )
    writer, reader = RayWriter, RayReader

    @classmethod
    def probe(cls) -> None:
        if find_spec("ray") is None:
            raise BackendUnavailable(cls.name, "Python package 'ray' is not installed", "pip install 'ipcbench[ray]'")
        cluster.SERVER.is_named(cls.name, cluster.require_listening)

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        cluster.add(address, undo)

    def end(self, folder: Path, address: Address) -> None:
        cluster.remove(address)
