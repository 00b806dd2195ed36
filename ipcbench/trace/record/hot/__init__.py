"""The hot path of a traced call: in C where that was built, else in Python, with the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipcbench.util.native import load

CONTRACT = 11
"""Increased whenever C and Python expect something else of each other; the same as in hot.h."""


_built = load("ipcbench.trace.record.hot._c", CONTRACT)

IS_C = _built is not None
"""Whether the C module is in use."""

if TYPE_CHECKING or _built is None:
    from ipcbench.trace.record.hot.python import (
        HotCall,
        HotCallSite,
        HotHistograms,
        HotNoOp,
        HotRecorder,
        HotTraffic,
        Slots,
    )
else:
    HotCall, HotCallSite, HotHistograms = _built.HotCall, _built.HotCallSite, _built.HotHistograms
    HotNoOp, HotRecorder, HotTraffic, Slots = _built.HotNoOp, _built.HotRecorder, _built.HotTraffic, _built.Slots

HOT_FUNCTIONS: Any = _built
"""Has `socket_methods` and `connection_methods`, which record ordinary messages; `set_traffic`, `set_socket_functions`
and `set_connection_functions`, which prepare them; and `add_audit_hook`. None where there is no C; then Python does it.
"""

__all__ = [
    "HOT_FUNCTIONS", "IS_C", "HotCall", "HotCallSite", "HotHistograms", "HotNoOp", "HotRecorder", "HotTraffic",
    "Slots",
]  # fmt: skip
