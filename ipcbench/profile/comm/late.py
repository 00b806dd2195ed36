"""Who is late: steps in which something stopped a rank, and ranks for which others that do the same work wait."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean, median_low
from typing import Final, TypeAlias

from ipcbench.profile.records import Call, Phase, Profile, Step
from ipcbench.util.units import format_duration_ns

WAIT_RATIO: Final = 0.1
"""Of a step: waiting below it is not worth a word."""
_HELD_UP_RATIO, _HELD_UP_NS = 10.0, 1e9
"""A step that takes so many times the median of its kind, or twice that and so much longer, is named."""
_DISTURBED_RATIO = 2.0
"""A step that takes so many times the median of its phase at a rank is in no part."""
_FEW_STEPS, _FEW_RATIO = 2, 0.05
"""So many such steps, or such a share of all, are not worth a word."""
_SIGMAS = 1.96
"""From the middle of a 95 % interval to its end."""
_MOST_HELD_UP = 2


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A step that took many times the median of its phase.

    Attributes:
        step: its number.
        rank: which was held up: all others waited for it. None if no calls say so.
        seen_at: the rank at which it took the longest.
        wall_ns: there.
        median_ns: of that rank's steps of this phase.
    """

    phase: Phase
    step: int
    rank: int | None
    seen_at: int
    wall_ns: int
    median_ns: float

    @property
    def words(self) -> str:
        """Return it in a sentence."""
        who = f"Rank {self.seen_at}, or another that it waits for," if self.rank is None else f"Rank {self.rank}"
        where = f"rank {self.seen_at}" + (", which waited for it" if self.rank not in {None, self.seen_at} else "")
        took, usual = format_duration_ns(self.wall_ns), format_duration_ns(self.median_ns)
        return f"{who} was held up in step {self.step} ({self.phase}): {took} at {where}; the median is {usual}."


def held_up(profile: Profile) -> tuple[HeldUp, ...]:
    """Return the steps in which something stopped a rank, in their order."""
    usual = _usual_ns(profile)
    longest: dict[int, tuple[Step, int]] = {}
    for step in sorted(profile.steps, key=lambda step: step.wall_ns):
        middle = usual[step.phase, step.rank, step.source == "operators"]
        if step.wall_ns >= min(_HELD_UP_RATIO * middle, max(2 * middle, middle + _HELD_UP_NS)):
            longest[step.number] = step, middle
    waited_ns: Counter[tuple[int, int]] = Counter()
    for call in profile.calls if longest else ():
        waited_ns[call.step, call.rank] += call.wait_ns or 0
    found = []
    for number, (step, middle) in sorted(longest.items()):
        awaited = [rank for rank in profile.ranks if waited_ns[number, rank] < (step.wall_ns - middle) / 2]
        who = awaited[0] if len(awaited) == 1 else None
        found.append(HeldUp(step.phase, number, who, step.rank, step.wall_ns, middle))
    return tuple(found)


def held_up_words(steps: Sequence[HeldUp]) -> str:
    """Return which steps were held up, and by whom, in one piece, so that a screen has all of it; empty for none."""
    said = [held.words for held in steps[:_MOST_HELD_UP]]
    if len(steps) > _MOST_HELD_UP:
        said.append(f"So were ranks in {len(steps) - _MOST_HELD_UP:,} more steps.")
    if steps:
        said.append("Medians and parts are of the other steps, if there are any; sums, means and maxima of all.")
    return " ".join(said)


def left_out_words(phase: Phase, kept: int, of: int) -> str:
    """Return that parts are not of many steps, which took much longer; empty if they are of nearly all."""
    left = of - kept
    if left <= max(_FEW_STEPS, _FEW_RATIO * of):
        return ""
    return (
        f"In {phase}, {left:,} of {of:,} steps took {_DISTURBED_RATIO:g} times the median or more: no part and no "
        "advice is of these."
    )


def quiet(profile: Profile, phase: Phase, stopped: Collection[int]) -> set[int]:
    """Return the steps of a phase with spans that its parts are of: nothing stopped a rank in them, and, if there are
    such, none took much more than its median at a rank.
    """
    usual = _usual_ns(profile)
    steps = [each for each in profile.steps if (each.phase, each.source) == (phase, "spans")]
    long = {each.number for each in steps if each.wall_ns >= _DISTURBED_RATIO * usual[phase, each.rank, False]}
    left = {each.number for each in steps} - {*stopped}
    return left - long or left


