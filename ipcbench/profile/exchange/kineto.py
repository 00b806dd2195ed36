"""Traces of torch.profiler: events of `record_param_comms`, or else the operators of c10d."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from operator import le, lt
from typing import Any, Final

import msgspec

from ipcbench.profile.exchange.calls import Found, Number, Trace, dtype_of, members, op_of, size_of
from ipcbench.profile.records import Count, Rank, RanksCount

_KERNELS: Final = {"kernel", "gpu_memcpy"}
_NO_TENSOR: Final = {"", "TensorList", "Scalar", "ScalarList", "GenericList"}
_OF_ALL: Final = {"all_gather", "gather", "reduce_scatter", "scatter"}
"""What is whole there may be a list of lists, which has no shape: then only a rank's own part has."""
_ALL_RANKS: Final = (
    "These traces do not say the group of a call: all calls are taken as of all ranks, also those of a group that was "
    "made while they were recorded."
)
_NO_SIZE: Final = {"barrier", "scatter"}
"""Of which gloo's event has none at some ranks."""


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float | None = None
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def begin_us(self) -> float:
        """Return when it began; ValueError if it does not say that."""
        if self.ts is None:
            raise ValueError(f"{self.name:.40} does not say when it began")
        return self.ts

    @property
    def end_us(self) -> float | None:
        """Return when it ended; None if that is not known."""
        return None if self.dur is None else self.begin_us + self.dur


class _Group(msgspec.Struct):
    pg_name: str | int = ""
    ranks: tuple[Rank, ...] = ()


class _Distributed(msgspec.Struct):
    rank: Rank | None = None
    world_size: RanksCount = 0
    pg_config: list[_Group] = []


