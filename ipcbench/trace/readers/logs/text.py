"""Reads text logs, rotated and compressed ones too, in bounded memory; each line goes to the parser of its format."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ipcbench.trace.readers.batch import Batch, Notes
from ipcbench.trace.readers.logs.tq_log import MARKER, TqLog
from ipcbench.trace.readers.logs.zmq_log import ZmqLog
from ipcbench.util.files import as_store_errors

_BLOCK_BYTES = 2**19
_LONGEST_LINE_BYTES = 2**16
_GZIP_MAGIC = b"\x1f\x8b"
_ROTATED = re.compile(r"(.*?)(?:\.(\d{1,9}))?(?:\.gz)?")


def read_log(paths: Sequence[Path], notes: Notes) -> Iterator[Batch]:
    """Yield the calls of one log; several paths are its parts, oldest first.

    Raises:
        StoreError: a part cannot be opened or read.
    """
    source = str(paths[-1])
    zmq, tq = ZmqLog(source, notes), TqLog(source, notes)
    for path in paths:
        count = 0
        for block in _blocks(path, notes):
            lines = block.decode("utf-8", "replace").split("\n")
            notes.lines_count += len(lines)
            marked = [line for line in lines if MARKER in line]
            if marked:
                yield from tq.feed(marked, len(lines))
                lines = ["" if MARKER in line else line for line in lines]
            if zmq.width or any("ID" in line or "ZeroMQ" in line for line in lines):
                yield from zmq.feed(enumerate(lines, count + 1))
            else:
                notes.foreign_count += len(lines) - len(marked)
            count += len(lines)
    yield from tq.feed([], None)


def _blocks(path: Path, notes: Notes) -> Iterator[bytes]:
    """Yield the lines of a file, some thousand at a time; a line of more than 64 KiB is damaged.

    A block does not end with a newline, and has no carriage returns before newlines.
    """
    rest, too_long = b"", False
    for index, piece in enumerate(_pieces(path, notes)):
        data = piece if index else piece.removeprefix(b"\xef\xbb\xbf")
        if too_long:
            _, newline, data = data.partition(b"\n")
            too_long = not newline
        whole, newline, rest = (rest + data).rpartition(b"\n")
        if newline:
            yield whole.replace(b"\r\n", b"\n").removesuffix(b"\r") if b"\r" in whole else whole
        if len(rest) > _LONGEST_LINE_BYTES:
            notes.damaged(str(path), f"a line of more than {_LONGEST_LINE_BYTES:,} bytes")
            rest, too_long = b"", True
    if rest:
        yield rest


def _pieces(path: Path, notes: Notes) -> Iterator[bytes]:
    """Yield the content of a file, decompressed if needed, at most a block at a time."""
    with as_store_errors(path), path.open("rb") as file:
        is_packed = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        read = gzip.GzipFile(fileobj=file).read1 if is_packed else file.read
        try:
            while piece := read(_BLOCK_BYTES):
                yield piece
        except EOFError:
            notes.damaged(str(path), "the compressed file breaks off")
        except (gzip.BadGzipFile, zlib.error) as error:
            notes.damaged(str(path), f"the compressed file is damaged: {error}")


def grouped(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the paths, the parts of one rotated log together, oldest first: `x.log.2.gz`, `x.log.1`, `x.log`."""
    groups: dict[str, list[tuple[int, Path]]] = {}
    for path in paths:
        match = _ROTATED.fullmatch(path.name)
        base, number = (match[1], int(match[2] or 0)) if match else (path.name, 0)
        groups.setdefault(str(path.parent / base), []).append((number, path))
    return [[path for _, path in sorted(group, key=lambda part: -part[0])] for group in groups.values()]
