"""A run: rounds of trials in shuffled order, each stored at once, until all are measured, the budget is spent, or the
user stops it.

Cells of a round that differ only in backend are measured in turns: each backend sends a part of its window, then the
next backend does. A machine's speed changes from one tenth of a second to the next, most of all on a shared host, so
cells that are compared are measured as close in time as possible, but never at once. The coordinator gives the turns;
during a turn, it and the endpoints of all other backends wait.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ipcbench.errors import ConfigError, IpcbenchError, StoreError
from ipcbench.harness.digest import failed_trial
from ipcbench.harness.floor import measure_floor
from ipcbench.harness.group import Group
from ipcbench.harness.hosts import HostPlan, Hosts, started_hosts
from ipcbench.harness.patterns.call_trial import CallTrial
from ipcbench.harness.patterns.trial import PatternTrial, roles_of
from ipcbench.harness.placement import allowed_cores, cores_for
from ipcbench.harness.plan import Plan
from ipcbench.harness.prepare import PreparedPayload, prepare_payload, require_memory
from ipcbench.harness.schedule import Cell, Schedule
from ipcbench.harness.trial import Trial, TrialOutcome, watch_machines
from ipcbench.harness.variants import Contender, Field, settle
from ipcbench.machine.cgroup import memory_limit_bytes
from ipcbench.machine.describe import describe_machine, describe_versions, usable_cores
from ipcbench.machine.identity import differences, machine_differences
from ipcbench.processes.control_channel import HOST_VARIABLE, Switchboard
from ipcbench.processes.neighbours import busy_neighbours
from ipcbench.processes.run_dir import RunDir, require_room_for_sockets
from ipcbench.results.model import SCHEMA_VERSION, RunInfo, TrialResult
from ipcbench.results.store import Run, RunWriter, load_run, new_run_id, stored_sweep
from ipcbench.spec import SweepSpec, TrialSpec, Work
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.util.files import without_folders
from ipcbench.util.units import format_duration_ns, format_significant

STALL_S = 10.0
"""Longest wait of a single read or write before a trial is given up."""

_PRECISION_SEED = 7

_FILLS_PER_TURN = 4
"""A saturated turn has at least so many times the messages that fill the channel."""

_FIRST_PACE = 2.0
"""How many seconds a second of windows takes, until it is known."""

EndStatus = Literal["complete", "interrupted", "out of budget"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, reported after every trial."""

    done: int
    """Trials measured."""
    round_index: int
    rounds: int
    """How many there will probably be."""
    label: str
    """The trial that has just ended."""
    estimate: str
    """Its main figure, or why it has none."""
    elapsed_s: float
    left_s: float
    """How much longer it will probably take."""
    warning: str = ""
    """What the user should know now: a skipped backend, a failed trial."""
    so_far: Run | None = None
    """After the last trial of a round: the run as it is stored."""


Listener = Callable[[Progress], None]

_KINDS: Mapping[Work, type[Trial]] = {"broadcast": Trial, "rpc": CallTrial}


def run_sweep(
    sweep: SweepSpec,
    results_root: Path,
    *,
    results_dir: Path | None = None,
    resume: Path | None = None,
    command: tuple[str, ...] = (),
    on_progress: Listener | None = None,
    stall_s: float = STALL_S,
    hosts: HostPlan | None = None,
) -> Path:
    """Carry out a sweep and return the folder of its results.

    Args:
        sweep: what to measure.
        results_root: folder in which to make a folder named after the run.
        results_dir: the folder of results itself, in place of one in `results_root`.
        resume: folder of an interrupted run to continue; trials that it holds are not measured again. Of `sweep`, only
            the path of the sample counts.
        command: command line that would repeat this, for the record.
        on_progress: called after every trial.
        stall_s: longest wait of a single read or write.
        hosts: the hosts on which to run the endpoints; None runs all of them here.

    Raises:
        UnknownBackend, BackendUnavailable, Unsupported, ConfigError, HostError: before anything is measured.
        StoreError: the folder cannot be written, or is not a run that can be continued: it may have been measured on
            another machine, or with other versions.
        KeyboardInterrupt: passed on once all results are stored and all processes have ended.
    """
    stored = None if resume is None else load_run(resume)
    finished = stored.all_trials if stored else ()
    if stored is not None:
        sweep = replace(stored_sweep(stored), sample=sweep.sample)
    if sweep.trips == "auto":
        sweep = replace(sweep, trips="closed" if hosts is None else "paced")
    payloads = [prepare_payload(sweep, size) for size in sweep.sizes]
    where = results_dir or results_root / new_run_id()
    with ExitStack() as held:
        many: Hosts | None = None
        if hosts is None:
            _require_room(sweep)
        else:
            many = held.enter_context(started_hosts(hosts, sweep, [each.payload_bytes for each in payloads]))
        settled = settle(sweep, payloads) if many is None else many.settle(sweep)
        info = replace(_described(sweep, payloads, settled, many), run_id=where.name, command=command)
        if stored is not None:
            _require_unchanged(stored, info)
        writer = RunWriter.resume(resume) if resume else RunWriter.create(where, info)
        with writer:
            run = _Run(sweep, payloads, settled, writer, finished, on_progress or (lambda _: None), stall_s, many)
            run.carry_out()
    return writer.path


