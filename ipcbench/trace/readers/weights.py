"""How many calls that were only counted each call with a record stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipcbench.trace.format import ENDS_LATE, KEPT, LATE_CHOICE
from ipcbench.trace.readers.batch import Ints

MOST_UNTIMED = 2**40


def weights_of(
    records: npt.NDArray[Any],
    calls: npt.NDArray[np.bool_],
    sampled: npt.NDArray[np.bool_],
    pending: dict[int, float],
) -> npt.NDArray[np.float64] | None:
    """Return for how many calls that were only counted each record stands; None if for none.

    The calls of an interval, which ends with a record of the kind SAMPLED, are shared out among the records of the same
    call site in it; those of an interval without one, among the next ones. Half of what lies behind a record, and half
    of what lies before it, is its share: calls may become longer and longer, or shorter. Where the recorder has found
    them changed at once, the end of the interval is marked: nothing before it is shared out among those behind it.

    A late call stands only for calls that it was chosen from: it comes after a pause, as calls of some kind may do more
    often than others.

    Args:
        records: in the order of the file.
        calls: which of them are calls.
        sampled: which of them end intervals.
        pending: call site → calls that were not shared out yet; changed.
    """
    if not sampled.any():
        return None
    weights = np.zeros(len(records))
    sites = (records["method"].astype(np.int64) << 34) | (records["schema"].astype(np.int64) << 18)
    sites |= (records["peer"].astype(np.int64) << 2) | (records["role"] & 3)
    chosen = calls & (records["flags"] & KEPT == 0)
    for site in np.unique(sites[sampled]).tolist():
        mine = np.flatnonzero((sites == site) & (chosen | sampled))
        ends = sampled[mine]
        sums = mine[ends]
        counts = np.where(records["sent"][sums] < MOST_UNTIMED, records["sent"][sums], 0)
        _weigh(weights, mine, ends, counts, records["recv"][sums], pending, site)
    return weights


def _weigh(
    weights: npt.NDArray[np.float64],
    mine: Ints,
    ends: npt.NDArray[np.bool_],
    untimed: Ints,
    endings: Ints,
    pending: dict[int, float],
    site: int,
) -> None:
    """Set the weights of one call site's records: `mine` are their places, `ends` which of them end intervals, which
    have so many counted calls and end so.
    """
    interval: Ints = np.cumsum(ends) - ends
    is_late = _are_late(ends, endings)
    is_regular = ~ends & ~is_late
    late_counts, counts = (np.bincount(interval[each], minlength=len(untimed) + 1) for each in (is_late, is_regular))
    late_shares = np.zeros(len(counts))
    late_shares[:-1] = np.minimum(untimed / np.maximum(1, late_counts[:-1]), LATE_CHOICE - 1) * (late_counts[:-1] > 0)
    shares, left = np.zeros(len(counts)), pending.pop(site, 0.0)
    for number, count in enumerate((untimed - late_counts[:-1] * late_shares[:-1]).tolist()):
        left += count
        latest = number if counts[number] or not endings[number] else _latest(counts[:number])
        if counts[latest]:
            shares[latest], left = shares[latest] + left / counts[latest], 0.0
    pending[site] = left
    weights[mine[is_late]] = late_shares[interval[is_late]]
    weights[mine[is_regular]] = _halved(shares[interval[is_regular]], interval[is_regular], endings > 0)


def _latest(counts: Ints) -> int:
    """Return the number of the latest interval with records; that of the first interval if there is none."""
    found = np.flatnonzero(counts)
    return int(found[-1]) if len(found) else 0


def _are_late(ends: npt.NDArray[np.bool_], endings: Ints) -> npt.NDArray[np.bool_]:
    """Return which records, calls and ends of intervals in order, are calls behind an end that makes them late."""
    late = np.zeros(len(ends), bool)
    places = np.flatnonzero(ends)[endings == ENDS_LATE] + 1
    late[places[places < len(ends)]] = True
    return late & ~ends


def _halved(
    behind: npt.NDArray[np.float64], of_call: Ints, is_change: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Return the weights of calls: each stands for half of what lies behind it and half of what lies before it, but not
    beyond a change.
    """
    if not len(behind):
        return behind
    changes_count: Ints = np.concatenate([[0], np.cumsum(is_change)])[of_call]
    is_last = np.concatenate([np.diff(changes_count) > 0, [True]])
    before = np.concatenate([[0.0], np.where(is_last, 0.0, behind)[:-1]])
    weights: npt.NDArray[np.float64] = (np.where(is_last, 2.0 * behind, behind) + before) / 2.0
    return weights
