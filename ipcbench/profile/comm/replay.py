"""Calls of a profile, recorded or planned, sent again over any transport: real processes carry them out in the order of
each rank, with as much work in between as took place there. Transports take turns, in fresh processes. After a turn of
each with few calls, as many of the first as fit the budget are replayed.

Beside what that took stands what a table predicts: α + β·bytes of each operation, measured alone in the same turn, put
together along the order in which ranks wait for one another. Where the two differ, the transport behaves otherwise
between work than alone.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from ipcbench.errors import ConfigError, IpcbenchError, StoreError, TrialError
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.profile.comm import player
from ipcbench.profile.comm.waits import extent_ns, matched, misfits
from ipcbench.profile.comm.workers import ANSWER_S, question, workers
from ipcbench.profile.records import Call, Profile
from ipcbench.registry import get_backend, status
from ipcbench.replay.latency_table import LatencyTable
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval

_PILOT_NS, _CALL_NS, _BYTE_NS, _PILOT_RATIO = 250e6, 50e3, 1.0, 8.0
"""How long the first turn is to be at least, what a call and a byte may take, and how many times as long at first; from
then on, what they took counts. Work between calls takes what it took.
"""
_MOST_NS = 5e8 * ANSWER_S
"""How long a turn may be: half of the longest wait."""
_MOST_RANKS: Final = 64
_CANNOT: Final = "these calls cannot be sent again one after another"
_LADDER: Final = (1024, 2**16, 2**20)
"""Sizes of the table between a kind's smallest and largest."""

Say: TypeAlias = Callable[[str], None]
_Row: TypeAlias = tuple[str, tuple[int, ...], int, int, int]
"""Operation, ranks, bytes, ns of work before it, number of the operation, which its members share."""
_Kind: TypeAlias = tuple[str, tuple[int, ...]]
_Program: TypeAlias = list[tuple[list[_Row], int]]
"""Of one rank: the calls of each step, and ns of work after the last."""
_Programs: TypeAlias = list[_Program]
"""Of all ranks."""
_Turn: TypeAlias = Callable[[str, _Programs], tuple[float, float, float]]


@dataclass(slots=True)
class OverTransport:
    """What one transport did; a list has one entry per round.

    Attributes:
        walls_ns: all steps, each from the first rank's begin to the last one's end.
        predicted_ns: the same by the table.
        core_waits: shares of that in which the rank that waited the most was ready, and had no core.
        failure: why there is nothing more.
    """

    walls_ns: list[float] = field(default_factory=list)
    predicted_ns: list[float] = field(default_factory=list)
    core_waits: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def measured(self) -> Interval | None:
        """Return the median with its 95 % interval; None after fewer rounds than a claim needs."""
        return claimed(self.walls_ns)

    @property
    def predicted(self) -> Interval | None:
        """Return the table's prediction likewise."""
        return claimed(self.predicted_ns)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Results by transport.

    Attributes:
        recorded_ns: the same steps as they were recorded; None for a plan, for calls whose steps are not known, and for
            a part of a step.
        calls_count: how many calls of all ranks were replayed: the first of `all_calls_count`.
        steps_count: how many steps they are of, of `all_steps_count`.
        left_out: transport → why it cannot run here.
    """

    transports: Mapping[str, OverTransport]
    recorded_ns: float | None
    calls_count: int
    all_calls_count: int
    steps_count: int
    all_steps_count: int
    left_out: Mapping[str, str]

    @property
    def is_claim(self) -> bool:
        """Return whether there were enough rounds to say anything of what differs."""
        return all(len(each.walls_ns) >= MIN_CLAIM_ROUNDS for each in self.transports.values() if not each.failure)

    @property
    def core_waits(self) -> Mapping[str, float]:
        """Return transport → the share of its replay, the median of its rounds, in which a rank had no core."""
        return {name: float(np.median(each.core_waits)) for name, each in self.transports.items() if each.core_waits}


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
        ConfigError: the profile has no calls, none is named, or a transport lives in one process.
        UnknownBackend: there is no such transport.
        StoreError: its calls do not fit together.
        TrialError: all transports failed, or none can run here.
    """
    programs, steps_ns = _programs(profile)
    if not transports:
        raise ConfigError("--transports", "", "names from `ipcbench list`, such as shm,pipe")
    found = {name: status(name) for name in dict.fromkeys(transports)}
    for name in found:
        if get_backend(name).capabilities.launcher in {"inline", "fork"}:
            raise ConfigError("transport", name, "a transport between processes that open it by address")
    done = {name: OverTransport() for name, each in found.items() if each.available}
    left_out = {name: f"{each.reason}; {each.hint}" for name, each in found.items() if not each.available}
    part = _in_turns(programs, done, budget_s, rounds, say)
    if not any(each.walls_ns for each in done.values()):
        failures = {name: each.failure for name, each in done.items()} | left_out
        raise TrialError("; ".join(f"{name}: {why}" for name, why in failures.items()))
    steps_count, calls_count = len(part[0]), _calls_count(part)
    is_of_whole_steps = calls_count == _calls_count([program[:steps_count] for program in programs])
    return Replayed(
        done,
        float(sum(steps_ns[:steps_count])) if steps_ns and is_of_whole_steps else None,
        calls_count,
        _calls_count(programs),
        steps_count,
        len(programs[0]),
        left_out,
    )


