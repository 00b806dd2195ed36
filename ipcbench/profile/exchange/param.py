"""Traces for the replay of PARAM: a list of calls, whose sizes are in elements."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ipcbench.profile.exchange.calls import Found, Trace, dtype_of, end_of, members, size_of
from ipcbench.profile.records import Count, Rank, RanksCount


class _Entry(msgspec.Struct):
    comms: str | None = None
    pg_id: int | str | None = None
    global_ranks: tuple[Rank, ...] | None = None
    world_size: RanksCount = 0
    dtype: str = ""
    in_msg_size: Count = 0
    out_msg_size: Count = 0
    src_rank: int | None = None
    dst_rank: int | None = None
    markers: list[str] | None = None
    step: int = 0
    start_ns: Count | None = msgspec.field(default=None, name="startTime_ns")
    duration_ns: Count | None = None
    gap_ns: Count | None = None


def read_param(data: bytes) -> Trace:
    """Return the calls of a trace, which does not say its rank."""
    return Trace(_found(msgspec.json.decode(data, type=list[_Entry])))


def _found(entries: list[_Entry]) -> Iterator[Found]:
    calls = [(each.comms, each) for each in entries if each.comms is not None]
    groups = {str(each.pg_id): each.global_ranks for _, each in calls if each.global_ranks}
    is_one = len({each.pg_id for _, each in calls if each.pg_id is not None}) < 2
    for op, each in calls:
        dtype, every = dtype_of(each.dtype), range(each.world_size if is_one and not groups else 0)
        ranks = each.global_ranks or groups.get(str(each.pg_id)) or every
        yield Found(
            op=op, ranks=members(op, ranks), bytes=size_of(max(each.in_msg_size, each.out_msg_size), dtype, op),
            dtype=dtype, path=(each.markers or [""])[0], step=each.step, enter_ns=each.start_ns,
            exit_ns=end_of(each.start_ns, each.duration_ns), gap_ns=each.gap_ns,
            group="" if each.pg_id is None else str(each.pg_id), ends=(each.src_rank, each.dst_rank),
        )  # fmt: skip
