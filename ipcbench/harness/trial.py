"""One trial on one group of processes, from creating its channels to its record, whatever happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ipcbench.backend import Address, Waits
from ipcbench.errors import IpcbenchError, WorkerTimeout
from ipcbench.harness.clocks import Clocks, Offset
from ipcbench.harness.digest import Column, Digest, failed_trial, judge
from ipcbench.harness.group import Group
from ipcbench.harness.hosts import HostChannels
from ipcbench.harness.placement import allowed_cores, cores_for, make_probe_file, probe_length
from ipcbench.harness.plan import Plan
from ipcbench.harness.variants import Contender
from ipcbench.machine.describe import ConditionsProbe, MachineLoad, last_core
from ipcbench.processes.run_dir import RunDir
from ipcbench.results.model import Conditions, EndpointResult, TrialResult, placement_differs
from ipcbench.spec import ChannelSpec, TrialSpec
from ipcbench.util.units import format_duration_ns
from ipcbench.workload.message import message_bytes

MAX_STEAL_RATIO = 0.02
"""A trial during which the hypervisor gave others more of the machine's time than this is stamped noisy."""

MAX_WAIT_RATIO = 0.02
"""A trial with an endpoint that waited for a core for more than this share of the window is stamped noisy, if …"""
MIN_OTHERS_CORES = 0.2
"""… processes other than the run's own took more than this many cores' worth of CPU time meanwhile. Endpoints and the
threads of transports also wait for each other, on a machine without neighbours."""

