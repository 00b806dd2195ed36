"""Communication calls from other tools, kineto, Chakra and PARAM, and to them: Chakra, Chrome and Perfetto."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Final

import msgspec

from ipcbench.errors import ConfigError, StoreError
from ipcbench.profile.comm.waits import matched, misfits
from ipcbench.profile.files import as_json
from ipcbench.profile.files.timeline import chrome, perfetto
from ipcbench.profile.records import Call, Profile
from ipcbench.util.files import as_store_errors, nothing_new_if_it_fails, regular, write_bytes
from ipcbench.util.text import printable

_Call = dict[str, Any]
"""What a call is made of, without rank and sequence; `op` is None for what is none of ours."""
_OPS: Final = {
    "all_reduce": 0, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7,
    "barrier": 9, "send": None, "recv": None,
}  # fmt: skip
"""Our operations → Chakra's CollectiveCommType."""
_KINDS: Final = {"COMP_NODE": 4, "COMM_SEND_NODE": 5, "COMM_RECV_NODE": 6, "COMM_COLL_NODE": 7}
_DTYPES: Final = {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "int": "int32",
                  "long": "int64", "short": "int16", "char": "int8", "byte": "uint8",
                  "longint": "int64", "shortint": "int16", "signedchar": "int8", "unsignedchar": "uint8"}  # fmt: skip
_NO_CALLS = frozenset({"init", "wait", "barrierall", "startcoalescing", "endcoalescing"})


def _op(name: str) -> str | None:
    """Return our name of an operation: of `_allgather_base`, `c10d::allreduce_`, `all_to_allv` …; None if unknown."""
    plain = name.lower().rpartition("::")[2].replace("_", "")
    return next((op for op in _OPS if plain.startswith(op.replace("_", ""))), None)


def _dtype(name: object) -> str:
    name = str(name).lower().replace(" ", "").removeprefix("torch.").removeprefix("c10::")
    return _DTYPES.get(name, name)


