"""The calls of all ranks put together: which belong to one operation, how long each waited, and what transfer took.

An operation begins to transfer when the last of its ranks has entered; what a rank spent in its call before that is
waiting. A send that ended earlier, since a buffer took it, waited for nobody.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, TypeAlias

import msgspec

from ipcbench.profile.records import Call, Step

_DOUBTFUL_RATIO = 0.1
"""Of the median transfer: clocks that may differ by more cannot tell it from waiting."""
_MAY_DIFFER: Final = frozenset(("all_to_all", "gather", "scatter"))
"""In size, as the parts of ranks may."""
_Kind: TypeAlias = tuple[str, tuple[int, ...], str]
"""What calls that are matched in their order share: `messages` or `operations`, ranks and group."""


@dataclass(frozen=True, slots=True)
class OpTotal:
    """All operations of one kind, size and number of ranks.

    Attributes:
        bytes: of each; see `Call.bytes`.
        count: operations, each of several calls.
        wait_ns: median over the operations of the mean wait of their ranks; None if it is not known of all, as of a
            plan.
        operation_ns: median over the operations of the time from the last rank's enter to the last one's exit.
        algorithm_bytes_per_s: bytes by that time.
        bus_bytes_per_s: times what crosses a link, see `bus_ratio`: comparable with the speed of the hardware.
    """

    op: str
    bytes: int
    ranks_count: int
    count: int
    wait_ns: float | None
    operation_ns: float | None
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that entered last, in a module.

    Attributes:
        path: of the module, as the late rank named it.
        count: how often it was the last.
        of_count: of how many operations there.
        ranks_count: of each.
        late_ns: median of how much later than all others.
    """

    rank: int
    path: str
    count: int
    late_ns: float
    of_count: int
    ranks_count: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Operations by kind and size, in the order in which they first appear; and stragglers, the latest first."""

    ops: tuple[OpTotal, ...]
    stragglers: tuple[Straggler, ...]


@dataclass(frozen=True, slots=True)
class Bubble:
    """The share of the ranks' time in which they were idle for another stage, the median of the steps, and what the
    formula gives.

    A rank's time is that from the first rank's start of a step to the last one's end; what it takes to begin and what
    is left after its own end is idle too.
    """

    measured_ratio: float
    formula_ratio: float
    """(p − 1) / (m + p − 1), for p equally fast stages and m micro-batches."""


def matched(calls: Sequence[Call], clock_error_ns: int = 0) -> list[Call]:
    """Return the calls with `match` and, where it can be told, `wait_ns`.

    Args:
        calls: of all ranks.
        clock_error_ns: most by which clocks of two ranks differ. No call is divided if it may be a large part of
            transfers.
    """
    numbers: dict[tuple[_Kind, int], int] = {}
    counts: Counter[tuple[int, _Kind]] = Counter()
    found = []
    for call in sorted(calls, key=lambda call: (call.rank, call.step, call.sequence)):
        kind = _kind(call)
        number = numbers.setdefault((kind, counts[call.rank, kind]), len(numbers))
        counts[call.rank, kind] += 1
        found.append(msgspec.structs.replace(call, match=number, wait_ns=None))
    operations = list(_operations(found))
    transfers = [_transfer_ns(members) for members in operations]
    known = [ns for ns in transfers if ns is not None]
    if not known or clock_error_ns > _DOUBTFUL_RATIO * median(known):
        return found
    timed = [members for members, ns in zip(operations, transfers, strict=True) if ns is not None]
    waits = {id(call): wait for members in timed for call, wait in _waits(members)}
    return [msgspec.structs.replace(call, wait_ns=waits.get(id(call))) for call in found]


def _kind(call: Call) -> _Kind:
    return "messages" if call.op in {"send", "recv"} else "operations", call.ranks, call.group


def _operations(calls: Iterable[Call]) -> Iterable[list[Call]]:
    """Return the calls of each operation."""
    groups: dict[int | None, list[Call]] = defaultdict(list)
    for call in calls:
        groups[call.match].append(call)
    return groups.values()


def _enter(call: Call) -> int:
    return call.enter_ns or 0


def _exit(call: Call) -> int:
    return call.exit_ns or 0


def _waits(members: Sequence[Call]) -> Iterable[tuple[Call, int]]:
    last = max(map(_enter, members))
    for call in members:
        is_over = call.op == "send" and _exit(call) <= last  # a buffer took it; of others, a coarse clock says so
        yield call, 0 if is_over else last - _enter(call)


def _transfer_ns(members: Sequence[Call]) -> int | None:
    """Return an operation's time from its last rank's enter; None unless its ranks are there, with times that can be
    those of synchronous calls and one clock: but for a send, none ends before another begins.
    """
    if {call.rank for call in members} != {*members[0].ranks} or any(call.exit_ns is None for call in members):
        return None
    last = max(map(_enter, members))
    is_over = any(_exit(call) < last for call in members if call.op != "send")  # which a buffer may take
    return None if is_over else max(map(_exit, members)) - last


def misfits(calls: Sequence[Call], may_differ: Collection[str] = _MAY_DIFFER) -> Iterator[str]:
    """Yield why calls cannot be all those of their ranks: some are of others, missing, in another order, or unlike.

    Args:
        calls: of all ranks; those that do not say their ranks are passed over.
        may_differ: operations that may have another size at each rank.
    """
    own, strange = list[Call](), Counter[tuple[int, str, str]]()
    counts: dict[tuple[int, _Kind], Counter[int]] = defaultdict(Counter)
    for call in calls:
        ends = {"send": call.ranks[:1], "recv": call.ranks[1:]}.get(call.op, call.ranks)
        if call.rank in ends:
            own.append(call)
            counts[call.step, _kind(call)][call.rank] += 1
        elif ends:
            strange[call.rank, call.op, _words(_kind(call))] += 1
    for (rank, op, among), count in strange.items():
        yield f"rank {rank} has {count:,} {op} that cannot be its own, of {among}"
    uneven = set()
    for (step, kind), each in counts.items():
        if len({each[rank] for rank in kind[1]}) > 1:
            uneven.add(kind)
            found = ", ".join(f"{each[rank]:,} at rank {rank}" for rank in kind[1])
            yield f"{_words(kind)} in step {step}: {found}"
    yield from _unlike(matched([call for call in own if _kind(call) not in uneven]), may_differ)


def _words(kind: _Kind) -> str:
    return f"{kind[0]} of ranks {(' → ' if kind[0] == 'messages' else ', ').join(map(str, kind[1]))}"


def _unlike(calls: Iterable[Call], may_differ: Collection[str]) -> Iterator[str]:
    """Yield where calls of one operation are unlike, of calls that `matched` has returned."""
    for first, *others in _operations(calls):
        for call in others:
            is_other = call.op != first.op and {call.op, first.op} != {"send", "recv"}
            is_other |= call.bytes != first.bytes and call.op not in may_differ
            if is_other or (call.bytes and call.dtype != first.dtype and call.dtype and first.dtype):
                a, b = (f"{each.op}, {each.bytes:,} bytes {each.dtype}".rstrip() for each in (first, call))
                where = f"call {first.sequence} of step {first.step} at rank {first.rank}"
                yield f"{where} is {a}, that of rank {call.rank} is {b}"


def totals(calls: Sequence[Call]) -> Totals:
    """Return the totals of calls that `matched` has returned."""
    kinds: dict[tuple[str, int, int], list[list[Call]]] = defaultdict(list)
    for members in _operations(calls):
        first = members[0]
        op = "send" if first.op == "recv" else first.op
        kinds[op, first.bytes, len(set(first.ranks))].append(members)
    return Totals(tuple(_total(*kind, every) for kind, every in kinds.items()), tuple(_stragglers(calls)))


def _total(op: str, size_bytes: int, ranks_count: int, operations: Sequence[Sequence[Call]]) -> OpTotal:
    waits = [call.wait_ns for members in operations for call in members]
    known = [ns for members in operations if (ns := _transfer_ns(members)) is not None]
    if not known or len(known) < len(operations) or None in waits:
        return OpTotal(op, size_bytes, ranks_count, len(operations), None, None, None, None)
    wait_ns = median(fmean(call.wait_ns or 0 for call in members) for members in operations)
    took_ns = float(median(known))
    rate = 1e9 * size_bytes / took_ns if took_ns else None  # less than the clock tells apart
    bus = rate and rate * bus_ratio(op, ranks_count)
    return OpTotal(op, size_bytes, ranks_count, len(operations), wait_ns, took_ns, rate, bus)


def bus_ratio(op: str, ranks_count: int) -> float:
    """Return how many bytes cross a link in the best algorithm by those of the message, as NCCL's tests count."""
    if op not in {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}:
        return 1.0
    return (2 if op == "all_reduce" else 1) * (ranks_count - 1) / ranks_count


