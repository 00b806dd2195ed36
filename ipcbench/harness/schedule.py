"""What a run measures, and when: the trials of each round, in batches that are measured together, in shuffled order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
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
        self._sizes: dict[tuple[bool, bool], tuple[int, float]] = {}
        """How many trials a round has, and the sum of their windows in s, by what distinguishes rounds."""

    def batches(self, round_index: int, finished: Iterable[TrialResult]) -> list[list[Cell]]:
        """Return the round's trials in the order that the seed gives, without those that are finished.

        The trials of one batch differ only in backend and are measured together, or only in variant and follow one
        another.
        """
        stored = {replace(trial.spec, turns=1) for trial in finished}
        batches: dict[object, list[Cell]] = {}
        for trial, payload in self._planned(round_index):
            if replace(trial, turns=1) not in stored:
                together = payload.size, trial.mode, trial.neighbours, trial.tail
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
        return shuffled

    def _planned(self, round_index: int) -> list[Cell]:
        """Return all trials of a round."""
        look = self._sweep.is_look(round_index)
        contenders, beside = self._contenders, self._sweep.neighbours
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

    def _plan(self, round_index: int) -> tuple[int, float]:
        """Return how many trials a round has, and the sum of their windows in s."""
        kind = self._sweep.is_look(round_index), self._sweep.round_has_tails(round_index)
        if kind not in self._sizes:
            planned = self._planned(round_index)
            self._sizes[kind] = len(planned), sum(trial.window_s for trial, _ in planned)
        return self._sizes[kind]

    def foreseen(self, round_index: int, pace: float) -> tuple[int, int]:
        """Return how many rounds there will probably be, and how many trials, the present round included; `pace` is how
        many seconds of the budget a second of windows takes.
        """
        budget_s, rounds, trials = self._sweep.budget_s, 0, 0
        while rounds < self._sweep.rounds and (budget_s > 0 or rounds <= round_index):
            count, windows_s = self._plan(rounds)
            fitting = min(1.0, max(0.0, budget_s) / (pace * windows_s)) if rounds > round_index else 1.0
            trials += round(fitting * count)
            budget_s -= pace * windows_s
            rounds += 1
        return max(rounds, round_index + 1), trials

    def _control_places(self) -> list[tuple[str, PreparedPayload, bool, int]]:
        """Return what is measured a second time in each round: the first spawned backend with the middle payload."""
        if not self._sweep.control:
            return []
        names = [name for name, contender in self._contenders.items() if contender.launcher != "inline"]
        return [(name, self._payloads[len(self._payloads) // 2], True, self._sweep.neighbours[0]) for name in names[:1]]
