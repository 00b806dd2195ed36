"""Waiting in slices: what a blocking call of an endpoint cannot notice itself is looked at in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ipcbench.errors import TransportTimeout
from ipcbench.util.clock import remaining_s

SLICE_S = 0.1
"""Longest single wait, until an end notices that another thread has closed it."""

Result = TypeVar("Result")


def in_slices(deadline: int | None, operate: Callable[[float], Result], require: Callable[[], None]) -> Result:
    """Return what `operate` returns.

    Args:
        deadline: ns of the clock; None waits forever.
        operate: is given a time-out in s, and may be called again after it.
        require: called before each slice; raises if there is no point in going on.

    Raises:
        TransportTimeout: there was nothing by `deadline`.
        Others: as `operate` and `require`.
    """
    while True:
        require()
        left_s = remaining_s(deadline)
        try:
            return operate(SLICE_S if left_s is None or left_s > SLICE_S else left_s)
        except TransportTimeout:
            if left_s is not None and left_s <= SLICE_S:
                raise
