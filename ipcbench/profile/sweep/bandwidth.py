"""How many bytes a second: copies in memory, messages both ways, and collective operations, over every transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

import psutil

from ipcbench.errors import IpcbenchError
from ipcbench.harness.group import Group
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.profile.comm.replay import Say
from ipcbench.profile.comm.waits import bus_ratio
from ipcbench.profile.comm.workers import ANSWER_S, question, workers
from ipcbench.profile.records import SweepPoint
from ipcbench.profile.run import INSTALL
from ipcbench.profile.sweep import moving
from ipcbench.profile.sweep.cases import Budget, Done, measure
from ipcbench.profile.sweep.device import device_cases
from ipcbench.util.units import format_bytes

SIZES: Final = tuple(2**power for power in (20, 22, 24, 26, 28, 30, 31))
OPERATIONS: Final = (
    ("send", "one way"),
    ("send", "both ways"),
    ("all_reduce", "both ways"),
    ("all_gather", "both ways"),
    ("reduce_scatter", "both ways"),
    ("broadcast", "one way"),
)
ROUNDS: Final = 5

_BUFFERS = 5
"""Of a message's size, at each process: its own, what comes in, and copies on the way."""
_ROUND_NS = 10_000_000
"""A round repeats a quick move until about this much has passed."""


def sweep_bandwidth(
    transports: Sequence[str],
    sizes: Sequence[int] = SIZES,
    ranks: int = 2,
    budget: Budget | None = None,
    done: Done = lambda _: None,
    say: Say = lambda _: None,
) -> list[SweepPoint]:
    """Measure every operation over every transport, small sizes first; a case that does not fit has a reason instead.
    What GPUs move comes before all.

    Args:
        transports: `gloo` and backends' names.
        sizes: of messages, bytes, as NCCL counts; multiples of 4 · `ranks`.
        ranks: processes of a collective operation; of `send` there are always two.
        budget: of time; without, there is no limit.
        done: called with all cases so far after each.
        say: called with a line for each case.
    """
    budget, points = budget or Budget(None), []
    for point in device_cases(sizes, budget):
        points.append(point)
        say(f"{point.values['what']}: {point.status}")
        done(points)
    with RunDir() as run_dir, Switchboard(run_dir.path) as switchboard, ExitStack() as stack:
        movers: dict[str, Group | str] = {}
        for transport in ("memory", *transports):
            world = 1 if transport == "memory" else ranks
            try:
                movers[transport] = stack.enter_context(_movers(run_dir, switchboard, transport, world))
            except IpcbenchError as error:
                movers[transport] = str(error)
        for size_bytes in sizes:
            for transport in [*movers]:
                for what, direction in OPERATIONS if transport != "memory" else (("memcpy", "one way"),):
                    world = 1 if what == "memcpy" else 2 if what == "send" else ranks
                    values: dict[str, str | int] = {"what": what, "transport": transport, "ranks": world}
                    point = SweepPoint("bandwidth", values | {"direction": direction, "bytes": size_bytes})
                    points.append(_case(movers[transport], point, budget))
                    if points[-1].status == "failed":  # its processes may hang
                        movers[transport] = points[-1].reason
                    say(f"{transport} {what} {direction}, {format_bytes(size_bytes)}: {points[-1].status}")
                    done(points)
    return points


@contextmanager
def _movers(run_dir: RunDir, switchboard: Switchboard, transport: str, world: int) -> Iterator[Group]:
    """Start processes that are joined over a transport."""
    if transport == "gloo" and find_spec("torch") is None:
        raise IpcbenchError(f"needs torch: {INSTALL}")
    backend = "" if transport in {"memory", "gloo"} else transport
    with workers(run_dir, switchboard, world, backend, role=f"{transport}, rank") as (group, meeting):
        group.ask_all(question(moving.join, world=world, **meeting), ANSWER_S)
        yield group


def _case(group: Group | str, point: SweepPoint, budget: Budget) -> SweepPoint:
    """Measure one case; a text in place of the processes is why there are none."""
    size_bytes, ranks = int(point.values["bytes"]), int(point.values["ranks"])
    if isinstance(group, str):
        return replace(point, status="unavailable" if group.startswith("needs ") else "failed", reason=group)
    needed_bytes, free_bytes = _BUFFERS * ranks * size_bytes, psutil.virtual_memory().available
    if needed_bytes > free_bytes // 2:
        reason = f"it needs {format_bytes(2 * needed_bytes)} of free memory; there are {free_bytes / 2**30:.1f} GiB"
        return replace(point, status="not measured", reason=reason)
    kind = f"{point.values['transport']} {point.values['what']} {point.values['direction']}"
    return measure(point, kind, size_bytes, budget, lambda: _rounds(group, point))


def _rounds(group: Group, point: SweepPoint) -> Mapping[str, Sequence[float]]:
    """Return the time of a move, and the bytes per second, of each round."""
    values = point.values
    size_bytes = int(values["bytes"])
    asked = question(moving.move, **{name: values[name] for name in ("what", "direction", "bytes")})

    def times_ns(rounds: int, count: int) -> list[float]:
        answers = group.ask_all({**asked, "rounds": rounds, "count": count}, ANSWER_S).values()
        ends = [max(each) for each in zip(*(answer["exit_ns"] for answer in answers), strict=True)]
        begins = [max(each) for each in zip(*(answer["enter_ns"] for answer in answers), strict=True)]
        return [max(1.0, (end - begin) / count) for begin, end in zip(begins, ends, strict=True)]

    (pilot_ns,) = times_ns(1, 1)
    taken_ns = times_ns(ROUNDS, max(1, round(_ROUND_NS / pilot_ns)))
    moved_bytes = size_bytes * (2 if values["what"] == "send" and values["direction"] == "both ways" else 1)
    rates = [1e9 * moved_bytes / time_ns for time_ns in taken_ns]
    found = {"time_ns": taken_ns, "bytes_per_s": rates}
    if values["what"] not in {"memcpy", "send"}:
        found["bus_bytes_per_s"] = [rate * bus_ratio(str(values["what"]), int(values["ranks"])) for rate in rates]
    return found
