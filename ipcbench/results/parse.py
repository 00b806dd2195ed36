"""Do the fields of a dataclass made from somebody's JSON hold what they are declared to hold?"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_types(one: Any) -> None:
    """Check every field of a dataclass, dataclasses inside it included; an int counts as a float, a bool as neither.

    Raises:
        TypeError: naming the field and what it holds.
    """
    hints = _hints(type(one))  # type: ignore[arg-type] # a class can be hashed
    for field in fields(one):
        value = getattr(one, field.name)
        if not _is(value, hints[field.name]):
            raise TypeError(f"{type(one).__name__}.{field.name} is {repr(value)[:60]}")


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _is(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(part, arguments[0]) for part in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_is(part, arguments[1]) for part in value.values())
    return _is_plainly(value, hint)


def _is_plainly(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    if hint in (int, float):
        return isinstance(value, (int, float) if hint is float else int) and not isinstance(value, bool)
    if not isinstance(value, hint):
        return False
    if is_dataclass(hint):
        check_types(value)
    return True