def _size(elements: int, dtype: str, op: str) -> int:
    """Return bytes.

    Raises:
        ValueError: the type is not known.
    """
    bits = re.fullmatch(r"[a-z]+(1|2|4|8|16|32|64|128)(_\w+)?", dtype)
    if not elements or _op(op) == "barrier":
        return 0
    if not bits and dtype != "bool":
        raise ValueError(f"{op} does not say its data type, without which its bytes are not known")
    return elements * (max(8, int(bits[1])) // 8 if bits else 1)


def _whole(value: Any) -> int:
    """Return a whole number, which protobuf's JSON has as a text.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, bool):
        raise TypeError
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value) else index(value)


def _kineto(data: Any) -> Iterator[_Call]:
    """Yield the calls of a trace of torch.profiler: of `record_param_comms`, or else of the operators of c10d."""
    events = [each for each in data["traceEvents"] if each.get("ph") == "X"]
    if not all(math.isfinite(float(each.get("ts", 0))) for each in events):
        raise ValueError("the time of an event is no number")
    events.sort(key=lambda each: float(each.get("ts", 0)))
    events = [each | {"base_ns": _whole(data.get("baseTimeNanoseconds", 0))} for each in events]
    recorded = [each for each in events if "Collective name" in each.get("args", {})]
    kernels = {"kernel", "gpu_memcpy"}  # repeat what their launch says
    about = data.get("distributedInfo", {})
    groups = {str(each.get("pg_name")): each.get("ranks", ()) for each in about.get("pg_config", ())}
    world = _whole(about.get("world_size", 0))
    for each in [e for e in recorded if e.get("cat") not in kernels] or recorded:
        said = each["args"]
        dtype = _dtype(said.get("dtype", ""))
        elements = max(index(said.get("In msg nelems", 0)), index(said.get("Out msg nelems", 0)))
        listed = re.fullmatch(r"\[[\d, ]*\]", str(said.get("Process Group Ranks", "")))
        group = json.loads(listed[0]) if listed else groups.get(str(said.get("Process Group Name")), ())
        if not group and said.get("Group size") == world:
            group = range(world)
        ends = said.get("Src Rank"), said.get("Dst Rank")
        own = {"ends": ends, "group": str(said.get("Process Group Name", ""))}
        yield _timed(each, said["Collective name"], group, elements, dtype) | own
    if not recorded:
        yield from _c10d(events, range(world), len(groups))


def _c10d(events: Sequence[Mapping[str, Any]], members: Sequence[int], groups_count: int) -> Iterator[_Call]:
    """Yield the calls of c10d's operators. A list of tensors has no type there, but in the event of gloo."""
    kinds: dict[tuple[str | None, int], set[str]] = defaultdict(set)
    named = [(each, str(each.get("name", "")), each.get("args", {})) for each in events]
    for _, name, said in named:
        if name.startswith(("gloo:", "nccl:")) and said.get("Input type"):
            op = _op(name.replace(":", "::"))
            kinds[op, max(map(_elements, said["Input Dims"]))].add(_dtype(said["Input type"][0]))
    for each, name, said in named:
        if not (name.startswith("c10d::") and "Input Dims" in said):
            continue
        if groups_count > 1:
            raise ValueError(f"{name} does not say in which of the {groups_count} process groups it is")
        op, sizes = _op(name), [size for dims in said["Input Dims"] if (size := _elements(dims))]
        elements = max(sizes, default=0)
        own = {_dtype(kind) for kind in said["Input type"] if kind not in {"", "TensorList", "Scalar", "ScalarList"}}
        found = own or kinds[op, elements]
        if op in {"all_gather", "reduce_scatter"} and len(sizes) == 1:  # what is whole has no shape
            elements *= len(members)
        peer, tag = (said.get("Concrete Inputs", []) + [None] * 4)[2:4] if "any" not in name else (None, None)
        call = _timed(each, name, members, elements, next(iter(found)) if len(found) == 1 else "")
        ends = (None, peer) if op == "send" else (peer, None)
        yield call | {"ends": ends, "group": str(tag or "") if op in {"send", "recv"} else ""}


def _elements(shape: Any) -> int:
    """Return the elements of a tensor with a shape, or of a list of them."""
    if shape and isinstance(shape[0], list):
        return sum(map(_elements, shape))
    count = 1 if shape else 0
    for size in shape:
        if (size := _whole(size)) < 0:
            raise ValueError("a tensor has a negative size")
        count *= size
    return count


def _sum(start_ns: int | None, took_ns: int | None) -> int | None:
    return None if start_ns is None or took_ns is None else start_ns + took_ns


def _group(op: str, ranks: Sequence[int]) -> Sequence[int]:
    """Return the ranks of an operation's process group.

    Raises:
        ValueError: it does not say them.
    """
    if not ranks and _op(op) not in {None, "send", "recv"}:
        raise ValueError(f"{op} does not say which ranks are in its process group")
    return ranks


def _timed(event: Mapping[str, Any], op: str, ranks: Sequence[int], elements: int, dtype: str) -> _Call:
    start = event["base_ns"] + round(float(event["ts"]) * 1e3)
    return {
        "op": op, "ranks": _group(op, ranks), "bytes": _size(elements, dtype, op), "dtype": dtype, "enter_ns": start,
        "exit_ns": start + round(float(event.get("dur", 0)) * 1e3),
    }  # fmt: skip


def _param(data: Any) -> Iterator[_Call]:
    """Yield the calls of a trace for PARAM's replay; sizes are in elements."""
    if not isinstance(data, list):
        raise TypeError
    named = [each for each in data if "comms" in each]
    members = {str(each.get("pg_id")): each["global_ranks"] for each in named if each.get("global_ranks")}
    is_one = len({str(each["pg_id"]) for each in named if "pg_id" in each}) < 2
    for each in named:
        dtype = _dtype(each.get("dtype", ""))
        elements = max(index(each.get("in_msg_size", 0)), index(each.get("out_msg_size", 0)))
        every = range(_whole(each.get("world_size", 0)) if is_one and not members else 0)
        op = str(each["comms"])
        ranks = each.get("global_ranks") or members.get(str(each.get("pg_id")), every)
        start, took, marks = each.get("startTime_ns"), each.get("duration_ns"), each.get("markers") or [""]
        yield {
            "op": op, "ranks": _group(op, ranks), "bytes": _size(elements, dtype, op), "dtype": dtype,
            "path": str(marks[0]), "ends": (each.get("src_rank"), each.get("dst_rank")),
            "step": _whole(each.get("step", 0)), "enter_ns": start, "exit_ns": _sum(start, took),
            "gap_ns": each.get("gap_ns"), "group": str(each.get("pg_id", "")),
        }  # fmt: skip


def _chakra(data: Any) -> Iterator[_Call]:
    """Yield the calls of Chakra's nodes as protobuf's JSON; the time of a COMP_NODE is the gap before the next call."""
    gap_ns: int | None = None
    for node in data["nodes"]:
        kind = _KINDS.get(node["type"], node["type"])
        said: dict[str, Any] = {
            each["name"]: next(value for key, value in each.items() if key not in {"name", "docString"})
            for each in node.get("attr", ())
        }
        micros = node.get("startTimeMicros"), node.get("durationMicros")
        start_ns, took_ns = (None if value is None else _whole(value) * 1000 for value in micros)
        exact = said.get("start_ns"), said.get("duration_ns")
        start_ns, took_ns = (
            rough if value is None else _whole(value) for value, rough in zip(exact, (start_ns, took_ns), strict=True)
        )
        if kind == _KINDS["COMP_NODE"]:
            gap_ns = (gap_ns or 0) + (took_ns or 0)
        elif kind in {5, 6, 7}:
            number = _whole(said.get("comm_type", -1))
            named = next((op for op, place in _OPS.items() if place == number), f"comm_type {number}")
            yield {
                "op": {5: "send", 6: "recv"}.get(kind, named), "ends": (said.get("comm_src"), said.get("comm_dst")),
                "ranks": json.loads(said.get("pg_ranks", "[]")),
                "bytes": 0 if named == "barrier" else _whole(said["comm_size"]),
                "dtype": said.get("dtype", ""), "path": said.get("path", ""), "step": _whole(said.get("step", 0)),
                "enter_ns": start_ns, "exit_ns": _sum(start_ns, took_ns), "gap_ns": gap_ns,
                "group": str(said.get("pg_name", "")),
            }  # fmt: skip
            gap_ns = None


def _to_chakra(calls: Sequence[Call]) -> dict[str, Any]:
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
            call.op, kind, call.took_ns, call.enter_ns, comm_type=_OPS.get(call.op), comm_size=call.bytes, comm_src=src,
            comm_dst=dst, pg_ranks=json.dumps(call.ranks), dtype=call.dtype, path=call.path, step=call.step,
            pg_name=call.group or None,
        )  # fmt: skip
    return {"schema": "chakra 0.0.4", "nodes": nodes}


