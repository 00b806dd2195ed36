"""Begins the recording in a Python process that `ipcbench trace run` started, then does what the sitecustomize does in
whose place it was imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        path = os.path.join(here, "begin.py")
        scope: dict[str, Any] = {"__name__": "ipcbench_trace_begin", "__file__": path}
        with open(path, encoding="utf-8") as file:
            exec(compile(file.read(), path, "exec"), scope)  # noqa: S102 # this interpreter may not have ipcbench
        scope["begin"]()
    except Exception as error:  # nothing raises into the application
        sys.stderr.write(f"ipcbench trace: this process is not recorded: {type(error).__name__}: {error}\n")
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401 # the next one on the path
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


_begin()
