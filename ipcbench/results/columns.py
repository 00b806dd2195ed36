"""Columns of int64 in a compressed .npz file: written as NumPy does, read without trusting the declared sizes."""

from __future__ import annotations

import re
import zipfile
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from ipcbench.errors import StoreError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Column: TypeAlias = "array[int] | npt.NDArray[np.int64]"

_NAME = re.compile(r"[a-z0-9_.-]{1,100}")
_SUFFIX = ".npy"
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<i8', 'fortran_order': False, 'shape': \((\d{1,12}),\), \} *\n", re.DOTALL
)
"""As `numpy.lib.format.write_array` writes it; its own reader takes 0.2 ms a column, and a run has some thousand."""
_MAX_FILE_BYTES = 2**30
_MAX_COLUMNS = 10_000
_MAX_COLUMN_BYTES = 2**24
"""Columns are thinned to some ten thousand values."""
_LEVEL = 1
"""Of compression: level 6 takes three times as long, for files that are one percent smaller."""


def write_columns(file: IO[bytes], columns: Mapping[str, Column]) -> None:
    """Write columns of integers, each of shape (n,), as an .npz file that `numpy.load` can read.

    Raises:
        StoreError: a column is something else, or its name has other characters than a-z, 0-9, `_`, `.` and `-`.
    """
    import numpy as np

    arrays = {}
    for name, column in columns.items():
        values = np.asarray(column)
        if not _NAME.fullmatch(name) or values.ndim != 1 or values.dtype.kind != "i":
            raise StoreError(f"samples {name!r}: {values.dtype} of shape {values.shape} is not a column of integers")
        arrays[name] = values.astype("<i8")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}{_SUFFIX}", "w") as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def read_columns(path: Path, endings: tuple[str, ...] = ("",)) -> dict[str, npt.NDArray[np.int64]]:
    """Read what `write_columns` wrote.

    Args:
        path: the file.
        endings: only columns whose names end with one of these are unpacked.

    Raises:
        StoreError: the file is damaged, of another format, or absurdly large once unpacked; declared sizes are checked
            before memory is allocated.
        OSError: it cannot be opened.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_archive(archive, endings)
    except (ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise StoreError(f"{path}: not a file of samples: {' '.join(str(error).split())}") from error


def _read_archive(archive: zipfile.ZipFile, endings: tuple[str, ...]) -> dict[str, npt.NDArray[np.int64]]:
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    longest = max((member.file_size for member in members), default=0)
    if total > _MAX_FILE_BYTES or len(members) > _MAX_COLUMNS or longest > _MAX_COLUMN_BYTES:
        raise ValueError(f"{len(members):,} columns of {total:,} bytes, more than samples can have")
    by_name = {member.filename.removesuffix(_SUFFIX): member for member in members}
    return {name: _column(archive.read(member)) for name, member in by_name.items() if name.endswith(endings)}


def _column(data: bytes) -> npt.NDArray[np.int64]:
    import numpy as np

    header = _HEADER.match(data)
    if header is None or int(header[1]) * 8 != len(data) - header.end():
        raise ValueError("a column is not of 64-bit integers, or not of the length that it declares")
    return np.frombuffer(data, dtype="<i8", offset=header.end()).astype(np.int64)