def _stragglers(calls: Sequence[Call]) -> list[Straggler]:
    """Return who entered collective operations last; of a pipeline's stages, one always does."""
    late: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    counts: Counter[tuple[str, int]] = Counter()
    for members in _operations(call for call in calls if call.op not in {"send", "recv"}):
        if len(members) > 1 and all(call.wait_ns is not None for call in members):
            *_, before, last = sorted(members, key=_enter)
            late[last.rank, last.path, len(members)].append(_enter(last) - _enter(before))
            counts[last.path, len(members)] += 1
    found = [
        Straggler(rank, path, len(each), float(median(each)), counts[path, size], size)
        for (rank, path, size), each in late.items()
    ]
    return sorted(found, key=lambda each: -each.count * each.late_ns)


def bubble(calls: Sequence[Call], steps: Sequence[Step], stages: int, micro_batches: int) -> Bubble | None:
    """Return the bubble of a pipeline in the steps that calls were recorded of; None if waiting is not known.

    Args:
        calls: as `matched` returns them.
        steps: of the same ranks.
        stages: p.
        micro_batches: m.
    """
    waits_ns: dict[int, int] = defaultdict(int)
    for call in calls:
        if call.op in {"send", "recv"}:
            if call.wait_ns is None:
                return None
            waits_ns[call.step] += call.wait_ns
    recorded = {(call.rank, call.step) for call in calls}
    groups: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        if (step.rank, step.number) in recorded:
            groups[step.number].append(step)
    if not groups or not waits_ns:
        return None
    idle = [
        1 - (sum(step.wall_ns for step in group) - waits_ns[number]) / (len(group) * extent_ns(group))
        for number, group in groups.items()
    ]
    return Bubble(median(idle), (stages - 1) / (micro_batches + stages - 1))


def extent_ns(steps: Sequence[Step]) -> int:
    """Return the time from the first rank's start of a step to the last one's end."""
    return max(step.start_ns + step.wall_ns for step in steps) - min(step.start_ns for step in steps)
