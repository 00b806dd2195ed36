"""Reads text logs, rotated and compressed ones too, in bounded memory; each line goes to the parser of its format."""

from __future__ import annotations

import gzip
import io
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ipcbench.trace.readers.batch import Batch, Notes
from ipcbench.trace.readers.logs.tq_log import MARKER, TqLog
from ipcbench.trace.readers.logs.zmq_log import ZmqLog
from ipcbench.util.files import as_store_errors

_BLOCK_LINES = 2048
_LONGEST_LINE = 2**16  # characters
_GZIP_MAGIC = b"\x1f\x8b"
_ROTATED = re.compile(
    r"(.*?)(?:[.-](?P<date>(?:19|20)\d\d(-?)[01]\d\3[0-3]\d(?:_?\d\d(?:-?\d\d){0,2})?)|[.-](?P<epoch>1\d{9})"
    r"|\.(?P<number>\d{1,9}))?(?:\.gz)?"
)
"""A part is named by its number, or by a date, in one of the forms of Python's handlers and of logrotate."""


def read_log(paths: Sequence[Path], notes: Notes) -> Iterator[Batch]:
    """Yield the calls of one log; several paths are its parts, oldest first.

    Raises:
        StoreError: a part cannot be opened or read.
    """
    source = str(paths[-1])
    zmq, tq = ZmqLog(source, notes), TqLog(source, notes)
    for path in paths:
        count, unread = 0, _lines(path, notes)
        while lines := list(islice(unread, _BLOCK_LINES)):
            notes.lines_count += len(lines)
            marked = [line for line in lines if MARKER in line]
            if marked:
                yield from tq.feed(marked)
                lines = ["" if MARKER in line else line for line in lines]
            if zmq.width or any("ID" in line or "ZeroMQ" in line for line in lines):
                yield from zmq.feed(enumerate(lines, count + 1))
            else:
                notes.foreign_count += len(lines) - len(marked)
                zmq.count_headless(lines)
            count += len(lines)
    yield from tq.feed([], is_end=True)


def _lines(path: Path, notes: Notes) -> Iterator[str]:
    """Yield the lines of a file, decompressed if needed, without their ends; a line of 64 Ki characters is damaged."""
    with as_store_errors(path), path.open("rb") as file:
        content = gzip.GzipFile(fileobj=file) if file.peek(2).startswith(_GZIP_MAGIC) else file
        text = io.TextIOWrapper(content, "utf-8-sig", "replace", newline="\n")
        try:
            while line := text.readline(_LONGEST_LINE):
                if is_too_long := len(line) == _LONGEST_LINE:
                    notes.damaged(str(path), f"a line of more than {_LONGEST_LINE:,} characters")
                while len(line) == _LONGEST_LINE and line[-1] != "\n":
                    line = text.readline(_LONGEST_LINE)
                yield "" if is_too_long else line.rstrip("\r\n")
        except EOFError:
            notes.damaged(str(path), "the compressed file breaks off")
        except (gzip.BadGzipFile, zlib.error) as error:
            notes.damaged(str(path), f"the compressed file is damaged: {error}")


def grouped(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the paths, the parts of one rotated log together, oldest first: `x.log.2.gz`, `x.log.1`, `x.log`, or
    `x.log.2026-01-01`, `x.log-20260102.gz`, `x.log`.
    """
    groups: dict[Path, list[tuple[tuple[bool, str, int], Path]]] = {}
    for path in paths:
        base, moment = _part(path.name)
        groups.setdefault(path.parent / base, []).append((moment, path))
    return [[path for _, path in sorted(group, key=lambda part: part[0])] for group in groups.values()]


def _part(name: str) -> tuple[str, tuple[bool, str, int]]:
    """Return the name of the log that a part belongs to, and what puts the part into the order of the others."""
    match = _ROTATED.fullmatch(name)
    if match is None:  # a name with an end of a line
        return name, (True, "", 0)
    number, epoch = int(match["number"] or 0), match["epoch"]
    date = time.strftime("%Y%m%d%H%M%S", time.localtime(int(epoch))) if epoch else match["date"] or ""
    return match[1], (not (number or date), re.sub(r"\D", "", date), -number)
