"""One trial of a queue or fan-in: its steps beside those of other backends, and its record.

Process 0 of the group is the side that is alone: the writer of a queue, the reader of a fan-in. The side that takes
messages is told to once, and reports when its streams have ended; the side that offers them is told each window.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipcbench.errors import IntegrityError, TrialError, WorkerCrashed, WorkerTimeout
from ipcbench.harness.digest import Column, usage_of
from ipcbench.harness.patterns.digest import Delivered, Receipts, Step, offered_of
from ipcbench.harness.patterns.parts import DIES_AT, LEAD_RATIO, began_numbers, make_began_file
from ipcbench.harness.trial import Trial, TrialOutcome
from ipcbench.machine.describe import MachineLoad
from ipcbench.registry import get_backend
from ipcbench.results.model import EndpointResult, Integrity, TrialResult
from ipcbench.spec import MAX_PATTERN_WINDOW_S, ChannelSpec, Work
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import Phase, message_bytes

_MOMENT_S = 0.5
_TELL_NS = 5_000_000
"""What a writer needs to learn when a window begins, if it gets a core at once."""
_TRIES_COUNT = 8
"""Windows that are tried until all writers are at it together."""

_LEAST_BATCHES = 20
"""Of each writer, in the window flat out: one more or less is then 5 % of the rate."""
_P99_COUNT = 1_200
"""A p99 takes 1,000 messages, and some may come late."""
_MOST_TIMES = 4.0
"""How many times as long as flat out a window at a rate may be, so that the rounds fit into the budget."""

VICTIM = 1
"""Process number of the worker that is killed."""


_ROLES: dict[Work, tuple[str, str]] = {
    "queue": ("writer", "worker"), "fan_in": ("reader", "writer"), "rpc": ("server", "client"),
}  # fmt: skip


def roles_of(pattern: Work, peers: int) -> tuple[str, ...]:
    """Return the names of a group's processes; empty for a broadcast, which has the usual ones."""
    alone, many = _ROLES.get(pattern, ("", ""))
    return (alone, *(f"{many}-{index}" for index in range(peers))) if alone else ()


