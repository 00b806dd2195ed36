"""Where endpoints run and how much of a message they look at: the two choices that move every figure."""

from __future__ import annotations

import os
from collections.abc import Callable

from ipcbench.errors import ConfigError
from ipcbench.harness.loops import Read
from ipcbench.spec import Touch

_PAGE_BYTES = 4096


def cores_for(pin: str, endpoints: int, allowed: frozenset[int]) -> tuple[int, ...] | None:
    """Return the core of each process of a group, the writer first; None to leave it to the system.

    Args:
        pin: `none`; `auto` gives each its own core where there are enough; `0,1,…` names them, in turn.
        endpoints: how many processes there are.
        allowed: cores that this process may use.

    Raises:
        ConfigError: a core that it may not use.
    """
    if pin == "none":
        return None
    if pin == "auto":
        return tuple(sorted(allowed))[:endpoints] if len(allowed) >= endpoints else None
    named = [int(one) for one in pin.split(",")]
    missing = [one for one in named if one not in allowed]
    if missing:
        raise ConfigError("pin", pin, f"auto, none, or some of the cores {', '.join(map(str, sorted(allowed)))}")
    return tuple(named[index % len(named)] for index in range(endpoints))


def allowed_cores() -> frozenset[int]:
    """Return the cores that this process may use; empty where the system cannot say or bind (macOS)."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def touching(read: Read, touch: Touch) -> Read:
    """Return `read`, or a read that looks at the message before it returns it, so that the look is inside the timing.

    Args:
        read: of an endpoint.
        touch: `none` and `header` add nothing; `pages` reads a byte of each 4 KiB; `all` copies every byte out.
    """
    looks: dict[Touch, Callable[[memoryview], object]] = {
        "pages": lambda view: bytes(view[::_PAGE_BYTES]),
        "all": bytes,
    }
    look = looks.get(touch)
    if look is None:
        return read

    def read_and_look(timeout_s: float) -> memoryview:
        view = read(timeout_s)
        look(view)
        return view

    return read_and_look