def _described(sweep: SweepSpec, payloads: Sequence[PreparedPayload], settled: Field, hosts: Hosts | None) -> RunInfo:
    """Return what a run that begins now says of itself."""
    return RunInfo(
        run_id="",
        schema_version=SCHEMA_VERSION,
        started_unix_s=time.time(),
        command=(),
        sweep=replace(sweep, sample=without_folders(sweep.sample)).as_dict(),
        payloads=tuple(payload.as_dict() for payload in payloads),
        machine=describe_machine(),
        versions=describe_versions(),
        skipped=settled.skipped,
        floor=measure_floor(payload.payload_bytes for payload in payloads),
        variant_versions=settled.versions,
        capabilities=settled.capabilities(),
        hosts=hosts.facts() if hosts else (),
        place=hosts.plan.without_names() if hosts else "",
    )


def _require_room(sweep: SweepSpec) -> None:
    """Raise ConfigError now if the host has no room for the processes of a sweep."""
    require_room_for_sockets()
    endpoints = sweep.most_readers + sweep.most_writers
    require_memory(endpoints - 1, memory_limit_bytes(Path("/")))
    cores_for(sweep.pin, endpoints, allowed_cores())


def _require_unchanged(stored: Run, now: RunInfo) -> None:
    """Refuse to mix the trials of two machines, of two versions, or of two payloads in one run.

    Raises:
        StoreError: something is not as it was.
        ConfigError: it was between hosts, and these are not named, or there were none.
    """
    before = stored.info
    if bool(before.hosts) != bool(now.hosts):
        was = f"between {len(before.hosts)} hosts" if before.hosts else "on one host"
        raise ConfigError("--resume", str(stored.path), f"with --hosts only a run between hosts; this was {was}")
    found = list(machine_differences(before.machine, now.machine))
    found += _version_differences(before.versions, now.versions)
    found += differences(*({"hosts": len(info.hosts), "place": info.place} for info in (before, now)))
    for number, (old, new) in enumerate(zip(before.hosts, now.hosts, strict=False), 1):
        unlike = machine_differences(old["machine"], new["machine"])
        unlike += _version_differences(old["versions"], new["versions"])
        found += (f"host {number}: {text}" for text in unlike)
    for name in dict.fromkeys((*before.variant_versions, *now.variant_versions)):
        sides = (info.variant_versions.get(name, {}) for info in (before, now))
        found += (f"{name}: {text}" for text in differences(*sides))
    sizes = [[payload.get("payload_bytes") for payload in info.payloads] for info in (before, now)]
    if sizes[0] != sizes[1]:
        found.append(f"encoded payloads: {sizes[0]} B → {sizes[1]} B")
    if found:
        raise StoreError(f"{stored.path}: begun under other conditions, begin a new run instead ({'; '.join(found)})")


