"""From paths to totals: finds the files, recognises them by content, reads each once."""

from __future__ import annotations

import gc
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ipcbench.errors import StoreError
from ipcbench.trace.format import (
    HISTOGRAMS_MAGIC,
    HISTOGRAMS_SUFFIX,
    PROCESSES_FILE,
    SEGMENT_MAGIC,
    SEGMENT_SUFFIX,
)
from ipcbench.trace.readers.batch import LOSING, Notes
from ipcbench.trace.readers.join import Servers, find_servers
from ipcbench.trace.readers.logs.text import grouped, read_log
from ipcbench.trace.readers.logs.zmq_log import HEADLESS
from ipcbench.trace.readers.own import read_histograms, read_segment
from ipcbench.trace.readers.processes import read_processes
from ipcbench.trace.report.paths import PathSums
from ipcbench.trace.report.totals import TrafficTotals
from ipcbench.util.files import as_store_errors, regular

_OWN_SUFFIXES = (SEGMENT_SUFFIX, HISTOGRAMS_SUFFIX)
_NUMBERED = re.compile(rf"[th]-(.+)-(\d{{1,9}})(?:{re.escape(SEGMENT_SUFFIX)}|{re.escape(HISTOGRAMS_SUFFIX)})")


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything that was read."""

    paths: tuple[Path, ...]
    sums: TrafficTotals
    notes: Notes
    flows: PathSums


def gather(paths: Sequence[Path]) -> Gathered:
    """Read traces and logs: files, or folders with files of a trace or logs. Each is recognised by its content.

    Raises:
        StoreError: a path does not exist or cannot be read, or none of them holds a call.
    """
    _require_different(paths)
    sums, notes, flows = TrafficTotals(), Notes(), PathSums()
    texts: list[Path] = []
    named: list[Path] = []
    in_folders: list[Path] = []
    for path in paths:
        with as_store_errors(path):
            if path.is_dir():
                read_processes(path, notes)
                in_folders += _in_folder(path, texts)
            else:
                with regular(path).open("rb") as file:
                    magic = file.read(8)
                (named if magic in {SEGMENT_MAGIC, HISTOGRAMS_MAGIC} else texts).append(path)
    servers = find_servers([path for path in (*named, *in_folders) if _is_segment(path)], notes)
    for path in named:
        _read_own(path, servers, sums, notes, flows)
    for path in in_folders:
        try:
            _read_own(path, servers, sums, notes, flows)
        except StoreError as error:
            notes.damaged(path.name, str(error).removeprefix(f"{path}: "))
    _note_missing(in_folders, notes)
    with _garbage_collector_off():
        for parts in grouped(texts):
            for batch in read_log(parts, notes):
                sums.add(batch)
                flows.add(batch)
    if not sums.groups:
        raise no_calls(paths, notes)
    return Gathered(tuple(paths), sums, notes, flows)


def _require_different(paths: Sequence[Path]) -> None:
    known: set[str] = set()
    for path in paths:
        if (real := os.path.realpath(path)) in known:
            raise StoreError(f"{path} is given twice, and its calls would count twice; give it once")
        known.add(real)


def no_calls(paths: Sequence[Path], notes: Notes) -> StoreError:
    """Return the error that says that no call was found, and what else was."""
    what = ", ".join(str(path) for path in paths)
    if notes.processes_count or notes.unseen:
        unseen = f"; not seen: {notes.unseen_names}" if notes.unseen else ""
        lost = f"; {LOSING}: {notes.counts[LOSING]}" if notes.counts[LOSING] else ""
        return StoreError(
            f"{what}: no calls found; {notes.processes_count} Python processes were watched, and no call of theirs is "
            f"one that is recorded and was chosen (`--only`, `--exclude`){lost}{unseen}"
        )
    empty_count = notes.counts["files never begun"] + sum((path / PROCESSES_FILE).is_file() for path in paths)
    if empty_count:
        return StoreError(
            f"{what}: no calls found, but {empty_count} files that were made and never written: the disk may have been "
            f"full; record again where there is room"
        )
    headless = f", {HEADLESS}: {notes.counts[HEADLESS]:,}" if notes.counts[HEADLESS] else ""
    return StoreError(
        f"{what}: no calls found ({notes.lines_count:,} lines, {notes.damaged_count:,} of them damaged{headless}); "
        f"known are folders with {SEGMENT_SUFFIX} files, zmq_performance.log and [TQ-…] lines"
    )


@contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """Suspend the garbage collector: lines make many objects and no cycle; it would take a seventh of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _in_folder(folder: Path, texts: list[Path]) -> list[Path]:
    """Return the trace files in a folder; if there are none, add its logs to `texts`."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    own = [path for path in files if path.suffix in _OWN_SUFFIXES]
    if not own:
        texts += [path for path in files if ".log" in path.name]
    return own


def _note_missing(files: Sequence[Path], notes: Notes) -> None:
    """Count as damaged the files that are not there: holes in the numbers of a thread's files, which begin with 0, and
    its histograms, if its records tell of calls without one.
    """
    of_thread: dict[Path, list[tuple[int, Path]]] = {}
    for path in files:
        if match := _NUMBERED.fullmatch(path.name):
            of_thread.setdefault(path.with_name(match[1]), []).append((int(match[2]), path))
    for thread, numbered in of_thread.items():
        numbers = sorted({number for number, _ in numbered})
        for before, after in itertools.pairwise([-1, *numbers]):
            if after > before + 1:
                last = f" to {after - 1}" if after > before + 2 else ""
                notes.damaged(
                    f"?-{thread.name}-{before + 1}{last}", "missing; removed, or there was no room to make it"
                )
        if any(notes.left_out[path] for _, path in numbered) and all(
            path.suffix != HISTOGRAMS_SUFFIX for _, path in numbered
        ):
            notes.damaged(f"h-{thread.name}-?{HISTOGRAMS_SUFFIX}", "missing, with the calls that have no record")


def _is_segment(path: Path) -> bool:
    with as_store_errors(path), path.open("rb") as file:
        return file.read(8) == SEGMENT_MAGIC


def _read_own(path: Path, servers: Servers, sums: TrafficTotals, notes: Notes, flows: PathSums) -> None:
    if path.suffix == HISTOGRAMS_SUFFIX or (path.suffix != SEGMENT_SUFFIX and not _is_segment(path)):
        for bulk in read_histograms(path, notes):
            sums.add_bulk(bulk)
    else:
        for batch in read_segment(path, notes):
            sums.add(servers.join(batch))
            flows.add(batch)
