"""Where the processes of a group run: the choice of cores, and the probe that tells near cores from far ones."""

from __future__ import annotations

import mmap
import os
import select
from pathlib import Path
from statistics import median

from ipcbench.errors import ConfigError
from ipcbench.util.clock import now_ns
from ipcbench.util.files import as_store_errors

_PROBE_BYTES = 4096
_BATCHES, _HOPS = 5, 50
_LEAST_BATCHES = 3
_POLLS = 64
"""Between two cores, the other side's word comes long before so many; if not, it waits for this side's core."""
_APART_S = 0.001


def cores_for(pin: str, endpoints: int, allowed: frozenset[int]) -> tuple[int, ...] | None:
    """Return the core of each process of a group, the writer first; None to leave the placement to the system.

    Args:
        pin: `none`; `auto` gives each process its own core if there are enough; `0,1,…` names cores, used in rotation.
        endpoints: how many processes there are.
        allowed: cores that this process may use.

    Raises:
        ConfigError: a named core is not allowed.
    """
    if pin == "none":
        return None
    if pin == "auto":
        return tuple(sorted(allowed))[:endpoints] if len(allowed) >= endpoints else None
    named = [int(core) for core in pin.split(",")]
    if not allowed.issuperset(named):
        raise ConfigError("pin", pin, f"auto, none, or some of the cores {', '.join(map(str, sorted(allowed)))}")
    return tuple(named[index % len(named)] for index in range(endpoints))


def allowed_cores() -> frozenset[int]:
    """Return the cores that this process may use; empty where the system can neither tell nor bind (macOS)."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def make_probe_file(path: Path) -> None:
    """Make the file that both processes map: two words, zero, on different cache lines.

    Raises:
        StoreError: the system refuses.
    """
    with as_store_errors(path):
        path.write_bytes(bytes(_PROBE_BYTES))


def ping_pong_ns(path: Path, side: int, base: int, timeout_s: float) -> float | None:
    """Bounce a counter between this process (side 0 serves, side 1 answers) and another one, both spinning.

    Args:
        path: what `make_probe_file` made.
        side: 0 or 1.
        base: the counter's value so far; every call on the same file must begin where the last one ended, which is
            `base + probe_length()`.
        timeout_s: when to give up on the other side.

    Returns:
        Half a round trip in ns, the median over the batches that there was time for, interpreter's share included; None
        if the other side did not answer, or shares this side's core all the time.
    """
    fd = os.open(path, os.O_RDWR)
    try:
        with mmap.mmap(fd, _PROBE_BYTES) as shared, memoryview(shared) as view, view.cast("Q") as words:
            return _bounce(words, side, base, now_ns() + int(timeout_s * 1e9))
    finally:
        os.close(fd)


def probe_length() -> int:
    """Return by how much one call of `ping_pong_ns` advances the counter."""
    return _BATCHES * _HOPS


def _bounce(words: memoryview, side: int, base: int, deadline: int) -> float | None:
    mine, theirs = (0, 8) if side == 0 else (8, 0)
    batches: list[float] = []
    for batch in range(_BATCHES):
        first = base + batch * _HOPS
        yields = 0
        start = now_ns()
        for turn in range(first + 1, first + _HOPS + 1):
            if side == 0:
                words[mine] = turn
            while words[theirs] != turn:
                for _ in range(_POLLS):
                    if words[theirs] == turn:
                        break
                else:
                    if now_ns() > deadline:
                        return _middle(batches)
                    os.sched_yield()
                    yields += 1
            if side == 1:
                words[mine] = turn
        if yields < _HOPS // 2:
            batches.append((now_ns() - start) / (2 * _HOPS))
        else:  # both are on one core, which they leave if they fall asleep and wake up where another is idle
            select.select((), (), (), _APART_S)
    return _middle(batches)


def _middle(batches: list[float]) -> float | None:
    return median(batches) if len(batches) >= _LEAST_BATCHES else None
