"""Whether two descriptions are of one machine, and of one set of versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MAX_MEMORY_RATIO = 1.05
"""Kernels reserve different amounts of the same memory."""


def machine_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how two described machines differ, each difference as `name: A / B`; empty if they are the same machine.

    They are the same if CPU model, usable and logical cores, kernel (system, major, minor) and Python (implementation,
    major, minor) are equal and memory is within 5 %. A value that only one of them has is a difference.
    """
    here, there = _identity(a), _identity(b)
    sizes = sorted(size for size in (here["memory_bytes"], there["memory_bytes"]) if isinstance(size, int))
    if len(sizes) == 2 and sizes[1] <= _MAX_MEMORY_RATIO * sizes[0]:
        there["memory_bytes"] = here["memory_bytes"]
    return differences(here, there)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names under which two mappings hold different values, each as `name: A / B`."""
    return tuple(
        f"{name}: {' / '.join('unknown' if side.get(name) is None else str(side[name]) for side in (a, b))}"
        for name in dict.fromkeys((*a, *b))
        if a.get(name) != b.get(name)
    )


def _identity(machine: Mapping[str, Any]) -> dict[str, Any]:
    identity = {name: machine.get(name) for name in ("cpu_model", "usable_cores", "logical_cores", "memory_bytes")}
    for name in ("kernel", "python"):  # `Linux 6.1.0-18-amd64`, `CPython 3.11.7`: patch releases do not count
        match = re.match(r"\D*\d+\.\d+", str(machine.get(name) or ""))
        identity[name] = match[0] if match else machine.get(name)
    return identity
