"""Calls of a profile, recorded or planned, sent again over any transport: real processes carry them out in the order of
each rank, with as much work in between as took place there. Transports take turns, in fresh processes.

Beside what that took stands what a table predicts: α + β·bytes of each operation, measured alone in the same turn, put
together along the order in which ranks wait for one another. Where the two differ, the transport behaves otherwise
between work than alone.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from ipcbench.errors import ConfigError, IpcbenchError, TrialError
from ipcbench.harness.group import Group
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.profile.comm import player
from ipcbench.profile.comm.mesh import create_mesh, destroy_mesh
from ipcbench.profile.comm.waits import extent_ns
from ipcbench.profile.records import Call, Profile
from ipcbench.registry import get_backend, status
from ipcbench.replay.latency_table import LatencyTable
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval

_TURN_S = 600.0
_LADDER: Final = (1024, 2**16, 2**20)
"""Sizes of the table between a kind's smallest and largest."""

Say: TypeAlias = Callable[[str], None]
_Row: TypeAlias = tuple[str, tuple[int, ...], int, int]
"""Operation, ranks, bytes, ns of work before it."""
_Kind: TypeAlias = tuple[str, tuple[int, ...]]
_Program: TypeAlias = list[tuple[list[_Row], int]]
"""Of one rank: the calls of each step, and ns of work after the last."""