def _version_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which versions differ; that of libzmq is known only where pyzmq is loaded, which may be by chance."""
    known = [{name: side[name] for name in side if name != "libzmq" or name in other}
             for side, other in ((before, now), (now, before))]  # fmt: skip
    return differences(*known)


@dataclass(slots=True)
class _Run:
    """The state of a run in progress."""

    sweep: SweepSpec
    payloads: list[PreparedPayload]
    settled: Field
    writer: RunWriter
    finished: tuple[TrialResult, ...]
    tell: Listener
    stall_s: float
    hosts: Hosts | None = None
    schedule: Schedule = field(init=False)
    started_s: float = field(default_factory=time.monotonic)
    done: int = 0
    windows_s: float = 0.0
    """Sum of the windows that were measured."""
    groups: dict[tuple[str, bool], Group] = field(default_factory=dict)
    """By backend, and whether it is the A/A control's group."""
    overheads_s: dict[tuple[int, str], float] = field(default_factory=dict)
    """Size and mode → what a trial of the last such batch took besides its window; with large messages, far more."""
    measured: list[TrialResult] = field(default_factory=list)
    unstored: list[TrialOutcome] = field(default_factory=list)
    """Of the last batch; they are stored while the next one opens, when the coordinator would only wait."""
    contents: dict[int, list[str]] = field(default_factory=dict)
    """Size → paths of files with what to send, for a payload of the user's own."""

    def __post_init__(self) -> None:
        self.schedule = Schedule(self.sweep, self.payloads, self.settled.contenders)

    def carry_out(self) -> None:
        """Measure round after round; store the run's final status."""
        status: EndStatus = "interrupted"
        rounds_done = 0
        self.done = len(self.finished)
        self.measured += self.finished
        for name, reason in self.writer.info.skipped.items():
            self._tell(0, name, "left out", f"{name} is left out: {reason}")
        try:
            with self._run_dir() as run_dir, self._switchboard(run_dir) as switchboard:
                self._keep_contents(run_dir)
                whole = True
                while whole and not self._is_complete(rounds_done):
                    whole = self._round(rounds_done, run_dir, switchboard)
                    rounds_done += whole
                status = "complete" if whole else "out of budget"
        finally:
            try:
                self._store()  # what is left if that was interrupted
            finally:
                self.writer.update(replace(self.writer.info, status=status, rounds_done=rounds_done))

    def _keep_contents(self, run_dir: RunDir) -> None:
        for payload in self.payloads:
            self.contents[payload.size] = [
                str(run_dir.keep(f"payload-{payload.size}-{number}", content))
                for number, content in enumerate(payload.contents)
            ]

    def _run_dir(self) -> AbstractContextManager[RunDir]:
        return nullcontext(self.hosts.run_dir) if self.hosts else RunDir()

    @contextmanager
    def _switchboard(self, run_dir: RunDir) -> Iterator[Switchboard]:
        if self.hosts is not None:
            try:
                yield self.hosts.switchboard
            finally:
                self._kill_groups()
            return
        switchboard = Switchboard(run_dir.path, os.environ.get(HOST_VARIABLE))
        try:
            for process in self.settled.processes:
                process.start(switchboard)
            yield switchboard
        finally:
            self._kill_groups()
            for process in self.settled.processes:
                process.kill()
            switchboard.close()

    def _kill_groups(self) -> None:
        for group in self.groups.values():
            group.kill()

    def _is_complete(self, rounds_done: int) -> bool:
        """Return whether all rounds are done and all medians are as precise as asked."""
        if rounds_done < self.sweep.rounds or not self.sweep.precision_ratio:
            return rounds_done >= self.sweep.rounds
        return widest_ratio(self.measured) <= self.sweep.precision_ratio

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def _pace(self) -> float:
        """Return how many seconds of the budget a second of windows takes."""
        return self._elapsed_s / self.windows_s if self.windows_s else _FIRST_PACE

    def _within_budget(self, batch: Sequence[Cell]) -> bool:
        """Return whether at least half of a batch would probably be measured within the budget; the first one always
        is.
        """
        took_s = sum(self._cost_s(trial) for trial, _ in batch)
        return not self.windows_s or self._elapsed_s + took_s / 2 <= self.sweep.budget_s

    def _cost_s(self, trial: TrialSpec) -> float:
        """Return how much of the budget a trial takes: its window, and besides what others of its size and mode took,
        or else of its size.
        """
        of_size = {mode: took_s for (size, mode), took_s in self.overheads_s.items() if size == trial.size}
        unknown_s = (self._pace - 1.0) * trial.window_s
        return trial.window_s + of_size.get(trial.mode, max(of_size.values(), default=unknown_s))

    def _round(self, round_index: int, run_dir: RunDir, switchboard: Switchboard) -> bool:
        """Measure every cell once, on fresh processes: one group per backend, idle while another is measured. Return
        whether the budget was enough.
        """
        batches = self.schedule.batches(round_index, self.finished)
        if batches and not self._within_budget(batches[0]):
            return False
        self._start_groups({(trial.backend, trial.twin) for batch in batches for trial, _ in batch}, switchboard)
        whole = True
        try:
            for batch in batches:
                whole = self._within_budget(batch)
                if not whole:
                    break
                self._measure(batch, run_dir, switchboard)
        finally:
            self._store()
        if whole and batches and self.measured:
            last = self.measured[-1]
            trials = tuple(trial for trial in self.measured if not trial.spec.twin)
            is_pattern = self.sweep.pattern != "broadcast"
            plain, patterns = ((), trials) if is_pattern else (trials, ())
            so_far = Run(self.writer.path, self.writer.info, plain, (), (), pattern_trials=patterns)
            self._tell(round_index, _label(last.spec), _estimate(last), "", so_far)
        for group in self.groups.values():
            group.end()
        self.groups.clear()
        return whole

    def _start_groups(self, names: Iterable[tuple[str, bool]], switchboard: Switchboard) -> None:
        """Start all groups of the round at the same time. One that does not start is tried again by its first trial,
        which then says why.
        """
        starting = {}
        for backend, twin in sorted(names):
            contender = self.settled.contenders[backend]
            if contender.python is None:  # workers of another ipcbench may not say whose they are
                with suppress(IpcbenchError):
                    starting[backend, twin] = self._start(contender, switchboard)
        try:
            for name in list(starting):
                with suppress(IpcbenchError):
                    self.groups[name] = starting[name].connect()
                del starting[name]
        finally:
            for group in starting.values():
                group.kill()

    def _measure(self, batch: Sequence[Cell], run_dir: RunDir, switchboard: Switchboard) -> None:
        """Measure the trials of a batch, and store those of the one before."""
        if self.hosts is not None:
            self.hosts.require_all()
        ready: list[tuple[Cell, Group]] = []
        for trial, payload in batch:
            started_unix_s = time.time()
            try:
                ready.append(((trial, payload), self._group(trial, run_dir, switchboard)))
            except IpcbenchError as error:
                reason = f"the group did not start: {error}"
                result = failed_trial(trial, self._next_trial_id, reason, started_unix_s)
                self.unstored.append(TrialOutcome(result, {}, group_is_sound=True))
        runs = [
            _KINDS.get(trial.pattern, PatternTrial)(
                run_dir,
                self.settled.contenders[trial.backend],
                group,
                Plan.make(trial, payload.decode_ns, self.stall_s),
                self._next_trial_id + number,
                usable_cores(),
                self.contents[payload.size],
            )
            for number, ((trial, payload), group) in enumerate(ready)
        ]
        begun_s = self._elapsed_s
        outcomes = self._beside_neighbours(runs)
        for outcome in outcomes:
            spec = outcome.result.spec
            if not outcome.group_is_sound:
                self.groups.pop((spec.backend, spec.twin)).kill()
        window_s = sum(trial.window_s for trial, _ in batch)
        self.windows_s += window_s
        first, _ = batch[0]
        self.overheads_s[first.size, first.mode] = max(0.0, self._elapsed_s - begun_s - window_s) / len(batch)
        self.unstored += outcomes

    @property
    def _next_trial_id(self) -> int:
        return self.writer.next_trial_id + len(self.unstored)

    def _store(self) -> None:
        """Store what was measured last, and say so; whoever was interrupted goes on where that happened."""
        while self.unstored:
            outcome = self.unstored[0]
            result = outcome.result
            if self.hosts is not None:
                result = replace(result, reason=self.hosts.without_names(result.reason))
            if result.trial_id == self.writer.next_trial_id:  # else it was stored in the interrupted call
                self.writer.append(result, outcome.samples)
            self.unstored.pop(0)
            self.measured.append(result)
            self.done += 1
            label = _label(result.spec)
            warning = f"{label} failed: {result.reason}" if result.status == "failed" else ""
            self._tell(result.spec.round_index, label, _estimate(result), warning)

    def _beside_neighbours(self, runs: Sequence[Trial]) -> list[TrialOutcome]:
        """Carry out the trials of a batch, beside as many busy processes as they ask for."""
        with busy_neighbours(runs[0].spec.neighbours if runs else 0) as pids:
            for run in runs:
                run.neighbour_pids = pids
            return run_all(runs, self._store)

    def _group(self, trial: TrialSpec, run_dir: RunDir, switchboard: Switchboard) -> Group:
        """Return the backend's processes of this round, started if necessary."""
        group = self.groups.get((trial.backend, trial.twin))
        if group is None:
            contender = self.settled.contenders[trial.backend]
            group = self._start(contender, switchboard).connect()
            self.groups[trial.backend, trial.twin] = group
        return group

    def _start(self, contender: Contender, switchboard: Switchboard) -> Group:
        """Start as many processes as the largest channel of the sweep has endpoints."""
        peers = self.sweep.most_readers + self.sweep.most_writers - 1
        if self.hosts is not None:
            return self.hosts.start_group(peers, contender.launcher)
        roles = roles_of(self.sweep.pattern, peers)
        return Group(contender.launcher, peers, switchboard, roles, contender.python)

    def _tell(self, round_index: int, label: str, estimate: str, warning: str, so_far: Run | None = None) -> None:
        elapsed_s = self._elapsed_s
        budget_left_s = self.sweep.budget_s - elapsed_s
        rounds, left_s = self.schedule.foreseen(round_index, self.done, budget_left_s, self._cost_s)
        self.tell(
            Progress(
                done=self.done,
                round_index=round_index,
                rounds=rounds,
                label=label,
                estimate=estimate,
                elapsed_s=elapsed_s,
                left_s=left_s,
                warning=warning,
                so_far=so_far,
            )
        )