class PatternTrial(Trial):
    """Carries out a trial of a queue or fan-in; the steps are those of `Trial`, with a turn for each window."""

    _steps: list[Step]
    _began: Path | None = None
    _dead: frozenset[int] = frozenset()

    def open(self) -> None:
        """Have the endpoints open."""
        self._steps = []
        super().open()

    _role = "writer"

    @property
    def _peers(self) -> range:
        return range(1, self._trial.endpoints_count)

    @property
    def _writers(self) -> Sequence[int]:
        return self._peers if self._trial.pattern == "fan_in" else (0,)

    @property
    def _takers(self) -> Sequence[int]:
        return (0,) if self._trial.pattern == "fan_in" else self._peers

    @property
    def _asks_probe(self) -> bool:
        return False

    def _to_all(self, question: dict[str, Any]) -> dict[int, dict[str, Any]]:
        return {index: each for index, each in super()._to_all(question).items() if index not in self._dead}

    def _channels(self) -> Iterable[ChannelSpec]:
        yield ChannelSpec(
            name=self._run_dir.channel_name(),
            readers=self._trial.readers,
            writers=self._trial.writers,
            max_message_bytes=message_bytes(self._trial.payload_bytes),
            depth=self._trial.depth,
            wait=self._trial.wait,
            pattern="queue" if self._trial.pattern == "queue" else "fan_in",
        )

    def _open(self) -> None:
        if self._trial.kill:
            self._began = self._run_dir.path / f"began-{self._trial_id}"
            make_began_file(self._began)
        super()._open()

    def _open_request(self) -> dict[str, Any]:
        return {**super()._open_request(), "began": None if self._began is None else str(self._began)}

    def warm_up(self) -> None:
        """Have the readers take messages from now on, and the writers offer some that no figure contains."""
        self._try(self._warm_up)

    def _warm_up(self) -> None:
        self._look_around()
        if self._clocks.offsets:
            raise TrialError(f"a {self._trial.pattern} takes endpoints with one clock; these have several")
        self._group.tell({index: {"do": "go"} for index in self._takers})
        self._offer(self._trial.warmup_s, 0.0, Phase.WARMUP)

    def _take_turn(self) -> None:
        """Measure the next window: flat out, then at each share of that rate."""
        if not self._steps:
            self._steps.append(self._flat_out(self._trial.window_s / self._trial.turns))
            return
        load, first = self._trial.loads[len(self._steps) - 1], self._steps[0]
        rate_per_s = load * first.capacity_per_s
        self._steps.append(self._measure(self._window_s(first.window_ns / 1e9, rate_per_s), load, rate_per_s))

    def _window_s(self, flat_out_s: float, rate_per_s: float) -> float:
        """Return the window at a rate: that of flat out, or a few times as long if a p99 takes it."""
        needed = _P99_COUNT * (len(self._writers) if self._trial.pattern == "fan_in" else 1)  # p99 is of each writer
        longest_s = max(flat_out_s, min(_MOST_TIMES * flat_out_s, MAX_PATTERN_WINDOW_S))
        return min(longest_s, max(flat_out_s, needed / rate_per_s))

    def _flat_out(self, window_s: float) -> Step:
        """Return a window flat out; it is longer than `window_s` if too few batches fit into that for a rate, which
        counts whole ones.

        Raises:
            TrialError: too few fit into the longest.
        """
        while True:
            step = self._measure(window_s, None, None)
            batches = step.count / (self._trial.batch * len(self._writers))
            if self._trial.kill or batches >= _LEAST_BATCHES:
                return step
            if window_s >= MAX_PATTERN_WINDOW_S:
                raise TrialError(self._too_few(batches, window_s))
            window_s = min(MAX_PATTERN_WINDOW_S, window_s * max(2.0, 1.5 * _LEAST_BATCHES / max(1.0, batches)))

    def _too_few(self, batches: float, window_s: float) -> str:
        return (
            f"a writer wrote {batches:.1f} batches of {self._trial.batch:,} in {window_s:g} s, too few for a rate: "
            "take smaller ones, or smaller messages"
        )

    def _measure(self, window_s: float, load: float | None, rate_per_s: float | None) -> Step:
        """Return the first of a few windows in which all writers were at it together.

        Raises:
            TrialError: there was none.
        """
        for _ in range(_TRIES_COUNT):
            offered = self._offer(window_s, rate_per_s or 0.0, Phase.MEASURE)
            step = Step(load, offered, 1e9 * window_s, rate_per_s)
            if step.is_together:
                return step
        raise TrialError(
            f"in {_TRIES_COUNT} windows of {1e3 * window_s:g} ms, a {self._role} began when half of the time was over: "
            f"take fewer {self._role}s, or a longer --window"
        )

    def _offer(self, window_s: float, rate_per_s: float, phase: Phase) -> tuple[Any, ...]:
        lead_ns = 0 if rate_per_s else int(1e9 * LEAD_RATIO * window_s)
        question = {
            "do": "offer",
            "begin_ns": now_ns() + _TELL_NS + lead_ns,
            "window_ns": int(1e9 * window_s),
            "rate_per_s": rate_per_s / len(self._writers),
            "phase": int(phase),
        }
        answers = self._ask_writers(question)
        return tuple(offered_of(answers[index]) for index in self._writers)

    def _ask_writers(self, question: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the writers' answers; if a reader or worker has failed, raise that, not what follows from it."""
        questions = dict.fromkeys(self._writers, question)
        try:
            self._group.tell(questions)
            return self._hear(questions)
        except WorkerCrashed:  # a writer, of which the readers then complain
            raise
        except TrialError:
            with suppress(WorkerTimeout):
                self._group.hear(dict.fromkeys(self._takers, question), _MOMENT_S)
            raise

    def finish(self) -> None:
        """Have the writers close, and hear what the readers took."""
        self._try(self._finish)

    def _finish(self) -> None:
        self._answers = self._ask_writers({"do": "finish"})
        if self._trial.kill:
            self._require_dead()
        self._answers |= self._hear({index: {"do": "go"} for index in self._takers if index not in self._dead})

    def _require_dead(self) -> None:
        try:
            self._group.hear({VICTIM: {"do": "go"}}, self._plan.deadline_s())
        except WorkerCrashed:
            self._dead = frozenset({VICTIM})
            return
        raise TrialError(f"worker-0 got fewer than {DIES_AT} messages of the window, and so was not killed")

    def outcome(self, machine: MachineLoad) -> TrialOutcome:
        """Return what the trial yields; a group of which a worker was killed must be replaced."""
        outcome = super().outcome(machine)
        return replace(outcome, group_is_sound=False) if self._trial.kill else outcome

    def _record(
        self, answers: dict[int, dict[str, Any]], others_cpu_ratio: float | None
    ) -> tuple[TrialResult, dict[str, Column]]:
        takers = [index for index in self._takers if index not in self._dead]
        receipts = Receipts.of([answers[index]["columns"] for index in takers])
        totals = [answers[index]["facts"]["total_count"] for index in self._writers]
        began = array("q") if self._began is None else began_numbers(self._began)
        delivered = Delivered.of(receipts, totals, began)
        torn = sum(answers[index]["facts"]["torn_count"] for index in takers)
        recovery = delivered.recovery(answers[0]["facts"]["redelivered_count"]) if self._trial.kill else None
        by_writer = self._trial.pattern == "fan_in"
        windows = tuple(receipts.window(step, self._trial.batch, by_writer=by_writer) for step in self._steps)
        reason = self._judge(delivered, torn)
        if not (reason or windows[0].rate_per_s):
            reason = "no writer wrote anything flat out within its window"
        result = TrialResult(
            trial_id=self._trial_id,
            spec=self._trial,
            status="failed" if reason else "ok",
            reason=reason,
            started_unix_s=0.0,
            duration_s=0.0,
            endpoints=tuple(self._endpoint(index, answers[index]["facts"]) for index in sorted(answers)),
            throughput_per_s=windows[0].rate_per_s,
            windows=() if self._trial.kill else windows,
            recovery=recovery,
        )
        return result, {}

    def _judge(self, delivered: Delivered, torn_count: int) -> str:
        """Return why the trial failed; empty if all messages came as promised."""
        if self._trial.kill:
            promised = get_backend(self._trial.registered_name).capabilities.redelivers
            broken = torn_count or delivered.unknown_count or (promised and delivered.lost_count)
            delivered = delivered if broken else replace(delivered, lost_count=0, repeated_count=0, reordered_count=0)
        fault = delivered.fault(torn_count)
        return str(IntegrityError(fault)) if fault else ""

    def _endpoint(self, index: int, facts: dict[str, Any]) -> EndpointResult:
        """Return the record of an endpoint; the figures are in the windows."""
        offered = [] if index in self._takers else [step.offered[index - self._writers[0]] for step in self._steps]
        return EndpointResult(
            role=roles_of(self._trial.pattern, self._trial.peers)[index],
            process_id=self._group.pids[index],
            messages_count=sum(each.count for each in offered) if offered else facts["count"],
            first_ns=offered[0].begin_ns if offered else facts["first_ns"],
            last_ns=offered[-1].end_ns if offered else facts["last_ns"],
            call=None,
            latency=None,
            decode=None,
            usage=usage_of(facts["usage"]),
            integrity=Integrity(
                received_count=facts.get("count", 0),
                torn_count=facts.get("torn_count", 0),
                hashed_count=facts.get("hashed_count", 0),
            ),
            gc_count=facts["gc_count"],
            core=self._cores[index] if self._cores else None,
        )
