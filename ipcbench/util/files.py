"""Files handled with care: replaced as a whole or not at all, never followed out of their folder, JSON without NaN."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

from ipcbench.errors import StoreError

_MOST, _MOST_WHOLE = 1e30, 2**64
_Number = TypeVar("_Number", int, float)


@contextmanager
def as_store_errors(path: Path) -> Iterator[None]:
    """Turn every OSError of the block into a StoreError of one line that names the file, `path` if nothing else."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror or error}") from error


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Make or replace a file by what `write` writes; a reader, or a crash, sees the old file or the whole new one.

    Raises:
        StoreError: the disk refuses; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with as_store_errors(path):
        try:
            temporary.unlink(missing_ok=True)  # a link laid there must not lead out of the folder
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def to_json(values: dict[str, Any], what: str, indent: int | None = None) -> str:
    """Return strict JSON; `what` names the values in an error.

    Raises:
        StoreError: a number is not finite, or a value is not plain.
    """
    try:
        text = json.dumps(values, allow_nan=False, ensure_ascii=False, indent=indent)
        text.encode()
    except (ValueError, TypeError) as error:
        raise StoreError(f"{what}: cannot be stored as JSON: {' '.join(str(error).split())}") from error
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _measurable(text: str) -> float:
    return _within(float(text), _MOST, text)


def _whole(text: str) -> int:
    return _within(int(text), _MOST_WHOLE, text)


def _within(value: _Number, most: float, text: str) -> _Number:
    """Return the number; not NaN, not infinite, and small enough to be reckoned with."""
    if not abs(value) <= most:
        raise ValueError(f"{text[:40]}{'…' * (len(text) > 40)} is beyond every number that can be measured")
    return value


def from_json(data: bytes) -> dict[str, Any]:
    """Return the object in `data`.

    Raises:
        ValueError, TypeError, RecursionError: not strict JSON in UTF-8, or not an object.
    """
    values = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_measurable, parse_int=_whole)
    if not isinstance(values, dict):
        raise TypeError("not an object")
    if b"\\u" in data:
        json.dumps(values, ensure_ascii=False).encode()  # half a surrogate pair is no text and cannot be written
    return values


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of the regular file `name` in `folder`.

    Raises:
        StoreError: there is none, or it is a link that leads out of the folder.
    """
    path = folder / name
    with as_store_errors(path):
        real = path.resolve()
        if not real.is_relative_to(folder.resolve()):
            raise StoreError(f"{path}: is a link that leads out of the folder")
        if not real.is_file():
            raise StoreError(f"{path}: there is no such file")
    return path


def regular(path: Path) -> Path:
    """Return the path of what can be read to its end: a regular file, or a link to one.

    Raises:
        StoreError: it is something else, such as a pipe or a device, or there is no such file.
    """
    with as_store_errors(path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(f"{path}: is neither a file nor a folder")
    return path


def read_limited(path: Path, limit_bytes: int) -> bytes:
    """Return what is in a file.

    Raises:
        StoreError: it is larger than `limit_bytes`, or cannot be read.
    """
    with as_store_errors(path):
        size = path.stat().st_size
        if size > limit_bytes:
            raise StoreError(f"{path}: {size:,} bytes, more than the {limit_bytes:,} that such a file can have")
        return path.read_bytes()
