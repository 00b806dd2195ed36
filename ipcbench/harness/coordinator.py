"""One trial on one group: create, open, probe, go, close, destroy; and the record of it, whatever happened.

What does not live here: the order of trials (sweep.py) and what the endpoints do meanwhile (worker.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ipcbench.backend import Address, Backend
from ipcbench.errors import IntegrityError, IpcbenchError
from ipcbench.harness.digest import Column, Digest
from ipcbench.harness.group import Group
from ipcbench.harness.placement import allowed_cores, cores_for
from ipcbench.harness.plan import Plan
from ipcbench.harness.probe import make_probe_file, probe_length
from ipcbench.harness.scene import Scene
from ipcbench.measure.machine import ConditionsProbe
from ipcbench.message import message_bytes
from ipcbench.result import Conditions, EndpointResult, Status, TrialResult
from ipcbench.spec import ChannelSpec, TrialSpec

MAX_BACKLOG_RATIO = 0.01
"""A paced trial whose writer stayed behind its schedule by more than this share of the window has failed."""

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
    """Carries out one trial.

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

    def run(self) -> Facts:
        """Return the trial's record; every ipcbench error becomes a failed trial with its reason."""
        started, clock = time.time(), time.monotonic()
        machine = ConditionsProbe()
        machine.start()
        try:
            answers, probes = self._measure()
            sound = True
            result, samples = self._record(answers)
            if result.status == "failed":
                samples = {}
        except IpcbenchError as error:
            result, samples = failed_trial(self._trial, self._trial_id, str(error), started), {}
            probes, sound = (None, None), False
        load, steal, throttled = machine.stop()
        conditions = Conditions(
            load_1min=load,
            steal_ratio=steal,
            throttled_s=throttled,
            probe_before_ns=probes[0],
            probe_after_ns=probes[1],
            clock_offset_ns=self._group.clock_offset_ns,
            clock_delay_ns=self._group.clock_delay_ns,
            clocks_agree=self._clocks_agree(),
        )
        result = replace(
            result,
            started_unix_s=started,
            duration_s=time.monotonic() - clock,
            conditions=conditions,
            notes=tuple(self._stamps(conditions)) + result.notes,
        )
        return Facts(result, samples, sound)

    def _clocks_agree(self) -> bool:
        return self._group.clock_offset_ns <= self._group.clock_delay_ns / 2

    def _measure(self) -> tuple[dict[int, dict[str, Any]], tuple[float | None, float | None]]:
        addresses: list[Address] = []
        try:
            for channel in self._channels():
                addresses.append(self._create(channel))  # noqa: PERF401 - each must be known once it exists
            address, *back = (one.as_dict() for one in addresses)
            request = {"do": "open", "address": address, "back": back, "plan": self._plan.as_dict()}
            self._group.ask_all({**request, "cores": self._cores}, _ANSWER_S)
            before = self._probe()
            answers = self._group.ask_all({"do": "go"}, self._plan.deadline_s())
            after = self._probe()
            self._group.ask_all({"do": "close"}, _ANSWER_S)
            if self._inline:  # after a failure the process goes, and its channels with it
                question = {"do": "destroy", "backend": self._trial.backend}
                for one in addresses:
                    self._group.ask_one(0, {**question, "address": one.as_dict()}, _ANSWER_S)
        finally:
            if not self._inline:
                for one in addresses:
                    self._backend.destroy(one)
        return answers, (before, after)

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
            self._trial, answers, processes, plan_stride=self._plan.stride, with_latency=self._clocks_agree()
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


def failed_trial(
    trial: TrialSpec, trial_id: int, reason: str, started_unix_s: float, status: Status = "failed"
) -> TrialResult:
    """Return the record of a trial that yielded no figures."""
    return TrialResult(trial_id, trial, status, reason, started_unix_s, 0.0)


def judge(
    trial: TrialSpec,
    endpoints: tuple[EndpointResult, ...],
    total_count: int,
    achieved_per_s: float | None,
    backlog_ns: float,
) -> tuple[Status, str]:
    """Return the status of a trial that ran to its end, and why it failed if it did.

    Args:
        trial: what was asked for.
        endpoints: what each endpoint found.
        total_count: messages that the writer says it sent, all phases.
        achieved_per_s: the writer's real rate; None unless paced.
        backlog_ns: how far behind its schedule the writer stayed.
    """
    for one in endpoints[1:]:
        found = one.integrity
        if found.errors_count or (trial.delivery == "every_message" and found.received_count != total_count):
            error = IntegrityError(
                f"{one.role} received {found.received_count} of {total_count} messages: {found.lost_count} lost, "
                f"{found.duplicated_count} duplicated, {found.reordered_count} reordered, {found.torn_count} torn"
            )
            return "failed", str(error)
        if not one.messages_count:
            return "failed", f"{one.role} saw no message of the measured window"
    if backlog_ns > MAX_BACKLOG_RATIO * trial.window_s * 1e9:
        return "failed", (
            f"the rate was not held: {achieved_per_s or 0:.4g} of {trial.rate_per_s:.4g} messages/s; the writer ended "
            f"{backlog_ns / 1e6:.3g} ms behind its schedule"
        )
    return "ok", ""
