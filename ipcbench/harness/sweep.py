"""A run: rounds of trials in shuffled order, stored one by one, until all is measured, the budget is spent or
someone stops it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ipcbench.backend import Backend
from ipcbench.errors import IpcbenchError
from ipcbench.harness.floor import measure_floor
from ipcbench.harness.group import Group
from ipcbench.harness.judge import failed_trial
from ipcbench.harness.placement import allowed_cores, cores_for
from ipcbench.harness.plan import Plan
from ipcbench.harness.precision import widest_ratio
from ipcbench.harness.prepare import PreparedPayload, prepare_payload, select_backends
from ipcbench.harness.trial import Trial
from ipcbench.harness.turns import run_all
from ipcbench.machine.describe import describe_machine, describe_versions, usable_cores
from ipcbench.processes.control import Switchboard
from ipcbench.processes.launch import CONTROL_HOST_VARIABLE
from ipcbench.processes.run_dir import RunDir
from ipcbench.results.model import SCHEMA_VERSION, RunInfo, TrialResult
from ipcbench.results.store import RunWriter, load_run, new_run_id
from ipcbench.spec import SweepSpec, TrialSpec
from ipcbench.util.units import format_duration_ns, format_significant

STALL_S = 10.0
"""Longest wait of a single read or write before a trial is given up."""

EndStatus = Literal["complete", "interrupted", "out of budget"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, told after every trial."""

    done: int
    """Trials measured, of `total`."""
    total: int
    round_index: int
    rounds: int
    label: str
    """The trial that has just ended."""
    estimate: str
    """Its main figure, or why it has none."""
    elapsed_s: float
    warning: str = ""
    """Something the user should know now: a backend that was left out, a trial that failed."""


Listener = Callable[[Progress], None]
_Cell = tuple[TrialSpec, PreparedPayload]


def run_sweep(
    sweep: SweepSpec,
    results_root: Path,
    *,
    run_dir: Path | None = None,
    resume: Path | None = None,
    command: tuple[str, ...] = (),
    on_progress: Listener | None = None,
    stall_s: float = STALL_S,
) -> Path:
    """Carry out a sweep and return the folder of its results.

    Args:
        sweep: what to measure; with `resume`, the stored run's own sweep counts instead.
        results_root: folder in which a folder of the run's name is made.
        run_dir: the run's folder itself, instead.
        resume: folder of an interrupted run to go on with; what it holds is not measured again.
        command: command line that would repeat this, for the record.
        on_progress: called after every trial.
        stall_s: longest wait of a single read or write.

    Raises:
        UnknownBackend, BackendUnavailable, ConfigError: before anything is measured.
        StoreError: the folder cannot be written, or is not a run to go on with.
        KeyboardInterrupt: passed on after what was measured is safe and all processes are gone.
    """
    finished: tuple[TrialResult, ...] = ()
    if resume is not None:
        stored = load_run(resume)
        sweep, finished = SweepSpec.from_dict(stored.info.sweep), stored.trials + stored.controls
    cores_for(sweep.pin, sweep.readers + 1, allowed_cores())  # refuses cores that are not there
    payloads = [prepare_payload(sweep, size) for size in sweep.sizes]
    backends, skipped = select_backends(sweep, payloads)
    run_id = new_run_id() if run_dir is None else run_dir.name
    info = RunInfo(
        run_id=run_id,
        schema_version=SCHEMA_VERSION,
        started_unix_s=time.time(),
        command=command,
        sweep=sweep.as_dict(),
        payloads=tuple(one.as_dict() for one in payloads),
        machine=describe_machine(),
        versions=describe_versions(),
        skipped=skipped,
        floor=measure_floor(one.payload_bytes for one in payloads),
    )
    writer = RunWriter.resume(resume) if resume else RunWriter.create(run_dir or results_root / run_id, info)
    with writer:
        _Run(sweep, payloads, backends, writer, finished, on_progress or (lambda _: None), stall_s).carry_out()
    return writer.path