IMPORTS: Mapping[str, Callable[[Any], Iterator[_Call]]] = {"kineto": _kineto, "chakra": _chakra, "param": _param}
EXPORTS: Final = ("chrome", "perfetto", "chakra")


def read_calls(paths: Sequence[Path], form: str) -> Profile:
    """Return the calls in the traces of another tool, one file a rank, as a profile without steps.

    Args:
        paths: of files, `.json` or `.json.gz`, or of folders of them. A file's rank is what it says itself, or in its
            name the number behind `rank` or the last one; that of a single file may be 0.
        form: one of `IMPORTS`.

    Raises:
        ConfigError: no such format.
        StoreError: a file cannot be read, is not of this format, or of a rank that another is of; none has a call; or
            calls have members of which there is no file.
    """
    if form not in IMPORTS:
        raise ConfigError("format", form, IMPORTS)
    found = ([*path.glob("[!.]*.json"), *path.glob("[!.]*.json.gz")] if path.is_dir() else [path] for path in paths)
    files = [file for each in found for file in sorted(each) if file in paths or not file.is_dir()]
    calls: list[Call] = []
    unknown: Counter[str] = Counter()
    known: dict[int, Path] = {}
    for file in files:
        with as_store_errors(file):
            if not file.exists():
                raise StoreError(f"{file}: there is no such file")
            data = regular(file).read_bytes()
        try:
            parsed = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
            rank = _rank_of(parsed, file, len(files))
            calls += _numbered(IMPORTS[form](parsed), rank, unknown)
        except _DAMAGED as error:
            raise StoreError(f"{file}: no trace of {form}: {_why(error)}") from error
        if rank in known:
            raise StoreError(f"{file}: is of rank {rank}, and so is {known[rank]}; name one file for each rank")
        known[rank] = file
    if missing := sorted({member for call in calls for member in call.ranks} - known.keys()):
        words = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        text = f"there is no trace of rank {words}, which takes part in these calls; name its file, too"
        raise StoreError(f"{', '.join(map(str, paths))}: {text}")
    if not calls:
        raise StoreError(f"{', '.join(map(str, paths))}: holds no communication call that {form} would record")
    is_planned = all(call.enter_ns is None for call in calls)
    clock = "" if is_planned else "; their times are taken as those of one clock"
    said = unfit(calls)
    remarks = [*([said] if said else []), f"Imported from {form}: {len(files)} files{clock}."]
    if blind := sum(call.wait_ns is None for call in matched(calls) if call.exit_ns is not None):
        why = "others lack or have no times, they are asynchronous, or clocks differ"
        remarks.append(f"Calls of which it is not known how long they waited: {blind:,}; {why}.")
    remarks += [f"{count} calls of {name} were left out." for name, count in unknown.items()]
    return Profile(None, calls=tuple(calls), remarks=tuple(remarks), is_planned=is_planned)


