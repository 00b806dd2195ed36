"""Sweeps of runs: latency by length, batch and output; and what more ranks bring, by degree and transport."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Final, Literal

import numpy as np

from ipcbench.backend import Launcher
from ipcbench.errors import IpcbenchError, TrialError
from ipcbench.machine.describe import usable_cores
from ipcbench.profile.comm.replay import Say
from ipcbench.profile.comm.waits import extent_ns
from ipcbench.profile.model.plan import Plan
from ipcbench.profile.records import Profile, Setting, Step, SweepPoint
from ipcbench.profile.run import Logits, Ranks, launcher_of, require_torch, resolved
from ipcbench.profile.summary import COMMUNICATION, summarize
from ipcbench.profile.sweep.cases import Budget, Done, figure, measure
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval

LENGTHS: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES: Final = (1, 2, 4, 8)
OUTPUTS: Final = (50, 100, 200)
PLANS: Final = ("none", "tp2", "pp2")


def sweep_seq(
    base: Setting,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    outputs: Sequence[int] = OUTPUTS,
    plans: Sequence[str] = PLANS,
    budget: Budget | None = None,
    done: Done = lambda _: None,
    say: Say = lambda _: None,
) -> list[SweepPoint]:
    """Measure the time to the first token, per further token, and tokens per second, the least work first.

    A run decodes the longest output, of which shorter ones are the beginning; on a budget, each plan's first run only
    the shortest. Its logits are compared as in any run.

    Args:
        base: the model, transport, steps and whatever else is the same in all cases.
        lengths, batches, outputs, plans: tokens of the prompt; sequences; tokens decoded; ways to divide the model.
        budget: of time; without, there is no limit.
        done: called with all cases so far after each run.
        say: called with a line for each run.
    """
    budget, points = budget or Budget(None), []
    budget.kinds_count = len(plans)
    with Pool(plans) as pool:
        for seq, batch, decoded, plan in _in_order(lengths, batches, sorted(outputs), plans, budget):
            setting = replace(base, parallel=plan, seq=seq, batch=batch, tokens=decoded[-1], detail="block")
            run = partial(_plain, pool, setting, decoded, budget)
            found = measure(_point("seq", setting), plan, batch * (seq + decoded[-1]), budget, run)
            points += [_of_output(found, output) for output in decoded]
            say(f"{plan}, {seq} tokens, batch {batch}: {found.status}")
            done(points)
    return points


def _in_order(
    lengths: Sequence[int], batches: Sequence[int], outputs: Sequence[int], plans: Sequence[str], budget: Budget
) -> Iterator[tuple[int, int, Sequence[int], str]]:
    """Yield prompt, batch, outputs and plan of each run. On a budget, the least of all comes first, of each plan."""
    for number, (seq, batch) in enumerate(
        sorted(product(lengths, batches), key=lambda case: (case[0] * case[1], case))
    ):
        first = int(number == 0 and budget.limit_s is not None)
        for decoded in filter(None, (outputs[:first], outputs[first:])):
            for plan in plans:
                yield seq, batch, decoded, plan


def sweep_parallel(
    base: Setting,
    plans: Sequence[str] = PLANS[1:],
    transports: Sequence[str] = ("gloo", "shm"),
    rounds: int = MIN_CLAIM_ROUNDS,
    budget: Budget | None = None,
    done: Done = lambda _: None,
    say: Say = lambda _: None,
) -> list[SweepPoint]:
    """Measure what each way to divide the model brings over each transport, beside one process with the threads of one
    rank, and one with all; all have their turn in each round.

    Args, Returns: as `sweep_seq`; `rounds` is how often each has its turn.
    """
    budget, cores = budget or Budget(None), int(usable_cores()) or 1
    alone = replace(base, parallel="none", transport="none", detail="block")
    settings = [alone, replace(alone, threads=cores)]
    settings += [replace(alone, parallel=plan, transport=name) for plan in plans for name in transports]
    settings = [*dict.fromkeys(settings)]
    cases = {setting: _Turns() for setting in settings}
    points: list[SweepPoint] = []
    with Pool(plans) as pool:
        for number in range(rounds):
            if number and (reason := budget.lack("round", 1.0)):
                say(f"the budget is spent after {number} of {rounds} rounds: {reason}")
                break
            began_s = time.monotonic()
            for setting in random.Random(number).sample(settings, len(settings)):  # noqa: S311 - an order, not a secret
                if not cases[setting].failure:
                    cases[setting].take(setting, pool)
                say(f"round {number + 1}/{rounds}: {setting.parallel}, {setting.transport}, {setting.threads} threads")
                points = [_compared(each, cases, settings[:2], rounds) for each in settings]
                done(points)
            budget.spent("round", 1.0, time.monotonic() - began_s)
    return points


class Pool(ExitStack):
    """Ranks that carry out one run after another; after a failure, others are started."""

    def __init__(self, plans: Sequence[str]) -> None:
        super().__init__()
        require_torch()
        self._count = 1 + max(Plan.parse(plan).world for plan in plans)
        self._ranks: dict[tuple[Launcher, int], Ranks] = {}
        self._references: dict[tuple[int, ...], Logits] = {}

    def run(self, setting: Setting, sources: Sequence[str] = ("plain", "spans"), limit_s: float = math.inf) -> Profile:
        """Return the profile of a run, whose repetitions end after `limit_s` or little later.

        Raises:
            IpcbenchError: it failed, or its logits are wrong.
        """
        ends_s, setting = time.monotonic() + limit_s, resolved(setting)
        key = setting.seq, setting.batch, setting.tokens
        try:
            reference = self._references.get(key)
            if reference is None and setting.parallel != "none":
                reference = self._references[key] = self._of("spawn", self._count).reference(setting)
            launcher = launcher_of(setting.transport)
            count = self._count if launcher == "spawn" else Plan.parse(setting.parallel).world
            made = self._of(launcher, count).profile(setting, reference, sources, until_s=ends_s)
        except IpcbenchError:
            self.close()
            self._ranks.clear()
            raise
        if made.agreement is not None and not made.agreement.holds:
            raise TrialError(made.agreement.words)
        return made

    def _of(self, launcher: Launcher, count: int) -> Ranks:
        if (launcher, count) not in self._ranks:
            self._ranks[launcher, count] = self.enter_context(Ranks(count, launcher=launcher))
        return self._ranks[launcher, count]


@dataclass(slots=True)
class _Turns:
    """What a setting's runs took, each list by round."""

    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failure: str = ""

    def take(self, setting: Setting, pool: Pool) -> None:
        """Run once more."""
        try:
            made = pool.run(setting)
        except IpcbenchError as error:
            self.failure = str(error)
            return
        for name, values in _figures(made, [setting.tokens]).items():
            self.figures[name.partition("@")[0]].append(float(np.median(values)))
        if setting.parallel != "none":
            self.figures["communication_ratio"].append(_communication_ratio(made))


