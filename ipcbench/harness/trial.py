"""One trial on one group: create, open, probe, go, close, destroy; and the record of it, whatever happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ipcbench.backend import Address, Backend
from ipcbench.errors import IpcbenchError, WorkerTimeout
from ipcbench.harness.digest import Column, Digest, failed_trial, judge
from ipcbench.harness.group import Group
from ipcbench.harness.placement import allowed_cores, cores_for, make_probe_file, probe_length
from ipcbench.harness.plan import Plan
from ipcbench.machine.describe import ConditionsProbe
from ipcbench.processes.run_dir import Scene
from ipcbench.results.model import Conditions, TrialResult
from ipcbench.spec import ChannelSpec
from ipcbench.workload.message import message_bytes

MAX_STEAL_RATIO = 0.02
"""More of the machine's time given to others by the hypervisor than this, and the trial is stamped noisy."""

MAX_PROBE_CHANGE_RATIO = 1.6
"""A placement probe that changes by more than this during a trial stamps it noisy: the cores moved."""

MAX_FAULTS_PER_MESSAGE = 0.01
_ANSWER_S = 30.0
_PROBE_S = 2.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a trial yields besides its record."""

    result: TrialResult
    samples: dict[str, Column]
    """Columns by `role.column`, thinned to `keep` messages each; empty for a failed trial."""
    group_is_sound: bool
    """False if the group must be replaced before the next trial."""


class TrialRun:
    """Carries out one trial: `prepare`, `measure`, `complete` and `release`, in that order; then `facts`.

    Every ipcbench error on the way becomes a failed trial with its reason; the steps after it do nothing.

    Args:
        scene: the run's folder and the prefix of its names.
        backend: the transport.
        group: its processes.
        plan: the trial and its counts.
        trial_id: number of the trial in the run.
        usable_cores: how many processes can really run at once.
    """

    def __init__(
        self, scene: Scene, backend: type[Backend], group: Group, plan: Plan, trial_id: int, usable_cores: float
    ) -> None:
        self._scene = scene
        self._backend = backend()
        self._group = group
        self._plan = plan
        self._trial = plan.trial
        self._trial_id = trial_id
        self._inline = backend.capabilities.launcher == "inline"
        self._cores = cores_for(plan.trial.pin, plan.trial.readers + 1, allowed_cores())
        self._oversubscribed = plan.trial.readers + 1 > usable_cores
        self._addresses: list[Address] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._probes: tuple[float | None, float | None] = (None, None)
        self._error: IpcbenchError | None = None
        self._machine = ConditionsProbe()
        self._started_unix_s = self._started_s = 0.0

    def run(self) -> Facts:
        """Return the record of a trial that is measured on its own."""
        try:
            self.prepare()
            self._try(self._go)
            self.complete()
        finally:
            self.release()
        return self.facts()

    def prepare(self) -> None:
        """Open the endpoints."""
        self._started_unix_s, self._started_s = time.time(), time.monotonic()
        self._machine.start()
        self._try(self._open)

    def warm_up(self) -> None:
        """Have the endpoints do what comes before the window."""
        self._try(lambda: self._group.ask_all({"do": "warm up"}, self._plan.deadline_s()))

    def begin_turns(self, starts_ns: Sequence[int]) -> None:
        """Tell the endpoints when their turns are, and do not wait."""
        question = {"do": "measure", "starts_ns": list(starts_ns)}
        self._try(lambda: self._group.tell(self._group.to_all(question)))

    def end_turns(self, timeout_s: float) -> None:
        """Wait until the endpoints have had their turns."""
        self._try(lambda: self._group.hear(self._group.to_all({"do": "measure"}), timeout_s))

    def finish(self) -> None:
        """Have the endpoints do what comes after the window."""
        self._try(lambda: self._hear_out({"do": "finish"}))

    def complete(self) -> None:
        """Close the endpoints."""
        self._try(self._close)

    def release(self) -> None:
        """Remove the channels, whatever happened."""
        while self._addresses and not self._inline:
            address = self._addresses.pop()
            try:
                self._backend.destroy(address)
            except IpcbenchError as error:
                self._error = self._error or error

    def _try(self, step: Callable[[], object]) -> None:
        if self._error is None:
            try:
                step()
            except IpcbenchError as error:
                self._error = error
                self._group.kill()  # at once: what is left of it would disturb those that it takes turns with

    @property
    def plan(self) -> Plan:
        """The trial and its counts."""
        return self._plan

    def facts(self) -> Facts:
        """Return the trial's record."""
        if self._error is None:
            result, samples = self._record(self._answers)
            if result.status == "failed":
                samples = {}
        else:
            result, samples = failed_trial(self._trial, self._trial_id, str(self._error), self._started_unix_s), {}
            self._probes = (None, None)
        load, steal, throttled = self._machine.stop()
        conditions = Conditions(
            load_1min=load,
            steal_ratio=steal,
            throttled_s=throttled,
            probe_before_ns=self._probes[0],
            probe_after_ns=self._probes[1],
            clock_offset_ns=self._group.clock_offset_ns,
            clock_delay_ns=self._group.clock_delay_ns,
            clocks_agree=self._group.clocks_agree,
        )
        result = replace(
            result,
            started_unix_s=self._started_unix_s,
            duration_s=time.monotonic() - self._started_s,
            conditions=conditions,
            notes=tuple(self._stamps(conditions)) + result.notes,
        )
        return Facts(result, samples, self._error is None)

    def _open(self) -> None:
        for channel in self._channels():
            self._addresses.append(self._create(channel))  # each must be known once it exists
        address, *back = (one.as_dict() for one in self._addresses)
        request = {"do": "open", "address": address, "back": back, "plan": self._plan.as_dict()}
        self._group.ask_all({**request, "cores": self._cores}, _ANSWER_S)
        self._probes = (self._probe(), None)

    def _go(self) -> None:
        self._hear_out({"do": "go"})

    def _hear_out(self, question: dict[str, Any]) -> None:
        try:
            self._answers = self._group.ask_all(question, self._plan.deadline_s())
        except WorkerTimeout as error:
            if self._trial.mode == "paced":
                most = f"{self._trial.rate_per_s:,.0f} messages/s are far too many for it"
                raise WorkerTimeout(f"{error}: the transport hangs, or {most}") from error
            raise
        self._probes = (self._probes[0], self._probe())

    def _close(self) -> None:
        self._group.ask_all({"do": "close"}, _ANSWER_S)
        if self._inline:  # after a failure the process goes, and its channels with it
            question = {"do": "destroy", "backend": self._trial.backend}
            for one in self._addresses:
                self._group.ask_one(0, {**question, "address": one.as_dict()}, _ANSWER_S)

    def _create(self, channel: ChannelSpec) -> Address:
        """Make a channel: here, or in the endpoints' own process if it exists nowhere else."""
        if not self._inline:
            return self._backend.create(channel)
        question = {"do": "create", "backend": self._trial.backend, "channel": channel.as_dict()}
        return Address.from_dict(self._group.ask_one(0, question, _ANSWER_S)["address"])

    def _channels(self) -> Iterable[ChannelSpec]:
        """Yield the channel to all readers; for round trips, then each reader's own channel back."""
        there = ChannelSpec(
            name=self._scene.channel_name(),
            readers=self._trial.readers,
            max_message_bytes=message_bytes(self._trial.payload_bytes),
            delivery=self._trial.delivery,
            depth=self._trial.depth,
            wait=self._trial.wait,
        )
        yield there
        if self._trial.mode == "pingpong":
            for index in range(self._trial.readers):
                yield replace(there, name=self._scene.channel_name(), readers=1, processes=(index + 1, 0))

    def _probe(self) -> float | None:
        """Return the placement probe between writer and reader 0; None where they are threads of one process."""
        if self._inline:
            return None
        path = self._scene.directory / "probe"
        if not self._scene.probe_count:
            make_probe_file(path)
        base = self._scene.probe_count
        self._scene.probe_count += probe_length()
        question = {"do": "probe", "path": str(path), "base": base, "timeout_s": _PROBE_S}
        answers = self._group.ask({0: question, 1: question}, _ANSWER_S)
        half_ns: float | None = answers[0]["half_ns"]
        if half_ns is None:  # one side gave up: start the counter anew, on both sides
            self._scene.probe_count = 0
        return half_ns

    def _stamps(self, conditions: Conditions) -> Iterable[str]:
        if self._oversubscribed:
            yield "oversubscribed"
        if conditions.steal_ratio > MAX_STEAL_RATIO:
            yield f"noisy: {conditions.steal_ratio:.0%} steal"
        if conditions.throttled_s > 0:
            yield f"noisy: throttled {conditions.throttled_s * 1e3:.0f} ms"
        before, after = conditions.probe_before_ns, conditions.probe_after_ns
        if before and after and not 1 / MAX_PROBE_CHANGE_RATIO < after / before < MAX_PROBE_CHANGE_RATIO:
            yield f"noisy: placement probe {before:.0f} → {after:.0f} ns"
        if not conditions.clocks_agree:
            yield "clocks disagree: no one-way latency"

    def _record(self, answers: dict[int, dict[str, Any]]) -> tuple[TrialResult, dict[str, Column]]:
        cores = self._cores or (None,) * len(answers)
        processes = {index: (self._group.pids[index], cores[index]) for index in answers}
        digest = Digest(
            self._trial, answers, processes, plan_stride=self._plan.stride, with_latency=self._group.clocks_agree
        )
        endpoints = tuple(digest.endpoint(index) for index in sorted(answers))
        total = answers[0]["facts"]["total_count"]
        status, reason = judge(self._trial, endpoints, total, digest.achieved_rate_per_s(), digest.backlog_ns())
        notes = []
        if not (answers[0]["facts"]["steady"] and all(one.steady for one in endpoints)):
            notes.append("unsteady")
        faults = max(one.usage.minor_faults_count / max(1, one.messages_count) for one in endpoints)
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
            achieved_rate_per_s=digest.achieved_rate_per_s(),
            has_samples=status == "ok",
        )
        return result, digest.samples()
