"""Stored JSON to records: strict about syntax, numbers, types and field names, since anybody may have edited a file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, NoReturn, TypeVar

_Record = TypeVar("_Record")
_Number = TypeVar("_Number", int, float)

_MAX_NUMBER, _MAX_INTEGER = 1e30, 2**64

_UNUSUAL = re.compile(rb"NaN|Infinity|\d{20}|\d[eE]\+?\d\d|\\u[dD][89a-fA-F]")
"""What may be JSON that msgspec accepts and this format does not, or that it refuses less clearly: such text, which is
rare, goes through the standard library's parser."""

_ALWAYS_WRITTEN = frozenset({"notes", "endpoints", "conditions", "round_trip", "floor"})
"""Fields that have a default in the record but that every stored file has."""


def parse_json(data: bytes) -> dict[str, Any]:
    """Return the object in `data`.

    Raises:
        ValueError, TypeError, RecursionError: not strict JSON in UTF-8, not an object, or it holds NaN, an infinity or
            a number beyond 1e30 (2⁶⁴ for integers).
    """
    import msgspec

    try:
        values = _parse_unusual(data) if _UNUSUAL.search(data) else msgspec.json.decode(data)
    except msgspec.DecodeError as error:  # no ValueError in older versions
        raise ValueError(str(error)) from error
    if not isinstance(values, dict):
        raise TypeError("not an object")
    return values


def to_record(values: Mapping[str, Any], kind: type[_Record]) -> _Record:
    """Return the record of type `kind`, a dataclass, from what `parse_json` returned.

    An int counts as a float, a bool as neither. Unknown fields are refused, and so are missing ones, except fields
    that were added to the format later: these have a default.

    Raises:
        ValueError: naming the field and what it holds.
    """
    import msgspec

    try:
        record = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(str(error), values)) from error
    _check_fields(values, record)
    return record


def _explain(message: str, values: Any) -> str:
    """Return msgspec's message with the value that it is about: `a.b is 'x': expected …`."""
    reason, _, path = message.partition(" - at `$")
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        values = values[name] if name else values[int(index)]
    reason = reason[:1].lower() + reason[1:]
    return f"{path.strip('.`')} is {repr(values)[:60]}: {reason}" if path else reason


def _check_fields(values: Mapping[str, Any], record: Any) -> None:
    """Raise ValueError if `values` has fields that the record does not have, or lacks one that is always written."""
    fields: Mapping[str, Any] = record.__dataclass_fields__
    for name in _ALWAYS_WRITTEN & fields.keys() - values.keys():
        raise ValueError(f"{type(record).__name__} without {name!r}")
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"{type(record).__name__} has no field {name!r}")
        part = getattr(record, name)
        for inner_value, inner in zip(value, part, strict=True) if isinstance(part, tuple) else ((value, part),):
            if is_dataclass(inner):
                _check_fields(inner_value, inner)


def _parse_unusual(data: bytes) -> Any:
    values = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_float, parse_int=_integer)
    json.dumps(values, ensure_ascii=False).encode()  # half a surrogate pair is no text and cannot be written
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _float(text: str) -> float:
    return _within(float(text), _MAX_NUMBER, text)


def _integer(text: str) -> int:
    return _within(int(text), _MAX_INTEGER, text)


def _within(value: _Number, limit: float, text: str) -> _Number:
    if not abs(value) <= limit:
        raise ValueError(f"{text[:40]}{'…' * (len(text) > 40)} is beyond every number that can be measured")
    return value
