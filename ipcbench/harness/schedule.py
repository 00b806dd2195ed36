"""What a run measures, and when: the trials of each round, in batches that are measured together, in shuffled order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ipcbench.harness.prepare import PreparedPayload
from ipcbench.harness.variants import Contender
from ipcbench.results.model import TrialResult
from ipcbench.spec import SweepSpec, TrialSpec

Cell = tuple[TrialSpec, PreparedPayload]
"""A trial, and what it sends."""


class Schedule:
    """The rounds of a sweep.

    Args:
        sweep: what to measure.
        payloads: what is sent, one for each size.
        contenders: the transports, by name.
    """

    def __init__(
        self, sweep: SweepSpec, payloads: Sequence[PreparedPayload], contenders: Mapping[str, Contender]
    ) -> None:
        self._sweep = sweep
        self._payloads = payloads
        self._contenders = contenders
        self._plans: dict[tuple[bool, bool], list[TrialSpec]] = {}
        """The trials of a round, by what distinguishes rounds."""

    def batches(self, round_index: int, finished: Iterable[TrialResult]) -> list[list[Cell]]:
        """Return the round's trials in the order that the seed gives, without those that are finished.

        The trials of one batch differ only in backend and are measured together, or only in variant and follow one
        another.
        """
        stored = {replace(trial.spec, turns=1) for trial in finished}
        batches: dict[object, list[Cell]] = {}
        for trial, payload in self._planned(round_index):
            if replace(trial, turns=1) not in stored:
                together = payload.size, trial.mode, trial.neighbours, trial.tail, trial.readers, trial.pattern_key
                key = together if trial.is_shared else replace(trial, backend=trial.registered_name)
                batches.setdefault(key, []).append((trial, payload))
        order = random.Random(f"{self._sweep.seed}/{round_index}")  # noqa: S311 - an order, not a secret
        for batch in batches.values():
            order.shuffle(batch)
            if batch[0][0].turns == 1:  # variants of a backend follow one another
                names = [trial.registered_name for trial, _ in batch]
                batch.sort(key=lambda cell: names.index(cell[0].registered_name))
        shuffled = list(batches.values())
        order.shuffle(shuffled)
        return sorted(
            shuffled, key=lambda batch: batch[0][0].kill
        )  # last, since groups have to be started anew after it

    def _planned(self, round_index: int) -> list[Cell]:
        """Return all trials of a round."""
        look = self._sweep.is_look(round_index)
        contenders, beside = self._contenders, self._sweep.neighbours
        if self._sweep.pattern != "broadcast":
            return [
                (trial, payload)
                for name, contender in contenders.items()
                for payload in self._payloads
                for count in beside
                for trial in self._sweep.pattern_trials(name, payload.size, payload.payload_bytes, round_index, count)
                if not (trial.kill and contender.launcher == "inline")  # a thread cannot be killed
            ]
        places = [(name, payload, False, n) for name in contenders for payload in self._payloads for n in beside]
        planned = []
        for name, payload, is_control, neighbours in places + self._control_places() * (not look):
            size, size_bytes = payload.size, payload.payload_bytes
            for mode in self._sweep.modes:
                trial = self._sweep.trial(
                    name, size, size_bytes, mode, round_index, twin=is_control, neighbours=neighbours
                )
                tail = self._sweep.tail_trial(trial)
                first = self._sweep.look_trial(trial) if look else trial
                planned += [(first, payload)] if tail is None else [(first, payload), (tail, payload)]
        return planned

    def _plan(self, round_index: int) -> list[TrialSpec]:
        """Return what a round has, as many trials and of the same costs."""
        kind = self._sweep.is_look(round_index), self._sweep.round_has_tails(round_index)
        if kind not in self._plans:
            self._plans[kind] = [trial for trial, _ in self._planned(round_index)]
        return self._plans[kind]

    def foreseen(
        self, round_index: int, done: int, left_s: float, cost_s: Callable[[TrialSpec], float]
    ) -> tuple[int, float]:
        """Return how many rounds there will probably be, and how many seconds they still take.

        Args:
            round_index: the present round.
            done: how many trials are done.
            left_s: what is left of the budget.
            cost_s: returns how much of it a trial takes.
        """
        rounds = round_index + 1
        before = sum(len(self._plan(index)) for index in range(round_index))
        need_s = sum(map(cost_s, self._plan(round_index)[max(0, done - before) :]))
        while rounds < self._sweep.rounds and need_s < left_s:
            need_s += sum(map(cost_s, self._plan(rounds)))
            rounds += 1
        return rounds, max(0.0, min(need_s, left_s))

    def _control_places(self) -> list[tuple[str, PreparedPayload, bool, int]]:
        """Return what is measured a second time in each round: the first spawned backend with the middle payload."""
        if not self._sweep.control:
            return []
        names = [name for name, contender in self._contenders.items() if contender.launcher != "inline"]
        return [(name, self._payloads[len(self._payloads) // 2], True, self._sweep.neighbours[0]) for name in names[:1]]