def _in_turns(
    programs: _Programs, done: Mapping[str, OverTransport], budget_s: float, rounds: int, say: Say
) -> _Programs:
    """Replay in rounds, and return what was replayed: a first round with few calls says how many fit the budget."""
    began_s = time.monotonic()
    with RunDir() as run_dir, Switchboard(run_dir.path) as switchboard:
        turn = partial(_turn, run_dir, switchboard)
        pilot_ns = min(1e9 * budget_s / rounds, _MOST_NS) / max(1, 2 * len(done))
        part, index = _first(programs, max(_PILOT_NS, pilot_ns), _PILOT_RATIO), 1
        _round(part, done, 0, turn, say)
        took_s = time.monotonic() - began_s
        more = _fitting(programs, part, done, took_s, budget_s, rounds)
        if len(more[0]) > len(part[0]) or _calls_count(more) > _calls_count(part):
            part, index = more, 0
            say(f"{_calls_count(part):,} of {_calls_count(programs):,} calls are replayed")
            for each in done.values():
                each.walls_ns, each.predicted_ns, each.core_waits = [], [], []
        while index < rounds:
            round_s = time.monotonic()
            if index and round_s - began_s + took_s > budget_s:
                say(f"the budget is spent after {index} of {rounds} rounds")
                break
            _round(part, done, index, turn, say)
            took_s = max(took_s, time.monotonic() - round_s)
            index += 1
    return part


def _round(programs: _Programs, done: Mapping[str, OverTransport], index: int, turn: _Turn, say: Say) -> None:
    """Give every transport that has not failed a turn."""
    names = [name for name, each in done.items() if not each.failure]
    random.Random(index).shuffle(names)  # noqa: S311 - an order, not a secret
    for name in names:
        try:
            wall_ns, predicted_ns, core_wait = turn(name, programs)
        except IpcbenchError as error:
            done[name].failure = str(error)
            say(f"warning: {name} failed: {error}")
            continue
        done[name].walls_ns.append(wall_ns)
        done[name].predicted_ns.append(predicted_ns)
        done[name].core_waits.append(core_wait)
        say(f"round {index + 1}  {name}  {wall_ns / 1e6:.3f} ms")


def _programs(profile: Profile) -> tuple[_Programs, list[int]]:
    """Return the program of each rank, and how long each recorded step took; nothing if that is not known of all."""
    calls: dict[tuple[int, int], list[Any]] = defaultdict(list)
    plain = [msgspec.structs.replace(call, group="") for call in profile.calls]  # a channel has neither groups nor tags
    for call in matched(plain):
        calls[call.rank, call.step].append(call)
    steps = {(step.rank, step.number): step for step in profile.steps}
    world = 1 + max((max((call.rank, *call.ranks)) for call in profile.calls), default=0)
    numbers = sorted({number for _, number in calls})
    if world > _MOST_RANKS:
        raise ConfigError("profile", f"{world:,} ranks", f"one of at most {_MOST_RANKS}, each a process of this host")
    if world < 2:
        raise ConfigError("profile", f"{world} rank", "one with calls between ranks")
    _require_fitting(plain)
    programs: _Programs = []
    for rank in range(world):
        program: _Program = []
        for number in numbers:
            own = calls[rank, number]
            step, last_ns = steps.get((rank, number)), max((call.exit_ns or 0 for call in own), default=0)
            rest = step.start_ns + step.wall_ns - last_ns if step and last_ns else 0
            rows = [(call.op, call.ranks, call.bytes, call.gap_ns or 0, call.match or 0) for call in own]
            program.append((rows, max(rest, 0)))
        programs.append(program)
    for together in zip(*programs, strict=True):
        _predict(together, {})
    if not all((rank, number) in steps for rank in range(world) for number in numbers):
        return programs, []
    return programs, [extent_ns([steps[rank, number] for rank in range(world)]) for number in numbers]


