"""How many bytes a second: copies in memory, messages both ways, and collective operations, over every transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final

import psutil

from ipcbench.backend import Launcher
from ipcbench.errors import IpcbenchError
from ipcbench.harness.group import Group
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.profile.comm.mesh import create_mesh, destroy_mesh
from ipcbench.profile.records import SweepPoint
from ipcbench.profile.run import INSTALL
from ipcbench.profile.sweep import moving
from ipcbench.profile.sweep.cases import Budget, Done, Say, measure
from ipcbench.profile.sweep.device import device_cases
from ipcbench.registry import get_backend
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
_MOVE_S = 600.0
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
    with ExitStack() as stack:
        movers: dict[str, Group | str] = {}
        for transport in ("memory", *transports):
            if transport == "gloo" and find_spec("torch") is None:
                movers[transport] = f"needs torch: {INSTALL}"
                continue
            try:
                movers[transport] = stack.enter_context(_movers(transport, 1 if transport == "memory" else ranks))
            except IpcbenchError as error:
                movers[transport] = str(error)
        for size_bytes in sizes:
            for transport in [*movers]:
                for what, direction in OPERATIONS if transport != "memory" else (("memcpy", "one way"),):
                    world = 1 if what == "memcpy" else 2 if what == "send" else ranks
                    point = SweepPoint("bandwidth", _values(transport, world, what, direction, size_bytes))
                    points.append(_case(movers[transport], point, budget))
                    if points[-1].status == "failed":  # its processes may hang
                        movers[transport] = points[-1].reason
                    say(f"{transport} {what} {direction}, {format_bytes(size_bytes)}: {points[-1].status}")
                    done(points)
    return points


def bus_ratio(what: str, ranks: int) -> float:
    """Return bytes on a link by bytes of the message, as NCCL counts."""
    if what == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if what in {"all_gather", "reduce_scatter", "all_to_all"} else 1.0


def _values(transport: str, ranks: int, what: str, direction: str, size_bytes: int) -> dict[str, str | int]:
    return {"what": what, "transport": transport, "ranks": ranks, "direction": direction, "bytes": size_bytes}


@contextmanager
def _movers(transport: str, world: int) -> Iterator[Group]:
    """Start processes that are joined over a transport."""
    with RunDir() as run_dir, Switchboard(run_dir.path) as switchboard, ExitStack() as undo:
        launcher: Launcher = "spawn"
        addresses: list[dict[str, Any]] = []
        if transport not in {"memory", "gloo"}:
            launcher = get_backend(transport).capabilities.launcher
            addresses = create_mesh(transport, world, name=run_dir.channel_name)
            undo.callback(destroy_mesh, addresses)
        names = tuple(f"rank {index} of {transport}" for index in range(world))
        group = Group(launcher, world - 1, switchboard, roles=names)
        undo.callback(group.kill)
        place = f"file://{run_dir.path}/meeting"
        group.connect().ask_all(_call("join", world=world, addresses=addresses, place=place), _MOVE_S)
        yield group


def _call(function: str, **more: Any) -> dict[str, Any]:
    return {"do": "call", "function": f"{moving.__name__}:{function}", **more}


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
    question = _call("move", **{name: values[name] for name in ("what", "direction", "bytes")})

    def times_ns(rounds: int, count: int) -> list[float]:
        answers = group.ask_all({**question, "rounds": rounds, "count": count}, _MOVE_S).values()
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
