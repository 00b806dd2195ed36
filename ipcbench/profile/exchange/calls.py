"""What the formats of other tools have in common: names of operations and data types, bytes, and program order."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, TypeAlias, get_args

import msgspec

from ipcbench.profile.records import Call, Op

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)] | Annotated[str, msgspec.Meta(pattern=r"^\d{1,19}$")]
"""A whole number, which protobuf's JSON has as a text."""

OPS: Final[tuple[str, ...]] = get_args(Op)
_NO_CALLS: Final = frozenset({"init", "wait", "barrierall", "startcoalescing", "endcoalescing"})
_DTYPES: Final = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64", "short": "int16",
    "char": "int8", "byte": "uint8", "longint": "int64", "shortint": "int16", "signedchar": "int8",
    "unsignedchar": "uint8", "complexhalf": "complex32", "complexfloat": "complex64", "complexdouble": "complex128",
    "complex<half>": "complex32", "complex<float>": "complex64", "complex<double>": "complex128",
}  # fmt: skip
_BITS: Final = re.compile(r"u?int(8|16|32|64)|float(16|32|64)|bfloat(16)|float(8)_\w+|complex(32|64|128)|boo(l)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A call as its trace has it: of an operation by its name there, in time order, of a rank that its file says.

    Attributes:
        ends: source and destination of a message; the trace's own rank where it is None.
    """

    op: str
    ranks: Iterable[int] = ()
    bytes: int
    dtype: str
    path: str = ""
    step: int = 0
    enter_ns: int | None = None
    exit_ns: int | None = None
    gap_ns: int | None = None
    group: str = ""
    ends: tuple[int | None, int | None] = (None, None)


class Trace(NamedTuple):
    """What a trace of one rank holds: calls, its rank if it says that, and a remark on all of them."""

    calls: Iterator[Found]
    rank: int | None = None
    remark: str = ""


def op_of(name: str) -> str | None:
    """Return our name of an operation: of `_allgather_base`, `c10d::allreduce_`, `all_to_allv` …; None if unknown."""
    plain = name.lower().rpartition("::")[2].replace("_", "")
    return next((op for op in OPS if plain.startswith(op.replace("_", ""))), None)


def dtype_of(name: str) -> str:
    """Return our name of a data type."""
    plain = name.lower().replace(" ", "").replace("c10::", "").removeprefix("torch.")
    return _DTYPES.get(plain, plain)


def size_of(elements: int, dtype: str, op: str) -> int:
    """Return bytes.

    Raises:
        ValueError: the type is not known.
    """
    if not elements or op_of(op) in {None, "barrier"}:
        return 0
    known = _BITS.fullmatch(dtype)
    if not known:
        said = f"is of an unknown data type, {dtype:.40}" if dtype else "does not say its data type"
        raise ValueError(f"{op} {said}, without which its bytes are not known")
    bits = known[known.lastindex or 0]
    return elements * (1 if bits == "l" else int(bits) // 8)


def members(op: str, ranks: Sequence[int]) -> Sequence[int]:
    """Return the ranks of an operation's process group.

    Raises:
        ValueError: it does not say them.
    """
    if not ranks and op_of(op) not in {None, "send", "recv"}:
        raise ValueError(f"{op} does not say which ranks are in its process group")
    return ranks


def end_of(start_ns: int | None, took_ns: int | None) -> int | None:
    """Return when something ended; None if that is not known."""
    return None if start_ns is None or took_ns is None else start_ns + took_ns


def numbered(found: Iterable[Found], rank: int, unknown: Counter[str]) -> Iterator[Call]:
    """Yield the calls of a rank in program order, and count those that are none of ours.

    Raises:
        ValueError: a message does not say its peer, or a number is not possible.
    """
    last_ns: int | None = None
    counts: dict[int, int] = defaultdict(int)
    for each in found:
        op = op_of(each.op)
        if op is None:
            if each.op.lower().replace("_", "") not in _NO_CALLS:
                unknown[each.op] += 1
            continue
        ranks = tuple(sorted(each.ranks))
        if op in {"send", "recv"}:
            ends = [rank if end is None else end for end in each.ends]
            if each.ends[op == "send"] is None:
                raise ValueError(f"{each.op} does not say its peer")
            ranks = (ends[0], ends[1])
        gap = each.gap_ns
        if gap is None and each.enter_ns is not None and last_ns is not None:
            gap = max(0, each.enter_ns - last_ns)
        last_ns = each.exit_ns
        times = (each.enter_ns, each.exit_ns, None, None, gap)
        row = (rank, each.step, counts[each.step], op, ranks, each.bytes, each.dtype, each.path, *times, each.group)
        try:
            yield msgspec.convert(row, Call)
        except msgspec.ValidationError as error:
            text = re.sub(r"\$\[(\d+)\]", lambda found: Call.__struct_fields__[int(found[1])], str(error))
            raise ValueError(f"{each.op:.40}: {text}") from None
        counts[each.step] += 1
