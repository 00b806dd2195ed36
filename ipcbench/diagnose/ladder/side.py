"""The processes of a stage: clients that send the tensors of calls, and a server that replies with tensors.

Nobody computes. But whoever sends a tensor fills it, as if it had just been computed, and whoever receives it reads all
of it, both once and in the same way at every stage, so that no stage is quick because memory stayed untouched. In
place, a tensor is filled where it is sent from. How long both take is measured, too.

Every tensor has a content that follows from its message's number. Whoever gets another message than expected, or
another content, ends the run.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipcbench.backend import Endpoint
from ipcbench.diagnose.ladder.links import END, WORD_BYTES, Array, Link, open_link
from ipcbench.errors import IntegrityError
from ipcbench.harness.worker import Worker, verb
from ipcbench.replay.parts import run_all
from ipcbench.util.clock import now_ns


def content(number: int) -> int:
    """Return the byte that fills the tensors of a message, different from those of the messages before it."""
    return number % 255 + 1


def is_filled(tensor: Array, value: int) -> bool:
    """Read all of a tensor once, and return whether the sum of its words is that of a tensor of this byte alone."""
    words_count, rest = divmod(tensor.nbytes, WORD_BYTES)
    total = int(tensor[: words_count * WORD_BYTES].view(np.uint64).sum()) + int(tensor[tensor.nbytes - rest :].sum())
    word = int.from_bytes(bytes([value]) * WORD_BYTES, "little")
    expected = words_count * word & (1 << 8 * WORD_BYTES) - 1  # as the sum of words wraps around
    return total == expected + rest * value


class _Side(Endpoint):
    """What client and server have in common: a link, and the calls.

    Args:
        calls: of each, the bytes of the tensors that are sent, and of those that come back.

    Attributes:
        touched_ns: for how long it has filled and read tensors of each call.
    """

    def __init__(self, link: Link, calls: Sequence[Sequence[Sequence[int]]], *, serves: bool) -> None:
        self.link = link
        outgoing, incoming = (1, 0) if serves else (0, 1)
        link.prepare([call[outgoing] for call in calls])
        self._expected = [list(call[incoming]) for call in calls]
        self.begin()

    def begin(self) -> None:
        """Begin anew with the first message."""
        self._number = 0
        self.touched_ns = [0] * len(self._expected)

    def take(self) -> int:
        """Wait for the next message, check it, and read its tensors; return its call.

        Raises:
            IntegrityError: it is not the next one, or its tensors are not those that were sent.
        """
        number, call, tensors = self.link.receive()
        expected = [] if call == END else self._expected[call]
        sizes = [tensor.nbytes for tensor in tensors]
        if number != self._number or sizes != expected:
            raise IntegrityError(
                f"message {self._number} came as {number}, with tensors of {sizes} bytes in place of {expected}"
            )
        begin = now_ns()
        filled = [is_filled(tensor, content(number)) for tensor in tensors]
        self._touched(call, begin)
        if not all(filled):
            raise IntegrityError(f"message {number} came with other content than was sent")
        del tensors
        self.link.release()
        return call

    def give(self, call: int) -> None:
        """Fill and send the tensors of a call."""
        tensors, value = self.link.tensors(call), content(self._number)
        begin = now_ns()
        for tensor in tensors:
            tensor.fill(value)
        self._touched(call, begin)
        self.link.send(self._number, call, tensors)

    def _touched(self, call: int, begin_ns: int) -> None:
        if call != END:
            self.touched_ns[call] += now_ns() - begin_ns

    def close(self) -> None:
        self.link.close()


class ServerSide(_Side):
    """Replies with tensors of the right sizes."""

    def run(self) -> list[int]:
        """Reply to calls until there are no more; return `touched_ns`."""
        self.begin()
        while True:
            call = self.take()
            self.give(call)
            if call == END:
                return self.touched_ns
            self._number += 1


class ClientSide(_Side):
    """Carries out passes."""

    def call(self, call: int) -> None:
        """Send a call, and wait for its reply.

        Raises:
            IntegrityError: the reply is another call's.
        """
        self.give(call)
        if (replied := self.take()) != call:
            raise IntegrityError(f"the reply to call {call} is that of call {replied}")
        self._number += 1

    def warm_up(self, order: Sequence[int], limit_ns: int) -> int:
        """Carry out calls in order until the time is up, at least one; return how many."""
        self.begin()
        deadline = now_ns() + limit_ns
        for call in order:
            self.call(call)
            if now_ns() > deadline:
                break
        count = self._number
        self.call(END)
        return count

    def passes(self, order: Sequence[Sequence[int]], count: int) -> dict[str, Any]:
        """Carry out passes; return `begin_ns` and `end_ns` of all, `layers_ns`, for how long it was in layers, and
        `touched_ns`.
        """
        before, layers, after = order
        self.begin()
        layers_ns = 0
        begin = now_ns()
        for _ in range(count):
            for call in before:
                self.call(call)
            entered = now_ns()
            for call in layers:
                self.call(call)
            layers_ns += now_ns() - entered
            for call in after:
                self.call(call)
        end = now_ns()
        self.call(END)
        return {"begin_ns": begin, "end_ns": end, "layers_ns": layers_ns, "touched_ns": self.touched_ns}


@verb
def open_server(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Open this process's end to each client; answers with the `places` where the clients find it."""
    places = []
    for place in request["places"]:
        link = open_link(request["link"], place, request["stall_s"], serves=True)
        worker.hold(ServerSide(link, request["calls"], serves=True))
        places.append(link.place or place)
    return {"places": places}


@verb
def open_client(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Open this process's end to the server."""
    link = open_link(request["link"], request["places"][worker.index], request["stall_s"], serves=False)
    worker.hold(ClientSide(link, request["calls"], serves=False))
    return {}


@verb
def serve(worker: Worker, _: dict[str, Any]) -> dict[str, Any]:
    """Serve all clients until they have no more calls, each in a thread of its own; answers with the `touched_ns` of
    each.
    """
    _stop_collecting()
    return {"touched_ns": run_all([side for side in worker.endpoints if isinstance(side, ServerSide)])}


@verb
def warm_up(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a part of a pass that is not counted; answers with the `count` of its calls and its `time_ns`."""
    _stop_collecting()
    begin = now_ns()
    return {"count": _client(worker).warm_up(request["order"], request["limit_ns"]), "time_ns": now_ns() - begin}


@verb
def carry_out(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out passes; answers as `ClientSide.passes`."""
    return _client(worker).passes(request["order"], request["passes"])


def _client(worker: Worker) -> ClientSide:
    (side,) = (side for side in worker.endpoints if isinstance(side, ClientSide))
    return side


def _stop_collecting() -> None:
    """Keep the garbage collector out of what is measured; the process lives for one turn."""
    gc.collect()
    gc.freeze()
    gc.disable()
