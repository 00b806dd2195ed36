"""The few calls of a report that are shown by themselves: the slowest and the largest."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from ipcbench.trace.readers.batch import Batch, Ints, printable

TOP_COUNT = 5


@dataclass(frozen=True, slots=True, order=True)
class Extreme:
    """One of the few calls that are shown by themselves; `order` is what they are chosen by."""

    order: int
    call_id: int
    method: str
    total_ns: int
    stage_ns: tuple[int, ...]
    sent_bytes: int
    recv_bytes: int


def add_extremes(kept: list[Extreme], batch: Batch, order: Ints) -> None:
    """Keep the few calls that are largest in `order`; of equals, those with the smaller id."""
    if len(kept) >= TOP_COUNT and order.max() <= kept[-1].order:
        return
    least = np.partition(order, -min(TOP_COUNT, len(order)))[-min(TOP_COUNT, len(order))]
    chosen = np.concatenate([np.flatnonzero(order > least), np.flatnonzero(order == least)[:TOP_COUNT]])
    kept += [
        Extreme(
            int(order[index]),
            int(batch.ids[index]),
            printable(batch.methods[int(batch.method[index])]),
            int(batch.total_ns[index]),
            tuple(batch.stage_ns[index].tolist()),
            int(batch.sent_bytes[index]),
            int(batch.recv_bytes[index]),
        )
        for index in chosen.tolist()
    ]
    kept[:] = heapq.nsmallest(TOP_COUNT, kept, key=lambda one: (-one.order, one.call_id))