def _rank_of(parsed: Any, file: Path, files_count: int) -> int:
    """Return the rank that a trace says, or its name; 0 of a single file."""
    stated = parsed.get("distributedInfo", {}).get("rank") if isinstance(parsed, dict) else None
    numbers = re.findall(r"rank\D?(\d+)", file.name) or re.findall(r"\d+", file.name)
    if stated is None and not numbers and files_count > 1:
        raise ValueError("neither it nor its name says a rank, as rank0.json does")
    return _whole(stated if stated is not None else (numbers or [0])[-1])


def unfit(calls: Sequence[Call]) -> str:
    """Return in a sentence why calls of all ranks do not fit together; an empty text if they do, as far as is known."""
    odd = [*misfits(calls)]
    if doubled := _doubled_count(calls):
        odd.insert(0, f"calls that are there twice, with the same begin and end: {doubled:,}")
    more = f"; and {len(odd) - _MOST_MISFITS:,} more" if len(odd) > _MOST_MISFITS else ""
    said = f"These traces do not fit together, so counts and bytes are wrong: {'; '.join(odd[:_MOST_MISFITS])}{more}."
    return printable(said) if odd else ""


def _doubled_count(calls: Sequence[Call]) -> int:
    """Return how many calls are there again, where that is no accident of a coarse clock or of times that all agree.
    Messages are left out: all of a batch may have one begin and end.
    """
    times: dict[int, set[int]] = defaultdict(set)
    for call in calls:
        times[call.rank] |= {call.enter_ns or 0, call.exit_ns or 0}
    ticks = {rank: math.gcd(*each) for rank, each in times.items()}
    alike = Counter(
        msgspec.structs.replace(call, sequence=0, gap_ns=None)
        for call in calls
        if call.op not in {"send", "recv"} and len(times[call.rank]) > 2 and (call.took_ns or 0) > ticks[call.rank]
    )
    return alike.total() - len(alike)


_DAMAGED: Final = (ValueError, LookupError, TypeError, AttributeError, EOFError, ArithmeticError, RuntimeError, OSError,
                   msgspec.ValidationError, zlib.error)  # fmt: skip
"""What reading of any bytes may end with."""
_MOST = 2**62
_MOST_RANKS = 2**16
_MOST_MISFITS = 3
"""Of a remark."""