@dataclass(slots=True)
class _Run:
    """The state of a run while it goes on."""

    sweep: SweepSpec
    payloads: list[PreparedPayload]
    backends: dict[str, type[Backend]]
    writer: RunWriter
    finished: tuple[TrialResult, ...]
    tell: Listener
    stall_s: float
    started_s: float = field(default_factory=time.monotonic)
    done: int = 0
    groups: dict[tuple[str, bool], Group] = field(default_factory=dict)
    """By backend, and whether it is the twin's."""
    measured: list[TrialResult] = field(default_factory=list)

    def carry_out(self) -> None:
        """Measure round after round; leave the store with the right status."""
        status: EndStatus = "interrupted"
        rounds_done = 0
        self.done = len(self.finished)
        self.measured += self.finished
        for name, reason in self.writer.info.skipped.items():
            self._tell(0, name, "left out", f"{name} is left out: {reason}")
        try:
            with RunDir() as run_dir, self._switchboard(run_dir) as switchboard:
                while not (complete := self._is_complete(rounds_done)) and self._within_budget(rounds_done):
                    self._round(rounds_done, run_dir, switchboard)
                    rounds_done += 1
                status = "complete" if complete else "out of budget"
        finally:
            self.writer.update(replace(self.writer.info, status=status, rounds_done=rounds_done))

    @contextmanager
    def _switchboard(self, run_dir: RunDir) -> Iterator[Switchboard]:
        switchboard = Switchboard(run_dir.path, os.environ.get(CONTROL_HOST_VARIABLE))
        try:
            yield switchboard
        finally:
            for group in self.groups.values():
                group.kill()
            switchboard.close()

    def _is_complete(self, rounds_done: int) -> bool:
        """Return whether all rounds are done, and all medians as precise as they shall be."""
        if rounds_done < self.sweep.rounds or not self.sweep.precision_ratio:
            return rounds_done >= self.sweep.rounds
        return widest_ratio(self.measured) <= self.sweep.precision_ratio

    def _within_budget(self, rounds_done: int) -> bool:
        """Return whether another round would probably end within the budget; the first always begins."""
        elapsed_s = time.monotonic() - self.started_s
        return rounds_done == 0 or elapsed_s * (rounds_done + 1) / rounds_done <= self.sweep.budget_s

    def _heats(self, round_index: int) -> list[list[_Cell]]:
        """Return the round's trials in the order that the seed gives, without those that the store already holds.

        Those of one list differ in their backend alone, and take turns.
        """
        places = [(name, payload, False) for name in self.backends for payload in self.payloads]
        places += self._twin_places()
        stored = {replace(one.spec, turns=1) for one in self.finished}
        heats: dict[object, list[_Cell]] = {}
        for name, payload, twin in places:
            for mode in self.sweep.modes:
                trial = self.sweep.trial(name, payload.size, payload.payload_bytes, mode, round_index, twin=twin)
                if replace(trial, turns=1) not in stored:
                    together = (payload.size, mode) if trial.turns > 1 else trial
                    heats.setdefault(together, []).append((trial, payload))
        order = random.Random(f"{self.sweep.seed}/{round_index}")  # noqa: S311 - an order, not a secret
        for cells in heats.values():
            order.shuffle(cells)
        shuffled = list(heats.values())
        order.shuffle(shuffled)
        return shuffled

    def _twin_places(self) -> list[tuple[str, PreparedPayload, bool]]:
        """Return what is measured a second time in each round: the first spawned backend with the middle payload."""
        if not self.sweep.control:
            return []
        names = [name for name, backend in self.backends.items() if backend.capabilities.launcher != "inline"]
        return [(name, self.payloads[len(self.payloads) // 2], True) for name in names[:1]]

    def _round(self, round_index: int, run_dir: RunDir, switchboard: Switchboard) -> None:
        """Measure every cell once, on fresh processes: one group for each backend, idle while another is measured."""
        for cells in self._heats(round_index):
            for result in self._measure(cells, run_dir, switchboard):
                self.done += 1
                label = _label(result.spec)
                warning = f"{label} failed: {result.reason}" if result.status == "failed" else ""
                self._tell(round_index, label, _estimate(result), warning)
        for group in self.groups.values():
            group.end()
        self.groups.clear()

    def _measure(self, cells: Sequence[_Cell], run_dir: RunDir, switchboard: Switchboard) -> Iterator[TrialResult]:
        """Measure cells that take turns, or a single one, and yield their records once they are stored."""
        ready: list[tuple[_Cell, Group]] = []
        for trial, payload in cells:
            started_unix_s = time.time()
            try:
                ready.append(((trial, payload), self._group(trial, run_dir, switchboard)))
            except IpcbenchError as error:
                reason = f"the group did not start: {error}"
                result = failed_trial(trial, self.writer.next_trial_id, reason, started_unix_s)
                self.writer.append(result, {})
                yield result
        runs = [
            Trial(
                run_dir,
                self.backends[trial.backend],
                group,
                # without a common clock there is no common time to take turns by
                Plan.make(trial if group.clocks_agree else replace(trial, turns=1), payload.decode_ns, self.stall_s),
                self.writer.next_trial_id + number,
                usable_cores(),
            )
            for number, ((trial, payload), group) in enumerate(ready)
        ]
        for facts in run_all(runs):
            spec = facts.result.spec
            if not facts.group_is_sound:
                self.groups.pop((spec.backend, spec.twin)).kill()
            self.writer.append(facts.result, facts.samples)
            self.measured.append(facts.result)
            yield facts.result

    def _group(self, trial: TrialSpec, run_dir: RunDir, switchboard: Switchboard) -> Group:
        """Return the backend's processes of this round, started if they are not there yet."""
        found = self.groups.get((trial.backend, trial.twin))
        return found or self._launch(self.backends[trial.backend], trial, run_dir, switchboard)

    def _launch(self, backend: type[Backend], trial: TrialSpec, run_dir: RunDir, switchboard: Switchboard) -> Group:
        group = Group(backend.capabilities.launcher, self.sweep.readers, switchboard)
        for pid in group.all_pids():
            run_dir.watch(pid)
        self.groups[trial.backend, trial.twin] = group
        return group

    def _tell(self, round_index: int, label: str, estimate: str, warning: str) -> None:
        rounds = max(self.sweep.rounds, round_index + 1)
        places = len(self.backends) * len(self.payloads) + len(self._twin_places())
        self.tell(
            Progress(
                done=self.done,
                total=places * len(self.sweep.modes) * rounds,
                round_index=round_index,
                rounds=rounds,
                label=label,
                estimate=estimate,
                elapsed_s=time.monotonic() - self.started_s,
                warning=warning,
            )
        )


def _label(trial: TrialSpec) -> str:
    return f"{trial.backend} {trial.payload} {trial.size} {trial.mode}{' (again)' if trial.twin else ''}"


def _estimate(result: TrialResult) -> str:
    """Return the trial's main figure in a few characters."""
    if result.status != "ok":
        return result.status
    figure = result.main_figure
    if figure is None:
        return "no latency"
    if result.spec.mode == "saturate":
        return f"{format_significant(figure / 1e3)} k messages/s"
    return f"{'round trip' if result.spec.mode == 'pingpong' else 'p50'} {format_duration_ns(figure)}"
