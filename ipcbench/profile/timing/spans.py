"""When each module's forward pass began and ended, in steps that run as the model would without it.

On a processor the clock is read around each pass. On a GPU, which works behind the program, an event is recorded before
and after it; none is waited for within a step.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ipcbench.profile.records import Detail, Span
from ipcbench.profile.timing.blocks import Forward, Target, around, targets
from ipcbench.util.clock import now_ns

_current_stream: Any = getattr(torch._C, "_cuda_getCurrentStream", lambda _: ())
"""Number of a device → what tells its current stream from others; a build without CUDA has none."""


class Spans:
    """Takes the spans of a model while it is open; a context manager.

    Attributes:
        current_path: of the innermost module that is running now; empty outside, and at the root.
    """

    def __init__(self, module: nn.Module, detail: Detail, device: torch.device, rank: int = 0) -> None:
        """Remember what to wrap; the model is left alone until the block is entered.

        Args:
            module: the root.
            detail: `block`, or every module.
            device: where it runs; the current CUDA device becomes this one.
            rank: whose spans they are.
        """
        self.current_path = ""
        self._targets = targets(module, detail)
        self._rank = rank
        self._events = _Events(device, len(self._targets)) if device.type == "cuda" else None
        self._rows: list[tuple[Target, Any, Any]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Spans:
        if self._events is not None:
            self._events.restart()
        self._stack.enter_context(around(self._targets, self._followed))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def taken(self, step: int = 0) -> list[Span]:
        """Return the spans since the last call, in the order in which they ended; on a GPU, wait until it has finished.

        Args:
            step: number of the step that they are of.
        """
        rows, self._rows = self._rows, []
        if self._events is not None:
            rows = self._events.read(rows)
        spans: list[Span] = []
        inner: list[tuple[int, int]] = []  # start and duration of spans around which none has ended yet
        for target, start, end in rows:
            exclusive = duration = end - start
            while inner and inner[-1][0] >= start:
                exclusive -= inner.pop()[1]
            inner.append((start, duration))
            spans.append(Span(self._rank, step, target.path, target.kind, start, duration, exclusive))
        return spans

    def _followed(self, target: Target, forward: Forward) -> Forward:
        path, mark = target.path, self._events.record if self._events is not None else now_ns

        def followed(*args: Any, **kwargs: Any) -> Any:
            outer, self.current_path = self.current_path, path
            start = mark()
            try:
                return forward(*args, **kwargs)
            finally:
                end = mark()
                self.current_path = outer
                self._rows.append((target, start, end))

        return followed


class _Events:
    """CUDA events made in advance, and the time of each on the host's clock."""

    def __init__(self, device: torch.device, count: int) -> None:
        self._device = device
        torch.cuda.set_device(device)
        self._streams: dict[tuple[int, ...], Any] = {}
        self._origin, *self._free = (torch.cuda.Event(enable_timing=True) for _ in range(2 * count + 1))
        for event in self._free:
            event.record()  # only the first time makes what CUDA has of it
        self._origin_ns = 0

    def restart(self) -> None:
        """Relate the clock of the device to the host's: an event that has just ended, and the time."""
        self._origin.record()
        torch.cuda.synchronize(self._device)
        self._origin_ns = now_ns()

    def record(self) -> Any:
        """Return an event that the current stream reaches after what it was given so far."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(self._stream())
        return event

    def _stream(self) -> Any:
        """Return the current stream, of which torch itself makes a new object each time."""
        key = _current_stream(self._device.index or 0)
        if key not in self._streams:
            self._streams[key] = torch.cuda.current_stream()
        return self._streams[key]

    def read(self, rows: list[tuple[Target, Any, Any]]) -> list[tuple[Target, int, int]]:
        """Return the rows with times in place of events, which can be used again.

        The time since the origin has 24 bits, so the origin is set anew each time.
        """
        torch.cuda.synchronize(self._device)
        read = [(target, self._time_ns(start), self._time_ns(end)) for target, start, end in rows]
        self._free += [event for _, *pair in rows for event in pair]
        self.restart()
        return read

    def _time_ns(self, event: Any) -> int:
        elapsed_ms: float = self._origin.elapsed_time(event)
        return self._origin_ns + round(elapsed_ms * 1e6)