def _calls_count(programs: _Programs) -> int:
    return sum(len(calls) for program in programs for calls, _ in program)


def _guesses_ns(calls: Sequence[_Row], ratio: float) -> list[float]:
    """Return about what each call, `ratio` times as long as at best, and the work before it take."""
    return [ratio * (_CALL_NS + size_bytes * _BYTE_NS) + gap_ns for _, _, size_bytes, gap_ns, _ in calls]


def _step_guesses_ns(programs: _Programs, ratio: float) -> list[float]:
    steps = zip(*programs, strict=True)
    return [max(sum(_guesses_ns(calls, ratio)) + rest_ns for calls, rest_ns in step) for step in steps]


def _first(programs: _Programs, limit_ns: float, ratio: float = 1.0) -> _Programs:
    """Return the first steps that take about so long; or the first calls, if a step is longer: one at least."""
    count = int(np.searchsorted(np.cumsum(_step_guesses_ns(programs, ratio)), limit_ns, "right"))
    if count:
        return [program[:count] for program in programs]
    step = [program[0][0] for program in programs]
    ends = [np.cumsum(_guesses_ns(calls, ratio)) for calls in step]
    counts = [0] * len(step)
    while not any(counts):
        counts = _whole(step, [int(np.searchsorted(each, limit_ns, "right")) for each in ends])
        limit_ns *= 2
    return [[(calls[:end], 0)] for calls, end in zip(step, counts, strict=True)]


def _whole(step: Sequence[Sequence[_Row]], counts: list[int]) -> list[int]:
    """Return how many of each rank's first calls, at most `counts`, have all their members among them."""
    while True:
        parts = [calls[:count] for calls, count in zip(step, counts, strict=True)]
        taken = [{row[-1] for row in part} for part in parts]
        lacking = [[any(row[-1] not in taken[rank] for rank in row[1]) for row in part] for part in parts]
        fewer = [each.index(True) if True in each else len(each) for each in lacking]
        if fewer == counts:
            return counts
        counts = fewer


def _fitting(
    programs: _Programs,
    pilot: _Programs,
    done: Mapping[str, OverTransport],
    pilot_s: float,
    budget_s: float,
    rounds: int,
) -> _Programs:
    """Return the first calls of which all rounds take about what is left, from what the pilot's took; fewer rounds, but
    enough for a claim, where most of a round goes into the start of processes.
    """
    walls_ns = [sum(each.walls_ns) for each in done.values() if each.walls_ns]
    starts_s, left_s = pilot_s - sum(walls_ns) / 1e9, budget_s - pilot_s
    rounds = min(rounds, max(MIN_CLAIM_ROUNDS, int(left_s / 2 / starts_s)))
    left_ns = min(1e9 * (left_s / rounds - starts_s), _MOST_NS) / max(1, len(walls_ns))
    if left_ns <= max(walls_ns, default=left_ns):
        return pilot
    works_ns, guess_ns = (sum(_step_guesses_ns(pilot, ratio)) for ratio in (0.0, 1.0))
    ratio = (float(np.mean(walls_ns)) - works_ns) / (guess_ns - works_ns)
    return _first(programs, left_ns, max(ratio, 0.1))


def _kind(call: _Row) -> _Kind:
    return "send" if call[0] == "recv" else call[0], call[1]


def _require_fitting(calls: Sequence[Call]) -> None:
    """Raise StoreError unless all members of each operation take part in it, alike."""
    unknown = next((f"the ranks of {call.op} are not known" for call in calls if not call.ranks), "")
    if why := unknown or next(misfits(calls, may_differ=()), ""):
        raise StoreError(f"{_CANNOT}: {why}")


