"""Traces of torch.profiler: events of `record_param_comms`, or else the operators of c10d."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ipcbench.profile.exchange.calls import Found, Number, dtype_of, members, op_of, size_of
from ipcbench.profile.records import Count, Rank, RanksCount

_KERNELS: Final = {"kernel", "gpu_memcpy"}
"""Repeat what their launch says."""
_NO_TENSOR: Final = {"", "TensorList", "Scalar", "ScalarList"}


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Group(msgspec.Struct):
    pg_name: str | int = ""
    ranks: tuple[Rank, ...] = ()


class _Distributed(msgspec.Struct):
    rank: Rank | None = None
    world_size: RanksCount = 0
    pg_config: list[_Group] = []


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: Number = msgspec.field(default=0, name="baseTimeNanoseconds")
    distributed: _Distributed = msgspec.field(default_factory=_Distributed, name="distributedInfo")


class _Recorded(msgspec.Struct, rename=lambda name: name.replace("_", " ").capitalize().replace(" rank", " Rank")):
    """What an event of `record_param_comms` says."""

    collective_name: str
    in_msg_nelems: Count = 0
    out_msg_nelems: Count = 0
    group_size: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None
    dtype: str = msgspec.field(default="", name="dtype")
    group: str | int = msgspec.field(default="", name="Process Group Name")
    ranks: str | tuple[Rank, ...] = msgspec.field(default="", name="Process Group Ranks")


class _Operator(msgspec.Struct):
    """What an event of an operator says."""

    dims: list[list[Count | list[Count]]] = msgspec.field(default=[], name="Input Dims")
    """Of each argument the shape of its tensor, or of its tensors."""
    types: list[str] = msgspec.field(default=[], name="Input type")
    inputs: list[Any] = msgspec.field(default=[], name="Concrete Inputs")

    @property
    def sizes(self) -> list[int]:
        """Return the elements of each argument that has some."""
        counts = (sum(_elements(each) for each in dims if isinstance(each, list)) or _elements(dims)
                  for dims in self.dims)  # fmt: skip
        return [count for count in counts if count]


def read_kineto(data: bytes) -> tuple[int | None, Iterator[Found]]:
    """Return the rank that a trace says, and its calls."""
    trace = msgspec.json.decode(data, type=_Trace)
    spans = sorted((event for event in trace.events if event.ph == "X"), key=lambda event: event.ts)
    recorded = [event for event in spans if b'"Collective name"' in memoryview(event.args).tobytes()]
    recorded = [event for event in recorded if event.cat not in _KERNELS] or recorded
    return trace.distributed.rank, _recorded(recorded, trace) if recorded else _operators(spans, trace)


def _recorded(events: Sequence[_Event], trace: _Trace) -> Iterator[Found]:
    about = trace.distributed
    groups = {str(each.pg_name): each.ranks for each in about.pg_config}
    for event in events:
        said = msgspec.json.decode(event.args, type=_Recorded)
        name, dtype = str(said.group), dtype_of(said.dtype)
        ranks: Sequence[int] = said.ranks if isinstance(said.ranks, tuple) else groups.get(name, ())
        if isinstance(said.ranks, str) and re.fullmatch(r"\[[\d, ]*\]", said.ranks):  # of many, not all are named
            ranks = msgspec.json.decode(said.ranks, type=tuple[Rank, ...])
        if not ranks and said.group_size == about.world_size:
            ranks = range(about.world_size)
        elements, ends = max(said.in_msg_nelems, said.out_msg_nelems), (said.src_rank, said.dst_rank)
        yield _call(event, trace, said.collective_name, ranks, elements, dtype, name, ends)


def _operators(events: Sequence[_Event], trace: _Trace) -> Iterator[Found]:
    """Yield the calls of c10d's operators. A list of tensors has no type there, but in the event of gloo."""
    said = [(event, msgspec.json.decode(event.args, type=_Operator)) for event in events
            if event.name.startswith(("c10d::", "gloo:", "nccl:"))]  # fmt: skip
    calls = [(event, each) for event, each in said if event.name.startswith("c10d::") and each.dims]
    if calls and (groups_count := len(trace.distributed.pg_config)) > 1:
        raise ValueError(f"{calls[0][0].name} does not say in which of the {groups_count} process groups it is")
    dtypes = _dtypes([(event, each) for event, each in said if not event.name.startswith("c10d::")], calls)
    everyone = range(trace.distributed.world_size)
    for (event, each), dtype in zip(calls, dtypes, strict=True):
        op, sizes = op_of(event.name), each.sizes
        elements = max(sizes, default=0)
        if op in {"all_gather", "reduce_scatter"} and len(sizes) == 1:  # what is whole has no shape
            elements *= len(everyone)
        of_any = "any" in event.name or op not in {"send", "recv"}
        peer, tag = (None, None) if of_any else (each.inputs + [None] * 4)[2:4]
        number = None if peer is None else int(msgspec.convert(peer, Number))
        ends = (None, number) if op == "send" else (number, None)
        yield _call(event, trace, event.name, everyone, elements, dtype, str(tag or ""), ends)


_Said = tuple[_Event, _Operator]


def _dtypes(made: Sequence[_Said], calls: Sequence[_Said]) -> list[str]:
    """Return the data type of each of c10d's calls, of those in `made` where it has none itself; "" if unknown.

    Those of one operation and size begin behind their calls, in the same order. Where they are of several types, they
    say the type only if each begins before the next call.
    """
    types: dict[tuple[str | None, int], list[tuple[float, str]]] = defaultdict(list)
    for event, said in made:
        if said.types:
            key = op_of(event.name.replace(":", "::")), max(said.sizes, default=0)
            types[key].append((event.ts, dtype_of(said.types[0])))
    alike: dict[tuple[str | None, int], list[int]] = defaultdict(list)
    for place, (event, said) in enumerate(calls):
        alike[op_of(event.name), max(said.sizes, default=0)].append(place)
    found = [""] * len(calls)
    for key, places in alike.items():
        begins = [*(calls[place][0].ts for place in places), math.inf]
        known = types[key]
        is_one = len({dtype for _, dtype in known}) == 1
        is_sure = len(known) == len(places) and all(
            begin <= at < following for begin, following, (at, _) in zip(begins[:-1], begins[1:], known, strict=True)
        )
        for number, place in enumerate(places):
            own = {dtype_of(each) for each in calls[place][1].types if each not in _NO_TENSOR}
            others = known[0][1] if is_one else known[number][1] if is_sure else ""
            found[place] = own.pop() if len(own) == 1 else "" if own else others
    return found


def _elements(shape: Sequence[int | list[int]]) -> int:
    """Return the elements of a tensor; 0 of an empty shape, which all that is no tensor has."""
    sizes = [size for size in shape if isinstance(size, int)]
    return math.prod(sizes) if sizes else 0


def _call(
    event: _Event, trace: _Trace, op: str, ranks: Sequence[int], elements: int, dtype: str, group: str,
    ends: tuple[int | None, int | None],
) -> Found:  # fmt: skip
    start_ns = int(trace.base_ns) + round(event.ts * 1e3)
    return Found(
        op=op, ranks=members(op, ranks), bytes=size_of(elements, dtype, op), dtype=dtype, group=group, ends=ends,
        enter_ns=start_ns, exit_ns=start_ns + round(event.dur * 1e3),
    )  # fmt: skip
