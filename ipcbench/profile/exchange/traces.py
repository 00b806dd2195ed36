"""Communication calls from other tools, kineto, Chakra and PARAM, and to them: Chakra, Chrome and Perfetto."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ipcbench.errors import ConfigError, StoreError
from ipcbench.profile.comm.waits import matched, misfits
from ipcbench.profile.exchange.calls import Trace, numbered
from ipcbench.profile.exchange.chakra import read_chakra, to_chakra
from ipcbench.profile.exchange.kineto import read_kineto
from ipcbench.profile.exchange.param import read_param
from ipcbench.profile.files import as_json
from ipcbench.profile.files.timeline import chrome, perfetto
from ipcbench.profile.records import Call, Profile, odd_calls
from ipcbench.util.files import as_store_errors, nothing_new_if_it_fails, regular, write_bytes
from ipcbench.util.text import printable

IMPORTS: Mapping[str, Callable[[bytes], Trace]] = {
    "kineto": read_kineto, "chakra": read_chakra, "param": read_param,
}  # fmt: skip
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
    given = ([*path.glob("[!.]*.json"), *path.glob("[!.]*.json.gz")] if path.is_dir() else [path] for path in paths)
    files = [file for each in given for file in sorted(each) if file in paths or not file.is_dir()]
    calls: list[Call] = []
    unknown: Counter[str] = Counter()
    known: dict[int, Path] = {}
    remarks: dict[str, None] = {}
    for file in files:
        rank, own, remark = _read(file, form, len(files), unknown)
        remarks |= {remark: None} if remark else {}
        calls += own
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
    lines = [*([said] if said else []), *remarks, f"Imported from {form}: {len(files)} files{clock}."]
    if blind := sum(call.wait_ns is None for call in matched(calls) if call.exit_ns is not None):
        why = "others lack or have no times, they are asynchronous, or clocks differ"
        lines.append(f"Calls of which it is not known how long they waited: {blind:,}; {why}.")
    lines += [f"{count} calls of {name:.60} were left out." for name, count in unknown.items()]
    return Profile(None, calls=tuple(calls), remarks=tuple(lines), is_planned=is_planned)


def _read(file: Path, form: str, files_count: int, unknown: Counter[str]) -> tuple[int, list[Call], str]:
    """Return the rank of a file, its calls, and a remark on them; count those that are none of ours."""
    with as_store_errors(file):
        if not file.exists():
            raise StoreError(f"{file}: there is no such file")
        data = regular(file).read_bytes()
    try:
        if not data:
            raise ValueError("it is empty")
        trace = IMPORTS[form](gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        rank = _rank_of(file, files_count) if trace.rank is None else trace.rank
        calls = [*numbered(trace.calls, rank, unknown)]
        if odd := next(odd_calls(calls), ""):
            raise ValueError(odd)
    except _DAMAGED as error:
        raise StoreError(f"{file}: no trace of {form}: {printable(_why(error)):.300}") from error
    return rank, calls, trace.remark


def _rank_of(file: Path, files_count: int) -> int:
    """Return the rank that a file's name says; 0 of a single one."""
    numbers = re.findall(r"rank\D?(\d+)", file.name) or re.findall(r"\d+", file.name)
    if not numbers and files_count > 1:
        raise ValueError("neither it nor its name says a rank, as rank0.json does")
    return int((numbers or "0")[-1])


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


_DAMAGED: Final = (ValueError, EOFError, OSError, OverflowError, RecursionError, msgspec.MsgspecError, zlib.error)
"""What reading of any bytes may end with."""
_MOST_MISFITS = 3
"""Of a remark."""


def _why(error: BaseException) -> str:
    """Return in words why a trace cannot be read."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


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
        calls: dict[int, list[Call]] = {rank: [] for rank in profile.ranks}
        for call in profile.calls:
            calls[call.rank].append(call)
        files = {path / f"{rank}.json": as_json(to_chakra(own)) for rank, own in calls.items()}
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