MAX_FAULTS_PER_MESSAGE = 0.01
_ANSWER_S = 30.0
_PROBE_S = 0.05


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What a trial yields."""

    result: TrialResult
    samples: dict[str, Column]
    """Columns by `role.column`, thinned; empty for a failed trial."""
    group_is_sound: bool
    """False if the group must be replaced before the next trial."""


class Trial:
    """Carries out one trial: by `run`, or step by step beside others.

    The steps are `open`, `opened`, `warm_up`, `turn` as often as planned, `finish`, `close`, `closed` and `release`;
    then `outcome`. Every ipcbench error on the way becomes a failed trial with its reason, and the steps after it do
    nothing.

    Args:
        run_dir: names the channels.
        contender: the transport.
        group: its processes.
        plan: the trial and its counts.
        trial_id: number of the trial in the run.
        usable_cores: how many processes can run at once.
        contents: paths of files with what to send, if the writer cannot make it.

    Attributes:
        hosts: those of the run, if it has several.
        in_steps: whether it is to go step by step also on its own: a slow link would take what is left of the warm-up
            into the window, unless that begins when the readers have read it.
        neighbour_pids: the busy processes that it asked for; the caller sets them before the first step.
    """

    def __init__(
        self,
        run_dir: RunDir,
        contender: Contender,
        group: Group,
        plan: Plan,
        trial_id: int,
        usable_cores: float,
        contents: Sequence[str] = (),
    ) -> None:
        self._run_dir = run_dir
        self._maker = contender.maker
        self._group = group
        self._plan = plan
        self._trial = plan.trial
        self._trial_id = trial_id
        self._contents = list(contents)
        self._inline = contender.launcher == "inline"
        self._made_by_worker = contender.launcher in {"inline", "fork"}
        self._cores = cores_for(plan.trial.pin, plan.trial.endpoints_count, allowed_cores())
        self.hosts = contender.maker.hosts if isinstance(contender.maker, HostChannels) else None
        endpoints = plan.trial.endpoints_count
        self._oversubscribed = self.hosts.are_oversubscribed(endpoints) if self.hosts else endpoints > usable_cores
        self.in_steps = bool(self.hosts) and plan.stride == 1
        self._addresses: list[Address] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._probes: tuple[float | None, float | None] = (None, None)
        self._clocks = Clocks()
        self._refusal = ""
        self._error: IpcbenchError | None = None
        self._message_s = 0.0
        self._started_unix_s = self._started_s = 0.0
        self.neighbour_pids: tuple[int, ...] = ()

    def run(self) -> TrialOutcome:
        """Measure the trial on its own and return its outcome."""
        machine = watch_machines([self])
        try:
            self.open()
            self.opened()
            self._try(self._look_around)
            self._try(lambda: self._hear_out({"do": "go"}))
            self.close()
            self.closed()
        finally:
            self.release()
        return self.outcome(machine())

    def open(self) -> None:
        """Have the endpoints open."""
        self._started_unix_s, self._started_s = time.time(), time.monotonic()
        self._try(self._open)

    def opened(self) -> None:
        """Wait until the endpoints are open."""
        self._try(lambda: self._group.hear(self._to_all({"do": "open"}), _ANSWER_S))

    def warm_up(self) -> None:
        """Have the endpoints do their work before the window."""

        def warm_up() -> None:
            self._look_around()
            answers = self._group.ask_all({"do": "warm up"}, self._plan.deadline_s())
            self._message_s = answers[0]["message_ns"] / 1e9

        self._try(warm_up)

    def turn(self, turns: int) -> None:
        """Measure the next of so many parts of the window."""
        if self._trial.turns != turns:
            self._trial = replace(self._trial, turns=turns)
        self._try(self._take_turn)

    def _take_turn(self) -> None:
        ready = self._to_all({"do": "ready", "window_ns": int(self._trial.window_s * 1e9 / self._trial.turns)})
        turn = self._to_all({"do": "turn"})
        writer = {0: turn.pop(0)}
        self._group.tell(ready)
        self._group.tell(turn)
        self._group.hear(ready, _ANSWER_S)
        self._group.tell(writer)
        self._hear({**writer, **turn})

    def finish(self) -> None:
        """Have the endpoints do their work after the window."""
        self._try(lambda: self._hear_out({"do": "finish"}))

    def close(self) -> None:
        """Have the endpoints close."""
        self._try(lambda: self._group.tell(self._to_all({"do": "close"})))

    def closed(self) -> None:
        """Wait until the endpoints are closed."""
        self._try(self._close)

    def release(self) -> None:
        """Remove the channels, whatever has happened."""
        while self._addresses and not self._inline:
            address = self._addresses.pop()
            try:
                self._maker.destroy(address)
            except IpcbenchError as error:
                self._error = self._error or error

    def _to_all(self, question: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the same question for every endpoint; the group may have more processes."""
        return dict.fromkeys(range(self._trial.endpoints_count), question)

    def _try(self, step: Callable[[], object]) -> None:
        if self._error is None:
            try:
                step()
            except IpcbenchError as error:
                self._error = error
                self._group.kill()  # at once: what is left of it would disturb the trials that it takes turns with

    @property
    def pids(self) -> set[int]:
        """Processes of the group, and those that keep cores busy beside it."""
        return {*self._group.all_pids(), *self.neighbour_pids}

    @property
    def pids_on_hosts(self) -> dict[int, int]:
        """Process IDs on their hosts, by the number of the endpoint."""
        return self._group.pids

    @property
    def spec(self) -> TrialSpec:
        """The trial."""
        return self._trial

    @property
    def message_s(self) -> float:
        """How long a message took in a saturated warm-up; 0 in other modes, and after a failure."""
        return self._message_s

    def outcome(self, machine: MachineLoad) -> TrialOutcome:
        """Return what the trial yields; `machine` is what happened on the machine meanwhile."""
        load, steal, throttled, others = machine
        if self._error is None:
            result, samples = self._record(self._answers, others)
            if result.status == "failed":
                samples = {}
        else:
            result, samples = failed_trial(self._trial, self._trial_id, str(self._error), self._started_unix_s), {}
            self._probes = (None, None)
        conditions = Conditions(
            load_1min=load,
            steal_ratio=steal,
            throttled_s=throttled,
            probe_before_ns=self._probes[0],
            probe_after_ns=self._probes[1],
            **self._clock_facts(),
            others_cpu_ratio=others,
        )
        result = replace(
            result,
            started_unix_s=self._started_unix_s,
            duration_s=time.monotonic() - self._started_s,
            conditions=conditions,
            notes=tuple(self._stamps(conditions, result)) + result.notes,
        )
        return TrialOutcome(result, samples, self._error is None)

    def _clock_facts(self) -> dict[str, Any]:
        """Return what the conditions say about clocks."""
        workers = range(len(self._clocks.names)) if self._clocks.offsets else ()
        offsets = [self._clocks.of(worker) for worker in workers]
        farthest = max(offsets, key=lambda offset: abs(offset.offset_ns), default=Offset())
        return {
            "clock_offset_ns": abs(farthest.offset_ns),
            "clock_delay_ns": 2 * farthest.error_ns,
            "clocks_agree": not self._refusal,
            "clock_error_ns": max(map(self._clocks.error_ns, workers), default=0.0),
            "clock_offsets_ns": tuple(offset.offset_ns for offset in offsets),
        }

    def _open(self) -> None:
        for channel in self._channels():
            self._addresses.append(self._create(channel))  # one by one: `release` must know each that exists
        request = self._open_request()
        questions = {index: {**each, **self._addresses_for(index)} for index, each in self._to_all(request).items()}
        self._group.tell(questions)

    def _addresses_for(self, index: int) -> dict[str, Any]:
        """Return the channels' addresses as an endpoint needs them."""
        maker = self._maker
        seen = [maker.seen_by(each, index) if isinstance(maker, HostChannels) else each for each in self._addresses]
        address, *back = (each.as_dict() for each in seen)
        return {"address": address, "back": back}

    def _open_request(self) -> dict[str, Any]:
        return {
            "do": "open",
            "plan": self._plan.as_dict(),
            "cores": self._cores,
            "contents": self._contents,
        }

    def _look_around(self) -> None:
        """Probe where the endpoints run, unless it is where they ran at the last probe; and compare their clocks."""
        cores, value = self._group.probed
        known = self._asks_probe and value is not None and cores is not None and cores == self._cores_now()
        self._probes = (value if known else self._probe(), None)
        self._clocks = self._group.compare_clocks()

    def _hear(self, questions: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        try:
            return self._group.hear(questions, self._plan.deadline_s())
        except WorkerTimeout as error:
            if self._trial.is_paced:
                rate = f"{self._trial.rate_per_s:,.0f} messages/s"
                raise WorkerTimeout(f"{error}: the transport hangs, or cannot sustain {rate}") from error
            raise

    def _hear_out(self, question: dict[str, Any]) -> None:
        questions = self._to_all(question)
        self._group.tell(questions)
        self._answers = self._hear(questions)
        self._clocks = self._clocks.until(self._group.compare_clocks())
        self._probes = (self._probes[0], self._probe())

    def _close(self) -> None:
        self._group.hear(self._to_all({"do": "close"}), _ANSWER_S)
        if self._inline:  # after a failure the process ends, and its channels with it
            question = {"do": "destroy", "backend": self._trial.registered_name}
            for address in self._addresses:
                self._group.ask_one(0, {**question, "address": address.as_dict()}, _ANSWER_S)

    def _create(self, channel: ChannelSpec) -> Address:
        """Create a channel: here, or by an endpoint's process if it exists only there, or only in its parent."""
        if not self._made_by_worker:
            return self._maker.create(channel)
        question = {"do": "create", "backend": self._trial.registered_name, "channel": channel.as_dict()}
        return Address.from_dict(self._group.ask_one(0, question, _ANSWER_S)["address"])

    def _channels(self) -> Iterable[ChannelSpec]:
        """Yield the channel to all readers; for round trips, then the channel back from each reader."""
        there = ChannelSpec(
            name=self._run_dir.channel_name(),
            readers=self._trial.readers,
            max_message_bytes=message_bytes(self._trial.payload_bytes),
            delivery=self._trial.delivery,
            depth=self._trial.depth,
            wait=self._trial.wait,
        )
        yield there
        if self._trial.mode == "pingpong":
            for index in range(self._trial.readers):
                yield replace(there, name=self._run_dir.channel_name(), readers=1, processes=(index + 1, 0))

    def _probe(self) -> float | None:
        """Return the placement probe between writer and reader 0; None if they are threads of one process, beside
        neighbours, which it would measure, or for a first look.
        """
        if not self._asks_probe:
            return None
        path = self._run_dir.path / "probe"
        if not self._run_dir.probe_count:
            make_probe_file(path)
        base = self._run_dir.probe_count
        self._run_dir.probe_count += probe_length()
        question = {"do": "probe", "path": str(path), "base": base, "timeout_s": _PROBE_S}
        answers = self._group.ask({0: question, 1: question}, _ANSWER_S)
        half_ns: float | None = answers[0]["half_ns"]
        if half_ns is None:  # one side gave up: both restart the counter
            self._run_dir.probe_count = 0
        self._group.probed = self._cores_now(), half_ns
        return half_ns

    @property
    def _asks_probe(self) -> bool:
        return self._group.is_here and not (self._inline or self._trial.neighbours or self._trial.look)

    def _cores_now(self) -> tuple[int, ...] | None:
        """Return the cores on which writer and reader 0 ran last; None if the system does not tell."""
        cores = tuple(core for index in (0, 1) if (core := last_core(self._group.pids[index])) is not None)
        return cores if len(cores) == 2 else None

    def _stamps(self, conditions: Conditions, result: TrialResult) -> Iterable[str]:
        if self._oversubscribed:
            yield "oversubscribed"
        if conditions.steal_ratio > MAX_STEAL_RATIO:
            yield f"noisy: {100 * conditions.steal_ratio:.0f} % steal"
        if conditions.throttled_s > 0:
            yield f"noisy: throttled {conditions.throttled_s * 1e3:.0f} ms"
        waiting = waiting_ratio(result)
        if waiting > MAX_WAIT_RATIO and has_neighbours(conditions.others_cpu_ratio):
            yield f"noisy: {100 * waiting:.0f} % of the time waiting for a core{self._asked_words()}"
        before, after = conditions.probe_before_ns, conditions.probe_after_ns
        if before and after and placement_differs((before, after)):
            yield f"noisy: placement probe {before:.0f} → {after:.0f} ns"
        if self._refusal:
            yield f"no one-way latency: {self._refusal}"
        elif conditions.clock_error_ns:
            yield f"clocks corrected: one-way times ± {format_duration_ns(conditions.clock_error_ns)}"

    def _asked_words(self) -> str:
        count = self._trial.neighbours
        return f", not only for the {count} neighbour{'s' * (count > 1)} asked for" if count else ""

    def _record(
        self, answers: dict[int, dict[str, Any]], others_cpu_ratio: float | None
    ) -> tuple[TrialResult, dict[str, Column]]:
        cores = self._cores or (None,) * len(answers)
        processes = {index: (self._group.pids[index], cores[index]) for index in answers}
        digest = Digest(self._trial, answers, processes, plan_stride=self._plan.stride, clocks=self._clocks)
        self._refusal = digest.refusal
        endpoints = tuple(digest.endpoint(index) for index in sorted(answers))
        total = answers[0]["facts"]["total_count"]
        # an endpoint also waits for its peers, and gives its core up to them; neighbours take no more than their share
        share = min(1.0, self._trial.neighbours / (os.cpu_count() or 1) + (others_cpu_ratio or 0.0))
        held_up_s = longest_wait_s(end for end in endpoints if not gives_up_its_core(end))
        waited_ns = min(1e9 * held_up_s, share * digest.sending_ns())
        status, reason = judge(self._trial, endpoints, total, digest.missed_rate(waited_ns), digest.impossible())
        notes = []
        if not (answers[0]["facts"]["steady"] and all(endpoint.steady for endpoint in endpoints)):
            notes.append("unsteady")
        if status == "ok" and (late_ns := digest.late_stall_ns()):
            notes.append(f"ended behind its schedule after a stall: {late_ns / 1e6:.3g} ms")
        faults = max(end.usage.minor_faults_count / max(1, end.messages_count) for end in endpoints)
        if faults > MAX_FAULTS_PER_MESSAGE and self._trial.mode == "saturate":
            notes.append(f"{faults:.2g} page faults per message")
        result = TrialResult(
            trial_id=self._trial_id,
            spec=self._trial,
            status=status,
            reason=reason,
            started_unix_s=0.0,
            duration_s=0.0,
            notes=tuple(notes),
            endpoints=endpoints,
            throughput_per_s=digest.throughput_per_s(),
            turn_counts=digest.turn_counts(),
            kept_counts=digest.kept_counts(),
            turn_rates_per_s=digest.turn_rates_per_s(),
            achieved_rate_per_s=digest.achieved_rate_per_s(),
            has_samples=status == "ok",
        )
        return result, digest.samples()


def has_neighbours(others_cpu_ratio: float | None) -> bool:
    """Return whether other processes took so much CPU time that waits for a core are their doing."""
    return (others_cpu_ratio or 0.0) * (os.cpu_count() or 1) > MIN_OTHERS_CORES


def gives_up_its_core(endpoint: EndpointResult) -> bool:
    """Return whether an endpoint mostly waits by yielding: then it waits for a core whenever it has nothing to do."""
    waits = endpoint.usage.waits
    return waits.yielded_count > waits.slept_count if isinstance(waits, Waits) else waits == "yield"


def longest_wait_s(endpoints: Iterable[EndpointResult]) -> float:
    """Return for how long the endpoint that waited longest for a core did so; 0 if unknown."""
    return max((end.usage.run_queue_wait_s or 0.0 for end in endpoints), default=0.0)


def waiting_ratio(result: TrialResult) -> float:
    """Return `longest_wait_s` as a share of the window."""
    if result.writer is None:
        return 0.0
    # between its turns an endpoint sleeps, and does not wait
    lasted_s = (result.writer.last_ns - result.writer.first_ns) / 1e9
    window_s = result.spec.window_s if result.spec.turns > 1 else lasted_s
    return min(1.0, longest_wait_s(result.endpoints) / window_s) if window_s > 0 else 0.0


def watch_machines(trials: Sequence[Trial]) -> Callable[[], MachineLoad]:
    """Begin to watch what the machines do on which trials run; return what ends that and returns it."""
    hosts = trials[0].hosts
    if hosts is not None:
        hosts.watch([trial.pids_on_hosts for trial in trials])
        return hosts.watched
    machine = ConditionsProbe()
    machine.start({os.getpid()}.union(*(trial.pids for trial in trials)))
    return machine.stop
