"""Modules in C that were built with the package, each with a counterpart in Python that does the same."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

PURE = "IPCBENCH_PURE"
"""Environment variable that, if not empty, selects Python everywhere."""


def load(name: str, contract: int) -> ModuleType | None:
    """Return a module in C; None if it was not built here, is of another version, or another interpreter's."""
    if os.environ.get(PURE):
        return None
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    if getattr(module, "CONTRACT", None) != contract or not module.is_main_interpreter():
        return None
    return module
