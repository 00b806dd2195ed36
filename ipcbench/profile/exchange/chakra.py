"""Execution traces of Chakra, as protobuf's JSON: nodes, of which some are communication."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ipcbench.profile.exchange.calls import Found, Number, Trace, end_of
from ipcbench.profile.records import Call, Rank

_KINDS: Final = {"COMP_NODE": 4, "COMM_SEND_NODE": 5, "COMM_RECV_NODE": 6, "COMM_COLL_NODE": 7}
_COLLECTIVES: Final = {"all_reduce": 0, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
                       "reduce_scatter": 7, "barrier": 9}  # fmt: skip
"""Our operations → Chakra's CollectiveCommType."""


class _Node(msgspec.Struct, rename="camel"):
    type: str | int = 0
    start_time_micros: Number | None = None
    duration_micros: Number | None = None
    attr: list[dict[str, Any]] = []


class _Nodes(msgspec.Struct):
    nodes: list[_Node]


class _Attributes(msgspec.Struct):
    comm_type: Number | None = None
    comm_size: Number | None = None
    comm_src: Number | None = None
    comm_dst: Number | None = None
    pg_ranks: str = "[]"
    pg_name: str | int = ""
    dtype: str = ""
    path: str = ""
    step: Number = 0
    start_ns: Number | None = None
    duration_ns: Number | None = None


def read_chakra(data: bytes) -> Trace:
    """Return the calls of a trace, which does not say its rank; the time of a COMP_NODE is the gap before the next."""
    return Trace(_found(msgspec.json.decode(data, type=_Nodes).nodes))


def _whole(number: Number | None) -> int | None:
    return None if number is None else int(number)


def _nanoseconds(exact: Number | None, micros: Number | None) -> int | None:
    return int(exact) if exact is not None else None if micros is None else int(micros) * 1000


def _attributes(node: _Node) -> _Attributes:
    """Return what a node says; each of its attributes has one value, under a name that tells its type."""
    values = (next((value for key, value in each.items() if key not in {"name", "docString"}), None)
              for each in node.attr)  # fmt: skip
    names = (msgspec.convert(each.get("name", ""), str) for each in node.attr)
    return msgspec.convert(dict(zip(names, values, strict=True)), _Attributes)


def _found(nodes: list[_Node]) -> Iterator[Found]:
    gap_ns: int | None = None
    for node in nodes:
        kind = _KINDS.get(node.type, 0) if isinstance(node.type, str) else node.type
        if kind not in _KINDS.values():
            continue
        said = _attributes(node)
        start_ns = _nanoseconds(said.start_ns, node.start_time_micros)
        took_ns = _nanoseconds(said.duration_ns, node.duration_micros)
        if kind == _KINDS["COMP_NODE"]:
            gap_ns = (gap_ns or 0) + (took_ns or 0)
            continue
        number, size = _whole(said.comm_type), _whole(said.comm_size)
        named = next((op for op, place in _COLLECTIVES.items() if place == number), f"comm_type {number}")
        op = {5: "send", 6: "recv"}.get(kind, named)
        if size is None and op != "barrier":
            raise ValueError(f"{op} does not say its comm_size")
        yield Found(
            op=op, ranks=msgspec.json.decode(said.pg_ranks, type=tuple[Rank, ...]), bytes=size or 0, dtype=said.dtype,
            path=said.path, step=int(said.step), enter_ns=start_ns, exit_ns=end_of(start_ns, took_ns), gap_ns=gap_ns,
            group=str(said.pg_name), ends=(_whole(said.comm_src), _whole(said.comm_dst)),
        )  # fmt: skip
        gap_ns = None


def to_chakra(calls: Sequence[Call]) -> dict[str, Any]:
    """Return the trace of a rank: its calls one after another, and before each a node for the gap."""
    nodes: list[dict[str, Any]] = []

    def add(name: str, kind: str, ns: int | None, start_ns: int | None, **attributes: str | int | None) -> None:
        times = {"start_ns": start_ns, "duration_ns": ns}
        micros = {"startTimeMicros": start_ns, "durationMicros": ns}
        nodes.append({
            "id": len(nodes), "name": name, "type": kind, "dataDeps": [len(nodes) - 1] if nodes else [],
            **{key: value // 1000 for key, value in micros.items() if value is not None},
            "attr": [{"name": key, "stringVal" if isinstance(value, str) else "int64Val": value}
                     for key, value in {"is_cpu_op": 1, **attributes, **times}.items() if value is not None],
        })  # fmt: skip

    for call in calls:
        if call.gap_ns is not None:
            add("computing", "COMP_NODE", call.gap_ns, None)
        kind = {"send": "COMM_SEND_NODE", "recv": "COMM_RECV_NODE"}.get(call.op, "COMM_COLL_NODE")
        src, dst = call.ranks if call.op in {"send", "recv"} else (None, None)
        add(
            call.op, kind, call.took_ns, call.enter_ns, comm_type=_COLLECTIVES.get(call.op), comm_size=call.bytes,
            comm_src=src, comm_dst=dst, pg_ranks=json.dumps(call.ranks), dtype=call.dtype, path=call.path,
            step=call.step, pg_name=call.group or None,
        )  # fmt: skip
    return {"schema": "chakra 0.0.4", "nodes": nodes}