class _Content(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: Number = msgspec.field(default=0, name="baseTimeNanoseconds")
    distributed: _Distributed = msgspec.field(default_factory=_Distributed, name="distributedInfo")

    def at_ns(self, at_us: float | None) -> int | None:
        """Return a time of an event on the clock of all traces of a host."""
        return None if at_us is None else int(self.base_ns) + round(at_us * 1e3)


class _Recorded(msgspec.Struct):
    """What an event of `record_param_comms`, or the kernel that it has launched, says."""

    op: str = msgspec.field(name="Collective name")
    sent: Count = msgspec.field(default=0, name="In msg nelems")
    received: Count = msgspec.field(default=0, name="Out msg nelems")
    dtype: str = ""
    group: str | int = msgspec.field(default="", name="Process Group Name")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    ranks: str | tuple[Rank, ...] = msgspec.field(default="", name="Process Group Ranks")
    source: int | None = msgspec.field(default=None, name="Src Rank")
    destination: int | None = msgspec.field(default=None, name="Dst Rank")
    launch: int | None = msgspec.field(default=None, name="External id")


class _Operator(msgspec.Struct):
    """What an event of an operator says."""

    dims: list[list[Count | list[Count]]] = msgspec.field(default=[], name="Input Dims")
    """Of each argument the shape of its tensor, or of its tensors."""
    types: list[str] = msgspec.field(default=[], name="Input type")
    inputs: list[Any] = msgspec.field(default=[], name="Concrete Inputs")

    @property
    def sizes(self) -> list[int]:
        """Return the elements of each argument that has a shape."""
        return [size for dims, kind in zip_longest(self.dims, self.types, fillvalue="")
                if (size := _elements([*dims], kind)) is not None]  # fmt: skip

    @property
    def dtypes(self) -> set[str]:
        """Return the data types of its tensors."""
        return {dtype_of(kind) for kind in self.types if kind not in _NO_TENSOR}


_Operation = tuple[_Event, _Operator]


def read_kineto(data: bytes) -> Trace:
    """Return what a trace of a rank holds."""
    trace = msgspec.json.decode(data, type=_Content)
    spans = [event for event in trace.events if event.ph == "X"]
    recorded = [event for event in spans if b'"Collective name"' in memoryview(event.args).tobytes()]
    if recorded:
        return Trace(_recorded(_in_order(recorded), trace), trace.distributed.rank)
    operators = _in_order([event for event in spans if event.name.startswith(("c10d::", "gloo:"))])
    return Trace(_operators(operators, trace), trace.distributed.rank, _ALL_RANKS if operators else "")


def _in_order(events: Sequence[_Event]) -> list[_Event]:
    return sorted(events, key=lambda event: event.begin_us)


def _recorded(events: Sequence[_Event], trace: _Content) -> Iterator[Found]:
    """Yield the calls of recorded events. They end when all is launched; only kernels say when the transfer is."""
    about = trace.distributed
    groups = {str(each.pg_name): each.ranks for each in about.pg_config}
    said = [(event, msgspec.json.decode(event.args, type=_Recorded)) for event in events]
    launches = [(event, each) for event, each in said if event.cat not in _KERNELS]
    counts = Counter((each.launch, each.op) for _, each in launches)
    kernels: dict[tuple[int | None, str], list[_Event]] = defaultdict(list)
    for event, each in said:
        if event.cat in _KERNELS:
            kernels[each.launch, each.op].append(event)
    for event, each in launches or said:
        name, dtype = str(each.group), dtype_of(each.dtype)
        ranks: Sequence[int] = each.ranks if isinstance(each.ranks, tuple) else groups.get(name, ())
        if isinstance(each.ranks, str) and re.fullmatch(r"\[[\d, ]*\]", each.ranks):  # of many, not all are named
            ranks = msgspec.json.decode(each.ranks, type=tuple[Rank, ...])
        if not ranks and each.group_size == about.world_size:
            ranks = range(about.world_size)
        size_bytes = size_of(max(each.sent, each.received), dtype, each.op)
        is_alone = each.launch is not None and counts[each.launch, each.op] == 1
        own = [event] if event.cat in _KERNELS else kernels[each.launch, each.op] if is_alone else []
        begin_us = min((kernel.begin_us for kernel in own), default=event.begin_us)
        ends = [kernel.end_us for kernel in own if kernel.end_us is not None]
        end_us = max(ends) if ends and len(ends) == len(own) else None
        yield Found(
            op=each.op, ranks=members(each.op, ranks), bytes=size_bytes, dtype=dtype, group=name,
            ends=(each.source, each.destination), enter_ns=trace.at_ns(begin_us), exit_ns=trace.at_ns(end_us),
        )  # fmt: skip


def _operators(events: Sequence[_Event], trace: _Content) -> Iterator[Found]:
    """Yield the calls of c10d's operators. Each takes as long as the work that it has put into gloo's queue, which also
    says the type where a list of tensors has none.
    """
    said = [(event, msgspec.json.decode(event.args, type=_Operator)) for event in events]
    calls = [(event, each) for event, each in said if event.name.startswith("c10d::") and each.dims]
    if calls and (groups_count := len(trace.distributed.pg_config)) > 1:
        raise ValueError(f"{calls[0][0].name} does not say in which of the {groups_count} process groups it is")
    everyone = range(trace.distributed.world_size)
    works = _works([each for each in said if each[0].name.startswith("gloo:")], calls, len(everyone))
    for (event, each), (kind, begin_us, end_us) in zip(calls, works, strict=True):
        op, sizes = op_of(event.name), each.sizes
        dtype = kind if not each.dtypes else each.dtypes.pop() if len(each.dtypes) == 1 else ""
        elements = max(sizes, default=0) * (len(everyone) if op in _OF_ALL and len(sizes) == 1 else 1)
        of_any = "any" in event.name or op not in {"send", "recv"}
        peer, tag = (None, None) if of_any else (each.inputs + [None] * 4)[2:4]
        number = None if peer is None else int(msgspec.convert(peer, Number))
        yield Found(
            op=event.name, ranks=members(event.name, everyone), bytes=size_of(elements, dtype, event.name),
            dtype=dtype, group=str(tag or ""), ends=(None, number) if op == "send" else (number, None),
            enter_ns=trace.at_ns(event.begin_us if begin_us is None else begin_us), exit_ns=trace.at_ns(end_us),
        )  # fmt: skip


_Work = tuple[str, float | None, float | None]
"""Its data type, begin and end; "" and None if unknown."""


def _works(made: Sequence[_Operation], calls: Sequence[_Operation], ranks_count: int) -> list[_Work]:
    """Return the work that each of c10d's calls has put into gloo's queue.

    Those of one operation and size begin behind their calls, in the same order. Where they are of several types, they
    say the type only if each begins before the next call.
    """
    there: dict[tuple[str | None, int | None], list[_Operation]] = defaultdict(list)
    for event, said in made:
        op = op_of(event.name.replace(":", "::"))
        there[op, None if op in _NO_SIZE else sum(said.sizes)].append((event, said))
    alike: dict[tuple[str | None, int | None], list[int]] = defaultdict(list)
    for place, (event, said) in enumerate(calls):
        key, count = _work_of(event, said, ranks_count)
        alike[key] += [place] * count
    found: dict[int, _Work] = {}
    for key, places in alike.items():
        works, called = there[key], [calls[place][0].begin_us for place in places]
        begins = [work.begin_us for work, _ in works]
        is_paired = len(works) == len(places) and all(map(le, called, begins))
        kinds = [kind for _, said in works for kind in sorted(said.dtypes)]
        if len(set(kinds)) == 1:
            kinds = kinds[:1] * len(places)
        elif len(kinds) != len(places) or not is_paired or not all(map(lt, begins, [*called[1:], math.inf])):
            kinds = [""] * len(places)
        for number, place in enumerate(places):
            _, first_us, _ = found.get(place, ("", None, None))  # a call may have several works
            begin_us, end_us = (begins[number], works[number][0].end_us) if is_paired else (None, None)
            found[place] = kinds[number], begin_us if first_us is None else first_us, end_us
    return [found[place] for place in range(len(calls))]


def _work_of(event: _Event, said: _Operator, ranks_count: int) -> tuple[tuple[str | None, int | None], int]:
    """Return operation and elements of the work that a call begins in gloo, and how many of them."""
    op, sizes = op_of(event.name), said.sizes
    if op in _NO_SIZE:
        return (op, None), 1
    if op == "reduce_scatter":
        return ("all_reduce", max(sizes, default=0)), ranks_count if len(sizes) == 1 else 1
    return (op, (min if op == "all_gather" else max)(sizes, default=0)), 1


def _elements(dims: list[int | list[int]], kind: str) -> int | None:
    """Return the elements of an argument's tensor, or of all of its list; None of what is no tensor."""
    shapes = [each for each in dims if isinstance(each, list)]
    if not shapes and not dims and kind in _NO_TENSOR:
        return None
    return sum(map(math.prod, shapes)) if shapes else math.prod(each for each in dims if isinstance(each, int))