def _turn(run_dir: RunDir, switchboard: Switchboard, name: str, programs: _Programs) -> tuple[float, float, float]:
    """Replay once over a transport, in fresh processes; return what it took, what the table predicts, and the share of
    the time in which a rank had no core.
    """
    rows = [row for program in programs for calls, _ in program for row in calls]
    asked = _ladder(rows)
    world, largest = len(programs), max(row[2] for row in rows)
    warm_up = _first([program[:1] for program in programs], _PILOT_NS)
    with workers(run_dir, switchboard, world, name, largest) as (group, meeting):
        group.ask_all(question(player.join, **meeting), ANSWER_S)
        group.ask_all(question(player.play, programs=warm_up), ANSWER_S)
        answers = group.ask_all(question(player.play, programs=programs), ANSWER_S)
        alone = group.ask_all(question(player.measure, calls=asked), ANSWER_S)
        group.ask_all({"do": "close"}, ANSWER_S)
    steps = zip(*(answers[rank]["times_ns"] for rank in range(world)), strict=True)
    wall_ns = sum(max(end for _, end in step) - min(begin for begin, _ in step) for step in steps)
    times: dict[_Kind, dict[int, float]] = defaultdict(dict)
    for place, (op, ranks, size) in enumerate(asked):
        known = [answers["times_ns"][place] for answers in alone.values()]
        times[op, ranks][size] = max(each for each in known if each is not None)
    tables = {kind: LatencyTable(tuple(each), tuple(each.values())) for kind, each in times.items()}
    predicted = sum(_predict([program[place] for program in programs], tables) for place in range(len(programs[0])))
    core_wait_ns = max(answer["core_wait_ns"] for answer in answers.values())
    return float(wall_ns), predicted, min(1.0, core_wait_ns / wall_ns)  # it waits between steps, too


def _ladder(rows: Sequence[_Row]) -> list[tuple[str, tuple[int, ...], int]]:
    """Return which calls are timed alone: of each kind the smallest, the largest, and sizes between."""
    sizes: dict[_Kind, set[int]] = defaultdict(set)
    for row in rows:
        sizes[_kind(row)].add(row[2])
    return [
        (*kind, size)
        for kind, own in sorted(sizes.items())
        for size in sorted({min(own), max(own), *(each for each in _LADDER if min(own) < each < max(own))})
    ]


def _predict(step: Sequence[tuple[list[_Row], int]], tables: Mapping[_Kind, LatencyTable]) -> float:
    """Return when the last rank ends: a collective operation begins with its last rank, a message arrives when it has
    been sent. Without tables, operations take no time.

    Raises:
        StoreError: ranks wait for one another.
    """
    clocks, places = [0.0] * len(step), [0] * len(step)
    entered: dict[int, dict[int, float]] = defaultdict(dict)
    ready = list(range(len(step)))
    while ready:
        rank = ready.pop()
        calls = step[rank][0]
        while places[rank] < len(calls):
            row = calls[places[rank]]
            op, ranks, size, gap_ns, number = row
            enter, others = clocks[rank] + gap_ns, entered[number]
            if op == "recv" and not others:
                break
            places[rank] += 1
            if op == "recv":
                clocks[rank] = max(enter, *others.values())
                continue
            cost = float(tables[_kind(row)].times_ns(np.array([size]))[0]) if tables else 0.0
            others[rank] = enter
            if op == "send":
                others[rank] = clocks[rank] = enter + cost
                ready.append(ranks[1])
                continue
            if len(others) < len(ranks):
                break
            end = max(others.values()) + cost
            for member in ranks:
                clocks[member] = end
            ready += [member for member in ranks if member != rank]
    if any(place < len(calls) for place, (calls, _) in zip(places, step, strict=True)):
        raise StoreError(f"{_CANNOT}: in their order, ranks wait for one another")
    return max(clock + rest for clock, (_, rest) in zip(clocks, step, strict=True))


def claimed(values: Sequence[float]) -> Interval | None:
    """Return the median of rounds with its 95 % interval; None after fewer rounds than a claim needs."""
    found = median_estimate(values, np.random.default_rng(0)) if len(values) >= MIN_CLAIM_ROUNDS else None
    return found.interval() if found else None
