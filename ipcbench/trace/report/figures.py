"""Figures as reports write them."""

from __future__ import annotations


def ms(value_ns: float | None) -> str:
    """Return a time in milliseconds; a dash for an unknown one."""
    return "–" if value_ns is None else f"{value_ns / 1e6:,.3f}"


def percent(ratio: float) -> str:
    """Return a share."""
    return f"{100 * ratio:.1f} %"
