"""The stages of the ladder, and the calls of a forward pass at each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal, TypeAlias

from ipcbench.diagnose.synth import ITEM_BYTES, METHODS, Dtype, tensors_bytes
from ipcbench.models import Model, Operation, operations

LinkKind: TypeAlias = Literal["msgpack", "multipart", "write", "gather", "in place"]
"""How tensors become messages; `ipcbench.diagnose.ladder.links` has one class for each."""

FUSED: Final = (("qkv", "scores", "attention", "o"), ("gate_up", "down"))
"""Operations of a layer that become one call. What one of them gives the next stays on the server."""

KEPT: Final = "q, k, v, the scores, the attention weights, their product with v, gate, up and their product"
"""The tensors that then stay on the server."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the roadmap.

    Attributes:
        label: a short name, for an axis.
        name: what it is.
        backend: the backend of its transport, which tells whether that can be used here.
        scheme: of a socket's address: `tcp` or `ipc`; empty for shared memory.
        link: how tensors become messages.
        dtype: of the tensors.
        is_fused: whether calls are fused; see `FUSED`.
        streams_count: passes at the same time, each of a client of its own.
    """

    label: str
    name: str
    backend: str
    scheme: str
    link: LinkKind
    dtype: Dtype
    is_fused: bool = False
    streams_count: int = 1


STAGES: Final = (
    Stage("msgpack, tcp", "msgpack over zmq tcp, float32", "zmq", "tcp", "msgpack", "float32"),
    Stage("msgpack, ipc", "msgpack over zmq ipc, float32", "zmq", "ipc", "msgpack", "float32"),
    Stage("+ bfloat16", "msgpack over zmq ipc, bfloat16", "zmq", "ipc", "msgpack", "bfloat16"),
    Stage("raw multipart", "raw multipart over zmq ipc", "zmq", "ipc", "multipart", "bfloat16"),
    Stage("shm, pack, write", "shared memory, pack and write", "shm", "", "write", "bfloat16"),
    Stage("shm, gather", "shared memory, gather", "shm", "", "gather", "bfloat16"),
    Stage("shm, in place", "shared memory, in place", "shm", "", "in place", "bfloat16"),
    Stage("+ fused calls", "in place, fused calls", "shm", "", "in place", "bfloat16", is_fused=True),
    Stage("+ two streams", "in place, fused, two streams", "shm", "", "in place", "bfloat16", True, 2),
)
"""In the order of the roadmap; each changes one thing of the stage before."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the bytes of each tensor that is sent, and of each that comes back."""

    method: str
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(self.sent_bytes) + sum(self.received_bytes)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The calls of a forward pass: those before the layers, those of each layer, those after them."""

    before: tuple[Call, ...]
    layer: tuple[Call, ...]
    after: tuple[Call, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """All different calls, those of the layer once, in order."""
        return self.before + self.layer + self.after

    def order(self, layers_count: int) -> tuple[list[int], list[int], list[int]]:
        """Return the places in `calls` of those of a pass with so many layers: before, in and after the layers."""
        first, last = len(self.before), len(self.before) + len(self.layer)
        return [*range(first)], [*range(first, last)] * layers_count, [*range(last, len(self.calls))]

    def calls_count(self, layers_count: int) -> int:
        """Return how many calls a pass with so many layers has."""
        return len(self.before) + layers_count * len(self.layer) + len(self.after)

    def moved_bytes(self, layers_count: int) -> int:
        """Return the bytes of all tensors of a pass with so many layers."""
        ends, layer = (sum(call.moved_bytes for call in calls) for calls in (self.before + self.after, self.layer))
        return ends + layers_count * layer

    @property
    def largest_bytes(self) -> tuple[int, int]:
        """Bytes of the largest request, and of the largest reply."""
        sent, received = zip(*((sum(call.sent_bytes), sum(call.received_bytes)) for call in self.calls), strict=True)
        return max(sent), max(received)


@cache
def traffic_of(model: Model, tokens: int, stage: Stage) -> Traffic:
    """Return the calls of a forward pass at that stage; all layers are alike.

    Raises:
        ConfigError: `tokens` is not allowed.
    """
    steps = list(operations(replace(model, num_hidden_layers=1), tokens))
    inside = [place for place, step in enumerate(steps) if step.layer is not None]
    before, layer, after = steps[: inside[0]], steps[inside[0] : inside[-1] + 1], steps[inside[-1] + 1 :]
    groups = [[step for step in layer if step.name in names] for names in FUSED]
    item_bytes = ITEM_BYTES[stage.dtype]
    return Traffic(
        _calls(([step] for step in before), item_bytes),
        _calls(groups if stage.is_fused else ([step] for step in layer), item_bytes),
        _calls(([step] for step in after), item_bytes),
    )


def _calls(groups: Iterable[list[Operation]], item_bytes: int) -> tuple[Call, ...]:
    """Return a call for each group of operations: it takes what the first needs, and gives what the last one does."""
    return tuple(
        Call(
            "+".join(dict.fromkeys(METHODS[step.kind] for step in group)),
            tensors_bytes(group[0], item_bytes)[0],
            tensors_bytes(group[-1], item_bytes)[1],
        )
        for group in groups
    )
