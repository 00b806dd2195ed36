"""The hot path of a traced call: in C where that was built, else in Python, with the same results."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

PURE = "IPCBENCH_PURE"
"""Environment variable that, if not empty, chooses Python."""

CONTRACT = 1
"""Raised with every change of what C and Python expect of one another; the same as in hot.h."""


def _in_c() -> ModuleType | None:
    """Return the module in C; None if it was not built here, or for another version."""
    if os.environ.get(PURE):
        return None
    try:
        module = importlib.import_module("ipcbench.trace.record.hot._c")
    except ImportError:
        return None
    return module if getattr(module, "CONTRACT", None) == CONTRACT else None


_built = _in_c()

IS_C = _built is not None
"""Whether it is the one in C."""

if TYPE_CHECKING or _built is None:
    from ipcbench.trace.record.hot.call import HotCall, HotNothing
    from ipcbench.trace.record.hot.call_site import HotSite
    from ipcbench.trace.record.hot.files import Slots, Sums
    from ipcbench.trace.record.hot.recorder import HotRecorder
else:
    HotCall, HotNothing, HotRecorder = _built.HotCall, _built.HotNothing, _built.HotRecorder
    HotSite, Slots, Sums = _built.HotSite, _built.Slots, _built.Sums

__all__ = ["IS_C", "PURE", "HotCall", "HotNothing", "HotRecorder", "HotSite", "Slots", "Sums"]
