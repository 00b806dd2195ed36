"""Profiles made by rule, so that what they say is known: two ranks, tensor parallel, with every kind of record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ipcbench.profile.records import (
    Agreement,
    Call,
    Memory,
    Operator,
    Phase,
    Profile,
    Setting,
    Source,
    Span,
    Step,
    Unavailable,
)

LAYER_NS = {"prefill": 4_000_000, "decode": 800_000}
"""Of one layer without communication: 0.4 attention, 0.5 mlp, 0.1 between."""
TRANSFER_NS = 100_000
HOST_NS = 50_000
_OPERATORS = (("qkv", 0.3), ("attention", 0.4), ("output", 0.2), ("communication", 0.05))


def built(
    *,
    layers: int = 4,
    repetitions: int = 6,
    tokens: int = 3,
    ranks: int = 2,
    slow: tuple[int, int, int] | None = None,
    slow_ranks: Collection[int] = (),
    delays: Mapping[tuple[int, int], int] = MappingProxyType({}),
    transfer_ns: int = TRANSFER_NS,
    noise_ratio: float = 0.01,
    seed: int = 1,
) -> Profile:
    """Return a profile.

    Args:
        layers: of the model.
        repetitions: with spans, and as many without.
        tokens: decoded in each.
        ranks: 1 has no communication.
        slow: (rank, layer, ns): a delay in that layer's mlp at that rank.
        slow_ranks: others with that delay.
        delays: (rank, layer) → ns: further delays.
        transfer_ns: of each all_reduce; there are two a layer.
        noise_ratio: standard deviation of every time.
        seed: of the noise.
    """
    alike = {(rank, slow[1]): slow[2] for rank in (slow[0], *slow_ranks)} if slow else {}
    maker = _Maker(layers, ranks, {**alike, **delays}, transfer_ns, noise_ratio, np.random.default_rng(seed))
    for number in range(2 * repetitions):
        maker.step("prefill", 0, is_plain=bool(number % 2))
        for token in range(tokens):
            maker.step("decode", 128 + token, is_plain=bool(number % 2))
    parallel, transport = (f"tp{ranks}", "shm") if ranks > 1 else ("none", "none")
    setting = Setting(
        model="qwen3-tiny",
        parallel=parallel,
        transport=transport,
        steps=repetitions,
        tokens=tokens,
    )
    return Profile(
        setting,
        {"cpu_model": "a processor", "cores": 2, "memory_bytes": 16 << 30},
        {"torch": "2.13.0"},
        tuple(maker.steps),
        tuple(maker.spans),
        tuple(_operators(layers, ranks)),
        tuple(maker.calls),
        tuple(
            Memory(rank, 17_000_000, 1_100_000, 2_000_000, 390_000_000, {f"layers.{n}": 150_000 for n in range(layers)})
            for rank in range(ranks)
        ),
        Agreement(3e-7) if ranks > 1 else None,
        (Unavailable("GPU memory and kernels", "1 GPU"), Unavailable("NVLink topology", "2 GPUs")),
    )


def without_times(profile: Profile) -> Profile:
    """Return the plan of a profile."""
    calls = tuple(
        Call(call.rank, call.step, call.sequence, call.op, call.ranks, call.bytes, call.dtype, call.path)
        for call in profile.calls
    )
    return replace(profile, steps=(), spans=(), operators=(), calls=calls, memory=(), agreement=None, is_planned=True)


def _operators(layers: int, ranks: int) -> list[Operator]:
    phases: tuple[Phase, ...] = ("prefill", "decode")
    return [
        Operator(rank, phase, f"layers.{n}.self_attn", bucket, 1, 1e6 * share, share, 1_000_000, 4_000)
        for rank in range(ranks)
        for phase in phases
        for n in range(layers)
        for bucket, share in _OPERATORS
    ]


class _Maker:
    """Lays steps of all ranks one after another."""

    def __init__(
        self, layers: int, ranks: int, delays: Mapping[tuple[int, int], int], transfer_ns: int, noise: float,
        generator: np.random.Generator,
    ) -> None:  # fmt: skip
        self.layers, self.ranks, self.delays, self.transfer_ns = layers, ranks, delays, transfer_ns
        self.noise, self.generator = noise, generator
        self.steps: list[Step] = []
        self.spans: list[Span] = []
        self.calls: list[Call] = []
        self.at = [1_000_000_000] * ranks
        self.open: list[list[tuple[str, str, int, int]]] = [[] for _ in range(ranks)]
        """Of each rank: path, kind, start, and time of the spans inside so far."""
        self.number, self.is_plain, self.sequence = 0, False, 0

    def step(self, phase: Phase, position: int, *, is_plain: bool) -> None:
        """Add a step of every rank."""
        self.number, self.is_plain = len(self.steps) // self.ranks, is_plain
        self.sequence = 0
        starts = list(self.at)
        layer_ns = LAYER_NS[phase]
        size = 256 * 4 * (128 if phase == "prefill" else 1)
        self._work(HOST_NS)
        self._begin("", "root")
        self._block("embed_tokens", "embedding", layer_ns / 20)
        for layer in range(self.layers):
            name = f"layers.{layer}"
            self._begin(name, "layer")
            self._work(0.1 * layer_ns)
            self._block(f"{name}.self_attn", "attention", 0.4 * layer_ns, size)
            self._block(f"{name}.mlp", "mlp", 0.5 * layer_ns, size, layer)
            self._end()
        self._block("norm", "norm", layer_ns / 10)
        self._block("lm_head", "lm_head", layer_ns / 10)
        self._end()
        source: Source = "plain" if is_plain else "spans"
        for rank, (start, end) in enumerate(zip(starts, self.at, strict=True)):
            self.steps.append(Step(rank, self.number, phase, position, source, start, end - start))

    def _block(self, path: str, kind: str, ns: float, size: int = 0, layer: int = -1) -> None:
        self._begin(path, kind)
        self._work(ns, layer)
        if size and self.ranks > 1:
            self._reduce(path, size)
        self._end()

    def _begin(self, path: str, kind: str) -> None:
        for rank in range(self.ranks):
            self.open[rank].append((path, kind, self.at[rank], 0))

    def _end(self) -> None:
        for rank in range(self.ranks):
            path, kind, start, inner = self.open[rank].pop()
            took = self.at[rank] - start
            if not self.is_plain:
                self.spans.append(Span(rank, self.number, path, kind, start, took, took - inner))
            if self.open[rank]:
                *outer, so_far = self.open[rank][-1]
                self.open[rank][-1] = (*outer, so_far + took)

    def _work(self, ns: float, layer: int = -1) -> None:
        for rank in range(self.ranks):
            self.at[rank] += int(ns * (1 + self.noise * abs(self.generator.standard_normal())))
            self.at[rank] += self.delays.get((rank, layer), 0)

    def _reduce(self, path: str, size: int) -> None:
        end, group = max(self.at) + self.transfer_ns, tuple(range(self.ranks))
        for rank in group:
            call = Call(
                rank, self.number, self.sequence, "all_reduce", group, size, "float32", path, self.at[rank], end
            )
            self.calls.append(call)
            self.at[rank] = end
        self.sequence += 1
