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

import os
from collections import deque
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ipcbench.backend import Address, Capabilities
from ipcbench.backends.ray import cluster, head
from ipcbench.errors import BackendUnavailable, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync import CarriedBackend, CarriedReader, CarriedWriter
from ipcbench.sync.carried import CarriedEndpoint
from ipcbench.sync.cursors import PUBLISHED
from ipcbench.sync.directory import channel_token
from ipcbench.util.clock import deadline_ns, now_ns

_LARGEST_BYTES = 2**26
_HELD_BYTES, _LEAST_HELD = 2**26, 4
"""How many bytes of messages a channel holds at most, unless fewer messages than that fit."""
_LOOK_S, _LINGER_S = 0.1, 3.0
_BY_VALUE_BYTES = 2**16
"""Up to this size a message goes with the call; Ray itself puts arguments above 100 KiB into the store."""


def held_messages(channel: ChannelSpec) -> int:
    """Return how many messages a channel holds."""
    return min(channel.depth, max(_LEAST_HELD, _HELD_BYTES // max(1, channel.max_message_bytes)))


class _RayEndpoint(CarriedEndpoint):
    library_folder = "/ray/"

    def _join(self) -> Any:
        """Connect to the cluster, and return ray; from now on this endpoint also looks whether the cluster has died."""
        self._cluster = cluster.Cluster(self.address)
        ray = self._cluster.connect()
        type(self).library_errors = (ray.exceptions.RayError, RuntimeError)
        self._cursors.check_carrier = self._cluster.check
        self.depth, self._token = held_messages(self.address.channel), channel_token(self.address)
        self._name = head.POST if self._cluster.folder else self._token
        return ray


class RayWriter(_RayEndpoint, CarriedWriter):
    """The writer."""

    def connect(self) -> Any:
        self._ray = self._join()
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
        while not wait([runs], _LOOK_S).done:
            self._check_peers()
            if deadline is not None and now_ns() > deadline:
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
        self._ray = self._join()
        self._actor: Any = None
        self._asked: Future[list[Any]] | None = None
        self._came: deque[Any] = deque()
        self._next_number, self._most = 1, max(1, self.depth // 4)
        self.wakes_after = self._most
        return self._ray

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        if not self._came and not self._await_messages(timeout_s):
            return None
        message = self._came.popleft()
        if not self._came:
            self._ask()
        return message if type(message) is bytes else memoryview(self._ray.get(message[0]))

    def _ask(self) -> Future[list[Any]]:
        asked: Future[list[Any]] = self._actor.take.remote(
            self._token, self.index, self._next_number, self._most
        ).future()
        self._asked = asked
        return asked

    def _await_messages(self, timeout_s: float) -> bool:
        if self._actor is None and not self._find(timeout_s):
            return False
        asked = self._ask() if self._asked is None else self._asked
        self.is_waiting = True
        wait([asked], timeout_s)
        self.is_waiting = False
        if not asked.done():
            return False
        self._came.extend(asked.result())
        self._next_number += len(self._came)
        self._asked = None
        return True

    def _find(self, timeout_s: float) -> bool:
        """Look up the actor, once the writer, which makes it, has sent something."""
        words = self._cursors.words
        if not words[PUBLISHED]:
            self.is_waiting = True
            try:
                if not timeout_s or not self._cursors.wait_until(lambda: bool(words[PUBLISHED]), timeout_s):
                    return False
            except TransportTimeout:
                return False
            finally:
                self.is_waiting = False
        self._actor = self._ray.get_actor(self._name, head.NAMESPACE)
        self._cluster.watch(self._actor)
        return True

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
        if there := os.environ.get(cluster.ADDRESS_VARIABLE):
            try:
                cluster.require_listening(there)
            except OSError as error:
                hint = f"start that cluster, or unset {cluster.ADDRESS_VARIABLE}"
                reason = f"no cluster at {cluster.ADDRESS_VARIABLE}: {error}"
                raise BackendUnavailable(cls.name, reason, hint) from error

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        cluster.add(address, undo)

    def end(self, folder: Path, address: Address) -> None:
        cluster.remove(address)
