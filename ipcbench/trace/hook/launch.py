"""The environment in which a program is recorded unmodified."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ipcbench.trace.hook.begin import VARIABLE
from ipcbench.trace.record.recorder import VARIABLE as TRACE_VARIABLE

_HERE = Path(__file__).parent


def environment_of(
    folder: Path, options: Mapping[str, str], instruments: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment for a program and its children.

    Args:
        folder: where the trace goes.
        options: of `trace.start`, as text.
        instruments: module → `module:function`.
        environment: the present one.
    """
    plan = {"instruments": dict(instruments), "folder": str(folder.absolute()), "package": str(_HERE.parents[1])}
    path = os.pathsep.join(filter(None, [str(_HERE), environment.get("PYTHONPATH", "")]))
    words = [str(folder.absolute()), *(f"{name}={value}" if value else name for name, value in options.items())]
    return {**environment, "PYTHONPATH": path, TRACE_VARIABLE: ",".join(words), VARIABLE: json.dumps(plan)}