def run_all(runs: Sequence[Trial], meanwhile: Callable[[], None] = lambda: None) -> list[TrialOutcome]:
    """Return the records of trials on as many groups, in their order; those that can be are measured together, and
    `meanwhile` is called while these open.
    """
    shared = [run for run in runs if run.spec.is_shared]
    if not shared:
        meanwhile()
    outcomes = dict(zip(shared, _run_together(shared, meanwhile), strict=True)) if shared else {}
    for run in runs:
        if run not in outcomes:
            outcomes[run] = _run_together([run])[0] if run.in_steps else run.run()
    return [outcomes[run] for run in runs]


def _run_together(runs: Sequence[Trial], meanwhile: Callable[[], None] = lambda: None) -> list[TrialOutcome]:
    """Measure trials of equal plans together; a failure in one leaves the others alone.

    All open and close at the same time. Between that, one works at a time; warm-ups, too, since an endpoint learns in
    them how to wait, see `ipcbench.sync.wait.Attempts`.
    """
    machine = watch_machines(runs)
    try:
        for run in runs:
            run.open()
        meanwhile()
        for run in runs:
            run.opened()
        for run in runs:
            run.warm_up()
        turns = turns_for(runs[0].spec, max(run.message_s for run in runs))
        for _ in range(turns):
            for run in runs:
                run.turn(turns)
        for run in runs:
            run.finish()
        for run in runs:
            run.close()
        for run in runs:
            run.closed()
    finally:
        for run in runs:
            run.release()
    load = machine()
    return [run.outcome(load) for run in runs]


