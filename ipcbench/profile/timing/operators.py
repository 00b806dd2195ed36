"""Which share operators have of each block, in steps under torch's profiler. It slows them: no time is taken there."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.profiler import profile, record_function  # torch.profiler's would bring in torch's compiler

from ipcbench.profile.records import Operator, Phase
from ipcbench.profile.timing.blocks import BLOCKS, Target, around, targets, within
from ipcbench.profile.timing.buckets import Use, bucket
from ipcbench.profile.timing.flops import Work

_MARK: Final = "ipcbench:"
"""Before the paths of modules, among the names of operators."""

_Range: Final = getattr(torch._C._profiler, "_RecordFunctionFast", record_function)
"""The first is a private name, and twelve times quicker."""


@dataclass(slots=True)
class _Marker:
    """One call of a module, and the innermost block around it, which may be itself."""

    target: Target
    block: _Marker | None
    has_softmax: bool = False


def operators(
    run: Callable[[], object],
    module: nn.Module,
    phase: Phase,
    steps: int,
    device: torch.device,
    *,
    rank: int = 0,
    work: Mapping[tuple[str, str], Work] | None = None,
) -> list[Operator]:
    """Run steps under torch's profiler and return what the operators of each block took.

    Args:
        run: runs one step of the phase.
        module: the root.
        phase: which.
        steps: how many; at least 1.
        device: of the model: the times are those of its kernels if it is a GPU.
        rank: whose they are.
        work: FLOPs and bytes by path and bucket, as `flops.counted` returns them.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes lines about itself to stderr
    found = {target.path: target for target in targets(module, "module")}
    on_gpu = device.type == "cuda"
    profiler = profile(use_device="cuda" if on_gpu else None, use_kineto=True, acc_events=True)
    with around(found.values(), within(lambda target: _Range(_MARK + target.path))), profiler:
        for _ in range(steps):
            run()
    sums = _Sums(on_gpu=on_gpu)
    sums.add(profiler.function_events or (), found)
    rows = []
    for (path, name), times_us in sorted(sums.operators.items()):
        done, whole_us, taken_us = (work or {}).get((path, name)), sums.blocks_us[path], sum(times_us)
        calls, share = round(sums.calls[path, name] / steps), None
        if not on_gpu:
            share = taken_us / whole_us if whole_us else 0.0
        rows.append(Operator(rank, phase, path, name, calls, taken_us * 1e3 / steps, share, *_of(done)))
    return rows


def _of(work: Work | None) -> tuple[int | None, int | None]:
    return (work.flops, work.bytes) if work else (None, None)


class _Sums:
    """What the events add up to, in microseconds.

    Attributes:
        operators: (path of the block, bucket) → time of each operator, without those that it is made of.
        calls: the same → operators that modules called.
        blocks_us: path → time without that of blocks inside it.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self.operators: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.blocks_us: dict[str, float] = defaultdict(float)
        self._on_gpu = on_gpu

    def add(self, events: Iterable[Any], found: Mapping[str, Target]) -> None:
        """Add up the events, of which each comes after the one around it."""
        markers: dict[int, _Marker] = {}
        for event in events:
            parent = event.cpu_parent
            marker = markers.get(id(parent)) if parent is not None else None
            if event.name.startswith(_MARK):
                marker = self._entered(event, found[event.name.removeprefix(_MARK)], marker)
            elif marker is not None and marker.block is not None:
                self._ran(event, marker, marker.block)
            if marker is not None:
                markers[id(event)] = marker

    def _entered(self, event: Any, target: Target, outer: _Marker | None) -> _Marker:
        """Return the marker of a module's call; a block's time is taken from that of the block around it."""
        marker = _Marker(target, outer.block if outer else None)
        if target.kind in BLOCKS:
            elapsed_us = event.time_range.elapsed_us()
            if marker.block is not None:
                self.blocks_us[marker.block.target.path] -= elapsed_us
            self.blocks_us[target.path] += elapsed_us
            marker.block = marker
        return marker

    def _ran(self, event: Any, marker: _Marker, block: _Marker) -> None:
        block.has_softmax |= "softmax" in event.name
        use = Use(event.name, marker.target.path, block.target.kind, block.has_softmax)
        key, taken_us = (block.target.path, bucket(use)), event.self_cpu_time_total
        if self._on_gpu:
            taken_us = event.self_device_time_total
        self.operators[key].append(taken_us)
        self.calls[key] += event.cpu_parent.name.startswith(_MARK)
