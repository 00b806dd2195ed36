"""How evenly work is shared: Jain's index, and the share of the busiest."""

from __future__ import annotations

from collections.abc import Sequence


def jain_index(counts: Sequence[float]) -> float | None:
    """Return (Σx)² / (n Σx²): 1 if all n get the same, 1/n if one gets everything (Jain, Chiu and Hawe 1984).

    None if nobody got anything.
    """
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else None


def largest_share(counts: Sequence[float]) -> float | None:
    """Return the share of the one that got most, from 1/n to 1; None if nobody got anything."""
    total = sum(counts)
    return max(counts) / total if total else None
