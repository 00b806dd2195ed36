"""What GPUs move: between host and device, within one, to another process on it, and to another GPU.

Times are those of CUDA events on the device. A copy within a device reads and writes each byte, and both count, as in
CUDA's own samples; a message to another process, host or device counts once. Small copies show how quickly copies
can be started, and copies that fit into the L2 cache how quick that is: a share of the memory's peak is given for
larger ones alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any, Final

import psutil

from ipcbench.errors import IpcbenchError
from ipcbench.harness.group import Group
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.profile.comm.workers import ANSWER_S, question, workers
from ipcbench.profile.records import SweepPoint
from ipcbench.profile.sweep import copies
from ipcbench.profile.sweep.cases import Budget, measure
from ipcbench.profile.sweep.copies import PEER, driver
from ipcbench.util.units import format_bytes

WITHIN, IPC, NVLINK = "device to device", "CUDA IPC", "NVLink"
_HOST = ("host to device, pinned", "host to device, pageable", "device to host, pinned", "device to host, pageable")
_ONE = (*_HOST, WITHIN, IPC)
CASES: Final = {
    **dict.fromkeys(_ONE, "a GPU with CUDA, and torch for it"),
    PEER: "2 GPUs",
    NVLINK: "2 GPUs with NVLink",
}
"""What is measured → what it needs."""
EARLIER_GOOD_BYTES_PER_S: Final = {WITHIN: 1_500_000_000_000, PEER: 200_000_000_000}
"""From where on an earlier system called a device good, whichever it was; peer to peer was poor below half of that."""

_BUFFERS = 4
"""Of a message's size, on a device: what is sent, what comes, and what it is compared with."""
_ROLE = "process for the GPU"
"""CUDA cannot be used in forks of a process that has used it; what it shares is given back as they end."""
_CACHES = 4
"""A copy of at least so many times the L2 cache is one of the memory."""


def device_cases(sizes: Sequence[int], budget: Budget) -> Iterator[SweepPoint]:
    """Yield what GPUs move, small sizes first; without any, what each case needs.

    Args:
        sizes: of copies, bytes; multiples of 4.
        budget: of time.
    """
    if find_spec("torch") is None or driver() is None:  # torch itself need not be imported to know
        yield from (_unavailable(what) for what in CASES)
        return
    try:
        with (
            RunDir() as run_dir,
            Switchboard(run_dir.path) as board,
            workers(run_dir, board, 2, role=_ROLE) as (group, _),
        ):
            gpus = group.ask_one(0, question(copies.describe), ANSWER_S)["gpus"]
            link = gpus[0]["link"] if gpus else ""
            able = {**dict.fromkeys(_ONE, bool(gpus)), PEER: len(gpus) > 1, NVLINK: link.startswith("NV")}
            yield from (_unavailable(what) for what in CASES if not able[what])
            failed: dict[str, SweepPoint] = {}
            for size_bytes, what in product(sizes, (*_ONE, PEER)):  # that goes over NVLink if there is one
                if able[what]:
                    point = _point(what, size_bytes, gpus[0])
                    if what in failed:  # a larger one would, too
                        yield replace(failed[what], values=point.values)
                        continue
                    yield (made := _case(group, point, gpus[0], budget))
                    if made.status == "failed":
                        failed[what] = made
    except IpcbenchError as error:  # no process could be started, or it did not end
        yield replace(_unavailable("GPUs"), status="failed", reason=str(error))


def _point(what: str, size_bytes: int, gpu: Mapping[str, Any]) -> SweepPoint:
    values: dict[str, str | int] = {"what": what, "transport": "cuda", "bytes": size_bytes, "device": gpu["name"]}
    if what in EARLIER_GOOD_BYTES_PER_S:
        values["earlier_good_bytes_per_s"] = EARLIER_GOOD_BYTES_PER_S[what]
        if peak := gpu["peak_bytes_per_s" if what == WITHIN else "link_bytes_per_s"]:
            values["peak_bytes_per_s"] = peak
    return SweepPoint("bandwidth", values | ({"link": gpu["link"]} if what == PEER else {}))


def _case(group: Group, point: SweepPoint, gpu: Mapping[str, Any], budget: Budget) -> SweepPoint:
    size_bytes = int(point.values["bytes"])
    if _BUFFERS * size_bytes > min(gpu["free_bytes"], psutil.virtual_memory().available):
        reason = f"it needs {format_bytes(_BUFFERS * size_bytes)} of free memory, of the GPU and of the host"
        return replace(point, status="not measured", reason=reason)
    return measure(point, f"cuda {point.values['what']}", size_bytes, budget, partial(_figures, group, point, gpu))


def _figures(group: Group, point: SweepPoint, gpu: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """Return the figures of a case in each round."""
    what, size_bytes = str(point.values["what"]), int(point.values["bytes"])
    if what == IPC:
        shared = group.ask_one(0, question(copies.share, bytes=size_bytes), ANSWER_S)["storage"]
        made = group.ask_one(1, question(copies.take, storage=shared), ANSWER_S)
        group.ask_one(0, question(copies.release), ANSWER_S)
    else:
        made = group.ask_one(
            0, question(copies.copy, what=what, bytes=size_bytes, devices=["cuda:0", "cuda:1"]), ANSWER_S
        )
    moved_bytes = size_bytes * (2 if what == WITHIN else 1)
    figures = {"time_ns": made["times_ns"], "bytes_per_s": [1e9 * moved_bytes / each for each in made["times_ns"]]}
    if "open_ns" in made:
        figures["open_ns"] = [made["open_ns"]]
    if (peak := int(point.values.get("peak_bytes_per_s", 0))) and size_bytes >= _CACHES * gpu["l2_bytes"]:
        figures["peak_ratio"] = [rate / peak for rate in figures["bytes_per_s"]]
    return figures


def _unavailable(what: str) -> SweepPoint:
    reason = f"needs {CASES.get(what, 'a GPU')}"
    return SweepPoint("bandwidth", {"what": what, "transport": "cuda"}, status="unavailable", reason=reason)
