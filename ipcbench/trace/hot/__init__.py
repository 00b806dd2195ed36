"""The hot path of a traced call: in C where that was built, else in Python, with the same results.

What does not live here: anything that is not needed at every call. What is out of the ordinary goes to the methods of
the subclasses: Segment (segment.py), Tally (tally.py), Site (lane.py), Call (call.py) and Recorder (recorder.py).
Standard library only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

PURE = "IPCBENCH_PURE"
"""Environment variable that, if not empty, chooses Python."""

IS_C = False
"""Whether it is the one in C."""

if not TYPE_CHECKING and not os.environ.get(PURE):
    try:
        from ipcbench.trace.hot._c import HotCall, HotNothing, HotRecorder, HotSite, Slots, Sums

        IS_C = True
    except ImportError:
        pass  # it was not built here

if not IS_C:
    from ipcbench.trace.hot.call import HotCall, HotNothing
    from ipcbench.trace.hot.files import Slots, Sums
    from ipcbench.trace.hot.recorder import HotRecorder
    from ipcbench.trace.hot.site import HotSite

__all__ = ["IS_C", "PURE", "HotCall", "HotNothing", "HotRecorder", "HotSite", "Slots", "Sums"]