def _usual_ns(profile: Profile) -> dict[tuple[Phase, int, bool], int]:
    """Return phase, rank, and whether under the operator profiler, → the median of all steps, with spans and without;
    of an even number that below the middle, as their mean holds what stopped one of two.
    """
    groups: dict[tuple[Phase, int, bool], list[int]] = defaultdict(list)
    for step in profile.steps:
        groups[step.phase, step.rank, step.source == "operators"].append(step.wall_ns)
    return {key: median_low(walls) for key, walls in groups.items()}


@dataclass(frozen=True, slots=True)
class Late:
    """Who is late in a group of ranks that do the same work; its operations are waited in for these alone.

    Attributes:
        waits_ns: rank → how long it waits in the group's operations, the mean of the steps; who waits least is first.
        ranks: those that wait less than each other one in most repetitions, more often than by chance; empty if none
            do.
        gain_ns: what a step takes longer because of them, in the mean: in each operation, they are as much later than
            all others.
        is_changing: whether each rank was at least twice not late when one was.
        first: those for which the others wait in the mean, whether in most repetitions or not.
        often_ratio: the share of the repetitions in which others wait for all of these by half the mean or more.
        repetitions: how many there are; the steps of one are not independent of each other.
    """

    waits_ns: Mapping[int, float]
    ranks: tuple[int, ...]
    gain_ns: float
    is_changing: bool
    first: tuple[int, ...]
    often_ratio: float
    repetitions: int


_Waits: TypeAlias = Mapping[int, int]
"""Of an operation: rank → how long it waits, ns."""


def latest(calls: Sequence[Call], repetitions: Mapping[int, int], wall_ns: float) -> Late | None:
    """Return who is late in the group whose ranks' waiting differs most; None if it is little in all.

    Args:
        calls: that know their waits.
        repetitions: number of a step in which to look → of its repetition.
        wall_ns: of such a step.
    """
    waited: dict[tuple[int, ...], dict[int, dict[int | None, dict[int, int]]]] = {}
    for call in calls:
        if call.step in repetitions and call.op not in {"send", "recv"} and call.wait_ns is not None:
            steps = waited.setdefault(call.ranks, defaultdict(lambda: defaultdict(dict)))
            steps[call.step][call.match][call.rank] = call.wait_ns
    found = []
    for ranks, steps in waited.items():
        whole = {step: [each for each in ops.values() if each.keys() == {*ranks}] for step, ops in steps.items()}
        if known := {step: ops for step, ops in whole.items() if ops}:
            found.append(_late(ranks, known, repetitions, WAIT_RATIO * wall_ns))
    spreads = [max(late.waits_ns.values()) - min(late.waits_ns.values()) for late in found]
    most = max(spreads, default=0.0)
    return found[spreads.index(most)] if most >= WAIT_RATIO * wall_ns else None


def _late(
    group: Sequence[int], steps: Mapping[int, Sequence[_Waits]], repetitions: Mapping[int, int], least_ns: float
) -> Late:
    sums = {step: {rank: sum(each[rank] for each in each_op) for rank in group} for step, each_op in steps.items()}
    means = {rank: fmean(step[rank] for step in sums.values()) for rank in group}
    parts: dict[int, list[Mapping[int, int]]] = defaultdict(list)
    for step, each in sums.items():
        parts[repetitions[step]].append(each)
    rounds = [{rank: fmean(step[rank] for step in each) for rank in group} for each in parts.values()]
    order, of = sorted(group, key=means.__getitem__), len(rounds)
    by_chance = of / 2 + _SIGMAS * math.sqrt(of) / 2

    @cache
    def times_later(rank: int, other: int) -> int:
        half_ns = (means[other] - means[rank]) / 2
        return sum(each[other] - each[rank] > half_ns for each in rounds)

    count = max(
        (n for n in range(1, len(order))
         if all(times_later(rank, other) - 0.5 > by_chance for rank in order[:n] for other in order[n:])),
        key=lambda n: means[order[n]] - means[order[n - 1]], default=0,
    )  # fmt: skip
    late = [each for each in rounds if max(each.values()) - min(each.values()) >= least_ns]
    is_changing = all(sum(each[rank] >= max(each.values()) / 2 for each in late) > 1 for rank in group)
    others = order[count:]
    gain_ns = fmean(sum(min(each[rank] for rank in others) for each in each_op) for each_op in steps.values())
    gaps = [means[late] - means[early] for early, late in pairwise(order)]
    wide = gaps.index(max(gaps)) + 1 if gaps else 0
    often = sum(
        min(each[rank] for rank in order[wide:]) - max(each[rank] for rank in order[:wide]) > max(gaps) / 2
        for each in rounds
    ) / of if gaps else 0.0  # fmt: skip
    return Late(
        {rank: means[rank] for rank in order}, tuple(sorted(order[:count])), gain_ns, is_changing,
        tuple(sorted(order[:wide])), often, of,
    )  # fmt: skip
