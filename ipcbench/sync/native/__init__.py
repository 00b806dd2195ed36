"""The hot path of a ring in C, where that was built; else its counterpart in Python, ipcbench.sync.ring, is used."""

from __future__ import annotations

from typing import Any

from ipcbench.util.native import load

_CONTRACT = 8
"""Increased whenever C and Python expect something else of each other; the same as in endpoints.c."""

NATIVE: Any = load("ipcbench.sync.native._c", _CONTRACT)
"""Has the classes `RingWriter` and `RingReader`; None if Python is to be used."""