def _compared(setting: Setting, cases: Mapping[Setting, _Turns], alone: Sequence[Setting], rounds: int) -> SweepPoint:
    """Return a setting's figures, and how it compares with one process with the threads of one rank, and with all."""
    turns, point = cases[setting], _point("parallel", setting)
    point = replace(point, values={**point.values, "rounds_asked": rounds})
    if turns.failure:
        return replace(point, status="failed", reason=turns.failure)
    if not turns.figures:
        return replace(point, status="not measured", reason="its turn had not come")
    figures: dict[str, Sequence[float]] = {**turns.figures}
    world = Plan.parse(setting.parallel).world
    for other, suffix in zip(alone, ("ratio", "all_threads_ratio"), strict=False):
        theirs = () if cases[other].failure else cases[other].figures.get("whole_ns", ())
        gains = [b / a for a, b in zip(figures["whole_ns"], theirs, strict=False)]  # one may have had a turn more
        if world > 1 and len(gains) >= MIN_CLAIM_ROUNDS:
            cores_used = min(world * setting.threads, int(usable_cores()))
            figures[f"speedup_{suffix}"] = gains
            # of equally many cores: those of one process with all threads are as many as there are
            parts = world if other is alone[0] else cores_used / other.threads
            figures[f"efficiency_{suffix}"] = [gain / parts for gain in gains]
    shown = {name: figure(values) for name, values in figures.items()}
    return replace(point, figures=_with_speed(shown, setting.batch), rounds_count=len(figures["whole_ns"]))


def _iterations(made: Profile) -> list[list[float]]:
    """Return the latency of each step, ns, from the first rank's begin to the last one's end; by iteration without
    instruments, of which the first step is the prompt's.
    """
    steps: dict[int, list[Step]] = defaultdict(list)
    for step in made.steps:
        if step.source == "plain":
            steps[step.number].append(step)
    found: list[list[float]] = []
    for _, of_ranks in sorted(steps.items()):
        if of_ranks[0].phase == "prefill":
            found.append([])
        found[-1].append(extent_ns(of_ranks))
    return found


def _figures(made: Profile, outputs: Sequence[int]) -> dict[str, list[float]]:
    """Return name → figure of each iteration; those of an output of N tokens are called `name@N`."""
    iterations = _iterations(made)
    found = {"ttft_ns": [each[0] for each in iterations]}
    for output in outputs:
        found[f"time_per_token_ns@{output}"] = [float(np.mean(each[1 : 1 + output])) for each in iterations]
        found[f"whole_ns@{output}"] = [sum(each[: 1 + output]) for each in iterations]
    return found


def _with_speed(figures: Mapping[str, Interval], batch: int) -> dict[str, Interval]:
    """Return figures with the tokens per second that follow from the time per token: a mean of rates would not."""
    if (found := figures.get("time_per_token_ns")) is None:
        return dict(figures)
    rates = (batch * 1e9 / ns for ns in (found.high, found.estimate, found.low))
    return {**figures, "tokens_per_s": Interval(*rates)}


def _of_output(found: SweepPoint, output: int) -> SweepPoint:
    """Return the case of an output from that of a run, whose figures have the outputs in their names."""
    names = {name: name.partition("@") for name in found.figures}
    kept = {base: found.figures[name] for name, (base, _, which) in names.items() if which in {"", str(output)}}
    figures = _with_speed(kept, int(found.values["batch"]))
    return replace(found, values={**found.values, "tokens": output}, figures=figures)


def _plain(pool: Pool, setting: Setting, outputs: Sequence[int], budget: Budget) -> Mapping[str, Sequence[float]]:
    return _figures(pool.run(setting, ("plain",), budget.share_s(setting.parallel)), outputs)


def _communication_ratio(made: Profile) -> float:
    """Return the share of communication, waiting and transfer, in the time of an iteration; the mean over ranks."""
    shares = []
    summary = summarize(made)
    for rank in made.ranks:
        phases = [each for each in summary.phases if each.rank == rank]
        whole_ns = sum(each.wall_ns * each.steps_count for each in phases)
        shares.append(sum(each.ns(*COMMUNICATION) * each.steps_count for each in phases) / whole_ns)
    return float(np.mean(shares))


def _point(sweep: Literal["seq", "parallel"], setting: Setting) -> SweepPoint:
    names = ("parallel", "transport", "seq", "batch", "tokens", "threads")
    values = {name: getattr(setting, name) for name in names}
    return SweepPoint(sweep, values | ({"transport": "none"} if setting.parallel == "none" else {}))
