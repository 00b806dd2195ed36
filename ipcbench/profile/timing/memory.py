"""What a rank keeps in memory: parameters, cache, and what is live beside them, in a step that is not timed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ipcbench.machine.usage import peak_rss_bytes
from ipcbench.profile.model.parallel import Runner
from ipcbench.profile.records import Memory
from ipcbench.profile.timing.blocks import Target, around, targets, within
from ipcbench.profile.timing.dispatch import Watch, tensors


def measure(run: Callable[[], object], runner: Runner, device: torch.device, rank: int = 0) -> Memory:
    """Run one step and return the memory of the rank.

    On a processor it is the tensors that torch makes that count; what a model takes elsewhere shows in the peak of the
    resident set only. On a GPU it is the allocator's own count.

    Args:
        run: runs the step.
        runner: the rank's part of the model.
        device: where it is.
        rank: whose it is.
    """
    meter = _Allocator(device) if device.type == "cuda" else _Live()
    growth = _Growth(meter)
    with ExitStack() as stack:
        if isinstance(meter, Watch):
            stack.enter_context(meter)
        stack.enter_context(around(targets(runner), within(growth.following)))
        run()
    on_gpu = device.type == "cuda"
    return Memory(
        rank=rank,
        parameters_bytes=runner.parameters_bytes,
        kv_cache_bytes=runner.cache_bytes,
        activations_bytes=growth.most.pop("", None),
        peak_rss_bytes=peak_rss_bytes(),
        layers=growth.most,
        allocated_bytes=torch.cuda.memory_allocated(device) if on_gpu else None,
        reserved_bytes=torch.cuda.memory_reserved(device) if on_gpu else None,
        peak_allocated_bytes=growth.peak_bytes if on_gpu else None,
    )


class _Growth:
    """By how much memory grows while each module runs; modules are within one another, but there is one peak."""

    def __init__(self, meter: _Allocator | _Live) -> None:
        self.most: dict[str, int] = {}
        self.peak_bytes = 0
        self._meter = meter
        self._open = [0]
        """The peak so far of each module that is running, the outermost first."""

    @contextmanager
    def following(self, target: Target) -> Iterator[None]:
        """Look at the memory before and after a module runs."""
        self._look()
        before = self._meter.live()
        self._open.append(before)
        try:
            yield
        finally:
            self._look()
            peak = self._open.pop()
            self.most[target.path] = max(self.most.get(target.path, 0), peak - before)
            self._open[-1] = max(self._open[-1], peak)
            self.peak_bytes = max(self.peak_bytes, peak)

    def _look(self) -> None:
        self._open[-1] = max(self._open[-1], self._meter.peak())
        self._meter.restart()


class _Allocator:
    """The count of the GPU's allocator: bytes in use, and the most since the last restart."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def live(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))

    def peak(self) -> int:
        return int(torch.cuda.max_memory_allocated(self._device))

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)


class _Live(Watch):
    """The same of tensors that were made since it was entered."""

    def __init__(self) -> None:
        super().__init__()
        self._live = self._peak = 0

    def live(self) -> int:
        return self._live

    def peak(self) -> int:
        return self._peak

    def restart(self) -> None:
        self._peak = self._live

    def ran(self, _operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        known = {tensor.untyped_storage()._cdata for tensor in tensors((args, kwargs))}
        for tensor in tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in known:  # else it is a view
                known.add(storage._cdata)
                self._live += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes()).atexit = False
        self._peak = max(self._peak, self._live)

    def _gone(self, size: int) -> None:
        self._live -= size