def _why(error: BaseException) -> str:
    """Return in words why a trace cannot be read."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError) and not error.doc:
        return "it is empty"
    if isinstance(error, OverflowError):
        return "a number in it is too large"
    if isinstance(error, LookupError | TypeError | AttributeError | RuntimeError):
        return "its parts are not those of such a trace"
    return str(error)


def _members(name: str, ranks: Any) -> tuple[int, ...]:
    if not isinstance(ranks, Sequence) or isinstance(ranks, str):
        raise TypeError
    if len(ranks) > _MOST_RANKS:
        raise ValueError(f"{name} is of more ranks than {_MOST_RANKS:,}")
    return tuple(sorted(map(_whole, ranks)))


def _numbered(found: Iterable[_Call], rank: int, unknown: Counter[str]) -> Iterator[Call]:
    """Yield the calls of a rank in program order, and count those that are none of ours."""
    last_ns: int | None = None
    counts: dict[int, int] = defaultdict(int)
    for each in found:
        name, (src, dst) = each["op"], each.get("ends", (None, None))
        f"{name}{each['dtype']}{each.get('path', '')}{each.get('group', '')}".encode()  # ValueError for what is no text
        op = _op(name)
        if op is None:
            unknown[name] += name.lower().replace("_", "") not in _NO_CALLS
            continue
        ranks = _members(name, each["ranks"])
        if op in {"send", "recv"}:
            peer = dst if op == "send" else src
            if peer is None:
                raise ValueError(f"{name} does not say its peer")
            src, dst = (src, peer) if op == "send" else (peer, dst)
            ranks = (rank if src is None else _whole(src), rank if dst is None else _whole(dst))
        step, start, end, gap = each.get("step", 0), each.get("enter_ns"), each.get("exit_ns"), each.get("gap_ns")
        if gap is None and start is not None and last_ns is not None:
            gap = max(0, start - last_ns)
        is_possible = all(0 <= member < _MOST_RANKS for member in (rank, *ranks)) and len({*ranks}) == len(ranks)
        if not is_possible or each["bytes"] < 0:
            raise ValueError(f"rank {rank}, or another rank or the size of {name}, is not possible")
        if min(step, start or 0, gap or 0, 0 if end is None else end - start) < 0:
            raise ValueError(f"{name} has a negative step, begin, duration or gap")
        if max(abs(value or 0) for value in (step, each["bytes"], start, end, gap)) >= _MOST:
            raise OverflowError
        row = (rank, step, counts[step], op, ranks, each["bytes"], each["dtype"], each.get("path", ""), start, end)
        yield msgspec.convert((*row, None, None, gap, each.get("group", "")), Call)  # also looks at each type
        counts[step] += 1
        last_ns = end
    unknown += Counter()  # without those counted 0 times


def write_calls(profile: Profile, form: str, path: Path) -> list[Path]:
    """Write a profile for another tool and return the files: `path`, or a file a rank in the folder `path`.

    Args:
        profile: the content.
        form: one of `EXPORTS`; Chrome and Perfetto show times, Chakra takes a plan as well.
        path: of the file (Chrome, Perfetto) or the folder (Chakra).

    Raises:
        ConfigError: no such format.
        StoreError: it has no times, or no calls; or a file cannot be written.
    """
    if form not in EXPORTS:
        raise ConfigError("format", form, EXPORTS)
    if form == "chakra":
        if not profile.calls:
            raise StoreError(f"{path}: the profile has no communication calls to be written for {form}")
        calls = {rank: [call for call in profile.calls if call.rank == rank] for rank in profile.ranks}
        files = {path / f"{rank}.json": as_json(_to_chakra(own)) for rank, own in calls.items()}
    elif not profile.steps and all(call.enter_ns is None for call in profile.calls):
        raise StoreError(f"{path}: a plan has no times, which {form} shows; export it to chakra")
    else:
        files = {path: as_json(chrome(profile)) if form == "chrome" else perfetto(profile)}
    for file in files:
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise StoreError(f"{file}: is a folder, a link, a device or the like; name a new file")
    with nothing_new_if_it_fails(files):
        for file, data in files.items():
            write_bytes(file, data)
    return [*files]