def turns_for(trial: TrialSpec, message_s: float) -> int:
    """Return in how many turns a window is measured if the slowest transport takes `message_s` for a message.

    Fewer than planned if filling and emptying the channel would be much of a saturated turn.
    """
    least_s = _FILLS_PER_TURN * trial.depth * message_s
    return max(1, min(trial.turns, int(trial.window_s / least_s))) if least_s else trial.turns


def widest_ratio(trials: Iterable[TrialResult]) -> float:
    """Return how well the medians of a run are known so far, which is what `--precision` waits for.

    The largest distance of an interval's end from its median, as a share of the median, over all cells. Infinite while
    a cell has figures of a single round; 0 if no cell has any, since more rounds will not help.
    """
    cells: dict[object, list[float]] = {}
    for trial in trials:
        figure = trial.main_figure if trial.status == "ok" else None
        if figure and not trial.spec.tail:
            cells.setdefault(trial.spec.cell, []).append(figure)
    generator = np.random.default_rng(_PRECISION_SEED)
    widest = 0.0
    for figures in cells.values():
        estimate = median_estimate(figures, generator)
        if estimate is None:
            return math.inf
        interval = estimate.interval()
        widest = max(widest, interval.high / interval.estimate - 1.0, 1.0 - interval.low / interval.estimate)
    return widest


def pattern_label(trial: TrialSpec) -> str:
    """Return what is particular to a trial of a queue, fan-in or rpc."""
    _, *peers = roles_of(trial.pattern, trial.peers)
    one = peers[0].removesuffix("-0")
    more = f", batch {trial.batch}" if trial.batch > 1 else ""
    more += f", {trial.in_flight} in flight" if trial.in_flight > 1 else ""
    more += ", one killed" if trial.kill else ""
    return f"{trial.payload} {trial.size}, {trial.peers} {one}{'s' * (trial.peers > 1)}{more}"


def _label(trial: TrialSpec) -> str:
    if trial.pattern != "broadcast":
        return f"{trial.backend} {pattern_label(trial)}"
    kind = " (again)" if trial.twin else " (in one piece)" if trial.tail else ""
    beside = f" beside {trial.neighbours}" if trial.neighbours else ""
    return f"{trial.backend} {trial.payload} {trial.size} {trial.mode}{beside}{kind}"


def _estimate(result: TrialResult) -> str:
    """Return the trial's main figure in a few characters."""
    if result.status != "ok":
        return result.status
    figure = result.main_figure
    if figure is None:
        return "no latency"
    if result.spec.mode == "saturate":
        return f"{format_significant(figure / 1e3)} k {'calls' if result.spec.pattern == 'rpc' else 'messages'}/s"
    return f"{'round trip' if result.spec.mode == 'pingpong' else 'p50'} {format_duration_ns(figure)}"
