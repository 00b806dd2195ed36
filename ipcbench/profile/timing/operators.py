"""Which share operators have of each block, in steps under torch's profiler. It slows them: no time is taken there."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from ipcbench.profile.records import Operator, Phase
from ipcbench.profile.timing.blocks import BLOCKS, Forward, Target, around, targets
from ipcbench.profile.timing.buckets import Use, bucket
from ipcbench.profile.timing.flops import Work

_MARK: Final = "ipcbench:"
"""Before the paths of modules, among the names of operators."""

_Range: Final = getattr(torch._C._profiler, "_RecordFunctionFast", record_function)
"""The first is a private name, and twelve times quicker."""


@dataclass(slots=True)
class _Marker:
    """One call of a module."""

    target: Target
    block: _Marker | None
    """The innermost block around it, which may be itself."""
    inner_us: float = 0.0
    has_softmax: bool = False


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    exclusive_us: float = 0.0


@dataclass(slots=True)
class _Sums:
    operators: dict[tuple[str, str], _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    """(path of the block, bucket) → their sum."""
    blocks_us: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Path → time without that of blocks inside it."""


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
        work: FLOPs and bytes by path and bucket, as `flops.count` returns them.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes lines about itself to stderr
    found = {target.path: target for target in targets(module, "module")}
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with around(found.values(), _marked), profile(activities=activities, acc_events=True) as profiler:
        for _ in range(steps):
            run()
    sums = _sums(profiler.events(), found, on_gpu=device.type == "cuda")
    rows = []
    for (path, name), total in sorted(sums.operators.items()):
        done = (work or {}).get((path, name))
        whole_us = sums.blocks_us[path]
        rows.append(
            Operator(
                rank,
                phase,
                path,
                name,
                round(total.calls / steps),
                total.exclusive_us * 1e3 / steps,
                total.exclusive_us / whole_us if whole_us else 0.0,
                done.flops if done else None,
                done.bytes if done else None,
            )
        )
    return rows


def _marked(target: Target, forward: Forward) -> Forward:
    name = _MARK + target.path

    def marked(*args: Any, **kwargs: Any) -> Any:
        around_it: AbstractContextManager[Any] = _Range(name)
        with around_it:
            return forward(*args, **kwargs)

    return marked


def _sums(events: Iterable[Any], found: Mapping[str, Target], *, on_gpu: bool) -> _Sums:
    """Add up the events, of which each comes after the one around it."""
    sums, markers = _Sums(), dict[int, _Marker]()
    for event in events:
        parent = event.cpu_parent
        marker = markers.get(id(parent)) if parent is not None else None
        if event.name.startswith(_MARK):
            target = found[event.name.removeprefix(_MARK)]
            marker = _entered(sums, target, marker, 0.0 if on_gpu else event.time_range.elapsed_us())
        elif marker is not None:
            is_outermost = parent.name.startswith(_MARK)
            taken_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            _add(sums, event.name, marker, taken_us, calls=int(is_outermost), on_gpu=on_gpu)
        if marker is not None:
            markers[id(event)] = marker
    return sums


def _entered(sums: _Sums, target: Target, outer: _Marker | None, elapsed_us: float) -> _Marker:
    """Return the marker of a module's call within another's; a block's time is taken from that of the block around."""
    marker = _Marker(target, outer.block if outer else None)
    if target.kind in BLOCKS:
        if marker.block is not None:
            sums.blocks_us[marker.block.target.path] -= elapsed_us
        sums.blocks_us[target.path] += elapsed_us
        marker.block = marker
    return marker


def _add(sums: _Sums, name: str, marker: _Marker, taken_us: float, *, calls: int, on_gpu: bool) -> None:
    block = marker.block
    if block is None:
        return
    if "softmax" in name:
        block.has_softmax = True
    use = Use(name, marker.target.path, block.target.kind, block.has_softmax)
    total = sums.operators[block.target.path, bucket(use)]
    total.calls += calls
    total.exclusive_us += taken_us
    if on_gpu:
        sums.blocks_us[block.target.path] += taken_us