@dataclass(slots=True)
class OverTransport:
    """What one transport did; a list has one entry per round.

    Attributes:
        walls_ns: all steps, each from the first rank's begin to the last one's end.
        predicted_ns: the same by the table.
        failure: why there is nothing more.
    """

    walls_ns: list[float] = field(default_factory=list)
    predicted_ns: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def measured(self) -> Interval | None:
        """Return the median with its 95 % interval; None after fewer rounds than a claim needs."""
        return _interval(self.walls_ns)

    @property
    def predicted(self) -> Interval | None:
        """Return the table's prediction likewise."""
        return _interval(self.predicted_ns)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Results by transport.

    Attributes:
        recorded_ns: the same steps as they were recorded; None for a plan, and for calls whose steps are not known.
        steps_count: how many steps were replayed.
        left_out: transport → why it cannot run here.
    """

    transports: Mapping[str, OverTransport]
    recorded_ns: float | None
    steps_count: int
    left_out: Mapping[str, str]

    @property
    def is_claim(self) -> bool:
        """Return whether there were enough rounds to say anything of what differs."""
        return all(len(each.walls_ns) >= MIN_CLAIM_ROUNDS for each in self.transports.values() if not each.failure)


def replay(
    profile: Profile, transports: Sequence[str], budget_s: float = 60.0, rounds: int = 5, say: Say = lambda _: None
) -> Replayed:
    """Replay a profile's calls.

    Args:
        profile: with calls of all ranks.
        transports: backends between processes.
        budget_s: no further round begins if it would probably end after this; the first always runs.
        rounds: how often each transport has a turn.
        say: called with a line after every turn, and for what is left out.

    Raises:
        ConfigError: the profile has no calls, or a transport lives in one process.
        UnknownBackend: there is no such transport.
        TrialError: all transports failed, or none can run here.
    """
    programs, recorded_ns = _programs(profile, budget_s / (4 * rounds * max(1, len(transports))))
    found = {name: status(name) for name in dict.fromkeys(transports)}
    for name in found:
        if get_backend(name).capabilities.launcher == "inline":
            raise ConfigError("transport", name, "a transport between processes")
    done = {name: OverTransport() for name, each in found.items() if each.available}
    left_out = {name: f"{each.reason}; {each.hint}" for name, each in found.items() if not each.available}
    began_s = time.monotonic()
    with RunDir() as run_dir, Switchboard(run_dir.path) as switchboard:
        for index in range(rounds):
            if index and (time.monotonic() - began_s) * (index + 1) / index > budget_s:
                say(f"the budget is spent after {index} of {rounds} rounds")
                break
            names = [name for name, each in done.items() if not each.failure]
            random.Random(index).shuffle(names)  # noqa: S311 - an order, not a secret
            for name in names:
                try:
                    wall_ns, predicted_ns = _turn(name, programs, run_dir, switchboard)
                except IpcbenchError as error:
                    done[name].failure = str(error)
                    say(f"warning: {name} failed: {error}")
                    continue
                done[name].walls_ns.append(wall_ns)
                done[name].predicted_ns.append(predicted_ns)
                say(f"round {index + 1}/{rounds}  {name}  {wall_ns / 1e6:.3f} ms")
    if not any(each.walls_ns for each in done.values()):
        failures = {name: each.failure for name, each in done.items()} | left_out
        raise TrialError("; ".join(f"{name}: {why}" for name, why in failures.items()) or "no transport was named")
    return Replayed(done, recorded_ns, len(programs[0]), left_out)


def _programs(profile: Profile, share_s: float) -> tuple[list[_Program], float | None]:
    """Return the program of each rank, and how long it took; of recorded steps, as many as take `share_s`."""
    calls: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for call in sorted(profile.calls, key=lambda call: call.sequence):
        calls[call.rank, call.step].append(call)
    steps = {(step.rank, step.number): step for step in profile.steps}
    world = 1 + max((max(call.rank, *call.ranks) for call in profile.calls), default=0)
    numbers = sorted({number for _, number in calls})
    if world < 2:
        raise ConfigError("profile", f"{world} rank", "one with calls between ranks")
    _require_members(profile.calls, world)
    walls_ns = []
    for number in numbers:
        whole = [steps[rank, number] for rank in range(world) if (rank, number) in steps]
        if len(whole) < world:
            break
        walls_ns.append(extent_ns(whole))
    if len(walls_ns) == len(numbers):
        count = max(1, int(np.searchsorted(np.cumsum(walls_ns), 1e9 * share_s)))
        numbers, walls_ns = numbers[:count], walls_ns[:count]
    programs: list[_Program] = []
    for rank in range(world):
        program: _Program = []
        for number in numbers:
            own = calls[rank, number]
            step, last_ns = steps.get((rank, number)), max((call.exit_ns or 0 for call in own), default=0)
            rest = step.start_ns + step.wall_ns - last_ns if step and last_ns else 0
            program.append(([(call.op, call.ranks, call.bytes, call.gap_ns or 0) for call in own], max(rest, 0)))
        programs.append(program)
    return programs, float(sum(walls_ns)) if len(walls_ns) == len(numbers) else None


def _require_members(calls: Sequence[Call], world: int) -> None:
    """Raise ConfigError unless all members of each operation take part in it."""
    counts: dict[tuple[int, str, tuple[int, ...]], list[int]] = defaultdict(lambda: [0] * world)
    for call in calls:
        counts[call.step, "send" if call.op == "recv" else call.op, call.ranks][call.rank] += 1
    for (step, op, ranks), each in counts.items():
        if not ranks:
            raise ConfigError("profile", op, "operations whose ranks are known")
        if len(found := {each[rank] for rank in ranks}) > 1:
            missing = min(ranks, key=lambda rank: each[rank])
            said = f"rank {missing} lacks {max(found) - min(found)} {op} with ranks {', '.join(map(str, ranks))}"
            raise ConfigError("profile", f"{said} in step {step}", "one with the calls of all ranks")


def _turn(name: str, programs: list[_Program], run_dir: RunDir, switchboard: Switchboard) -> tuple[float, float]:
    """Replay once over a transport, in fresh processes; return what it took, and what the table predicts."""
    rows = [row for program in programs for calls, _ in program for row in calls]
    asked = _ladder(rows)
    world, largest = len(programs), max(size for _, _, size, _ in rows)
    with ExitStack() as undo:
        addresses = create_mesh(name, world, largest, run_dir.channel_name)
        undo.callback(destroy_mesh, addresses)
        roles = tuple(f"rank {rank}" for rank in range(world))
        group = Group(get_backend(name).capabilities.launcher, world - 1, switchboard, roles)
        undo.callback(group.kill)
        group.connect().ask_all(_call("join", addresses=addresses, largest_bytes=largest), _TURN_S)
        group.ask_all(_call("play", programs=[program[:1] for program in programs]), _TURN_S)  # a warm-up
        answers = group.ask_all(_call("play", programs=programs), _TURN_S)
        alone = group.ask_all(_call("measure", calls=asked), _TURN_S)
        group.ask_all({"do": "close"}, _TURN_S)
        group.end()
    steps = zip(*(answers[rank]["times_ns"] for rank in range(world)), strict=True)
    wall_ns = sum(max(end for _, end in step) - min(begin for begin, _ in step) for step in steps)
    times: dict[_Kind, dict[int, float]] = defaultdict(dict)
    for place, (op, ranks, size) in enumerate(asked):
        known = [answers["times_ns"][place] for answers in alone.values()]
        times[op, ranks][size] = max(each for each in known if each is not None)
    tables = {kind: LatencyTable(tuple(each), tuple(each.values())) for kind, each in times.items()}
    predicted = sum(_predict([program[place] for program in programs], tables) for place in range(len(programs[0])))
    return float(wall_ns), predicted


def _call(function: str, **more: Any) -> dict[str, Any]:
    return {"do": "call", "function": f"{player.__name__}:{function}", **more}


def _ladder(rows: Sequence[_Row]) -> list[tuple[str, tuple[int, ...], int]]:
    """Return which calls are timed alone: of each kind the smallest, the largest, and sizes between."""
    sizes: dict[_Kind, set[int]] = defaultdict(set)
    for op, ranks, size, _ in rows:
        if op != "recv":
            sizes[op, ranks].add(size)
    return [
        (*kind, size)
        for kind, own in sorted(sizes.items())
        for size in sorted({min(own), max(own), *(each for each in _LADDER if min(own) < each < max(own))})
    ]


def _predict(step: Sequence[tuple[list[_Row], int]], tables: Mapping[_Kind, LatencyTable]) -> float:
    """Return when the last rank ends: a collective operation begins with its last rank, a message arrives when it has
    been sent.
    """
    clocks, places = [0.0] * len(step), [0] * len(step)
    arrivals: dict[tuple[int, ...], list[float]] = defaultdict(list)
    entered: dict[_Kind, dict[int, float]] = defaultdict(dict)
    ready = list(range(len(step)))
    while ready:
        rank = ready.pop()
        calls = step[rank][0]
        while places[rank] < len(calls):
            op, ranks, size, gap_ns = calls[places[rank]]
            kind = ("send" if op == "recv" else op), ranks
            enter = clocks[rank] + gap_ns
            if op == "recv" and not arrivals[ranks]:
                break
            places[rank] += 1
            if op == "recv":
                clocks[rank] = max(enter, arrivals[ranks].pop(0))
                continue
            cost = float(tables[kind].times_ns(np.array([size]))[0])
            if op == "send":
                clocks[rank] = enter + cost
                arrivals[ranks].append(clocks[rank])
                ready.append(ranks[1])
                continue
            entered[kind][rank] = enter
            if len(entered[kind]) < len(ranks):
                break
            end = max(entered.pop(kind).values()) + cost
            for member in ranks:
                clocks[member] = end
            ready += [member for member in ranks if member != rank]
    return max(clock + rest for clock, (_, rest) in zip(clocks, step, strict=True))


def _interval(values: Sequence[float]) -> Interval | None:
    found = median_estimate(values, np.random.default_rng(0)) if len(values) >= MIN_CLAIM_ROUNDS else None
    return found.interval() if found else None
