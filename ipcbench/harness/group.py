"""A group of workers as the coordinator sees it: questions to all, answers from all, and one error for what failed."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self, cast

from ipcbench.backend import Launcher
from ipcbench.errors import TrialError, WorkerCrashed, WorkerTimeout
from ipcbench.harness.clocks import ASKING_S, QUESTIONS, Clocks, Offset, clock_identity
from ipcbench.hosts.remote import HostsLaunch
from ipcbench.machine.cgroup import memory_kills_count, memory_limit_bytes
from ipcbench.processes.control_channel import EXIT, ControlConnection, Switchboard
from ipcbench.processes.launch import LAUNCH_S, gather, launch
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s
from ipcbench.util.units import format_bytes

VERBS = "ipcbench.harness.worker:Worker"
_MOST_NAMED = 4
"""Roles that did not answer; further ones are counted."""
_ROOT = Path("/")
_CLOCK_S, _DEATH_S = 10.0, 1.0


def role_of(index: int) -> str:
    """Return the name of worker `index` of a group."""
    return "writer" if index == 0 else f"reader-{index - 1}"


class Group:
    """One writer and N readers, started for one backend, each a process that answers on its channel.

    They begin to start at once; `connect` waits until they have. Between the two, other groups may be started.

    Args:
        launcher: how to start them.
        readers: N.
        switchboard: where they connect to.
        roles: names of the processes in errors; by default writer, reader-0, reader-1 …
        python: another interpreter than this process's, which runs them by its own code.
        verbs: MODULE:FACTORY of what they can be asked; `clock` must be among it.
        on_hosts: the launch of all of them, if they are started on other hosts.
        addresses: IP address of each worker's host, if clocks of hosts are to be compared.

    Attributes:
        is_here: whether they run on this host.
        pids: process ID of each worker on its host, by its number.

    Raises:
        BackendUnavailable: the launcher is missing.
    """

    def __init__(
        self,
        launcher: Launcher,
        readers: int,
        switchboard: Switchboard,
        roles: tuple[str, ...] = (),
        python: str | None = None,
        verbs: str = VERBS,
        on_hosts: HostsLaunch | None = None,
        addresses: tuple[str, ...] = (),
    ) -> None:
        self.endpoints = readers + 1
        self._roles = roles or tuple(map(role_of, range(readers + 1)))
        self._memory_kills_count = memory_kills_count(_ROOT)
        self._switchboard = switchboard
        self._launch = on_hosts or launch(
            launcher, range(self.endpoints), switchboard, verbs, python=python, forked=python is None
        )
        self.is_here = on_hosts is None
        self._addresses = addresses
        self._clock_places: dict[int, dict[str, Any]] = {}
        self.pids: dict[int, int] = {}
        self._channels: dict[int, ControlConnection] = {}
        self.probed: tuple[tuple[int, ...] | None, float | None] = (None, None)
        """On which cores writer and reader 0 ran when they were last probed, None if unknown; and the result."""

    def connect(self, timeout_s: float = LAUNCH_S) -> Self:
        """Wait until all its processes have connected, and return it; kill them if they do not.

        Raises:
            WorkerCrashed: one ended before it connected.
            WorkerTimeout: not all have connected in time.
        """
        workers = gather(self._switchboard, [self._launch], dict(enumerate(self._roles)), timeout_s)
        self.pids = {index: pid for index, (pid, _) in workers.items()}
        self._channels = {index: channel for index, (_, channel) in workers.items()}
        try:
            answers = self.ask_all({"do": "clock"}, _CLOCK_S)
        except BaseException:
            self.kill()
            raise
        # a worker that cannot tell which clock it has may have one of its own
        self._clocks = tuple(answers[index]["clock"] or f"of {self._roles[index]}" for index in range(self.endpoints))
        self._our_clock = clock_identity()
        return self

    def _crashed(self, index: int) -> WorkerCrashed:
        """Return the error that says how a worker ended; see `Launch.crashed`."""
        error = self._launch.crashed(index, self._roles[index])
        if memory_kills_count(_ROOT) == self._memory_kills_count:
            return error
        limit_bytes = memory_limit_bytes(_ROOT)
        limit = f", of which the limit is {format_bytes(limit_bytes)}" if limit_bytes else ""
        return WorkerCrashed(f"{error}; the kernel was out of memory{limit}: use smaller messages or fewer readers")

    def compare_clocks(self) -> Clocks:
        """Return the workers' clocks as they are now; asks nothing if all workers have the same one.

        Raises:
            WorkerCrashed, WorkerTimeout: a worker does not answer.
        """
        if len(set(self._clocks)) == 1:
            return Clocks(self._clocks)
        first = {name: index for index, name in reversed(list(enumerate(self._clocks)))}
        if self._addresses:
            return Clocks(self._clocks, {name: self._offset_to_writer(index) for name, index in first.items()})
        offsets = {name: Offset() if name == self._our_clock else self._offset(first[name]) for name in first}
        return Clocks(self._clocks, offsets)

    def _offset_to_writer(self, index: int) -> Offset:
        """Return the offset of a worker's clock to the writer's, by the shortest way between their hosts."""
        if not index:
            return Offset()
        if index not in self._clock_places:
            question = {"do": "clock place", "address": self._addresses[index]}
            self._clock_places[index] = self.ask_one(index, question, _CLOCK_S)["place"]
        try:
            answer = self.ask_one(0, {"do": "ask clock", **self._clock_places[index]}, _CLOCK_S)
        except WorkerTimeout:
            self.ask_one(index, {"do": "echo"}, _CLOCK_S)  # raises if it has died, and so did not answer the writer
            raise
        if answer["offset_ns"] is not None:
            return Offset(answer["offset_ns"], answer["error_ns"])
        theirs, writers = self._offset(index), self._offset(0)
        return Offset(theirs.offset_ns - writers.offset_ns, theirs.error_ns + writers.error_ns)

    def _offset(self, index: int) -> Offset:
        """Return the offset of a worker's clock, from the answer with the least delay (as NTP does)."""
        offsets, begun_ns = list[Offset](), now_ns()
        while not offsets or (len(offsets) < QUESTIONS and now_ns() - begun_ns < 1e9 * ASKING_S):
            asked = now_ns()
            theirs = self.ask_one(index, {"do": "echo"}, _CLOCK_S)["clock_ns"]
            offsets.append(Offset.of_exchange(asked, theirs, now_ns()))
        return min(offsets, key=lambda offset: offset.error_ns)

    def ask_one(self, index: int, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Ask one worker; see `ask`."""
        return self.ask({index: question}, timeout_s)[index]

    def to_all(self, question: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the same question for every worker."""
        return dict.fromkeys(range(self.endpoints), question)

    def ask_all(self, question: dict[str, Any], timeout_s: float) -> dict[int, dict[str, Any]]:
        """Ask every worker the same; see `ask`."""
        return self.ask(self.to_all(question), timeout_s)

    def ask(self, questions: dict[int, dict[str, Any]], timeout_s: float) -> dict[int, dict[str, Any]]:
        """Send each worker its question, then wait for all answers; see `tell` and `hear`."""
        self.tell(questions)
        return self.hear(questions, timeout_s)

    def tell(self, questions: dict[int, dict[str, Any]]) -> None:
        """Send each worker its question.

        Raises:
            WorkerCrashed: a worker has ended; names its role, exit code and last words.
        """
        for index, question in questions.items():
            try:
                self._channels[index].send(question)
            except TrialError as error:
                raise self._crashed(index) from error

    def hear(self, questions: dict[int, dict[str, Any]], timeout_s: float) -> dict[int, dict[str, Any]]:
        """Wait for all answers, until the first error. If several arrive at once, a worker's death is raised first,
        because the other errors follow from it.

        Raises:
            WorkerCrashed: a worker ended; names its role, exit code and last words.
            WorkerTimeout: a worker did not answer in time; names all such roles.
            TrialError: a worker answered with an error; names its role and the error.
        """
        answers: dict[int, dict[str, Any]] = {}
        deadline = deadline_ns(timeout_s)
        waiting = {self._channels[index].fileno(): index for index in questions}
        while waiting:
            ready = wait(list(waiting), remaining_s(deadline))
            if not ready:
                silent = _listed([self._roles[index] for index in sorted(waiting.values())])
                verb = next(iter(questions.values()))["do"]
                raise WorkerTimeout(f"{silent} did not answer {verb!r} within {timeout_s:.0f} s")
            error: TrialError | None = None
            for descriptor in ready:
                index = waiting.pop(cast(int, descriptor))
                try:
                    answers[index] = self._answer(index)
                except WorkerCrashed:
                    raise
                except TrialError as answered:
                    error = error or answered
            if error is not None:
                self._require_alive(waiting)
                raise error
        return answers

    def _require_alive(self, waiting: dict[int, int]) -> None:
        """Raise WorkerCrashed if one of these workers has died; between hosts, what follows from its death may arrive
        before it.
        """
        deadline = deadline_ns(0.0 if self.is_here else _DEATH_S)
        while waiting and (ready := wait(list(waiting), remaining_s(deadline))):
            for descriptor in ready:
                try:
                    self._answer(waiting.pop(cast(int, descriptor)))
                except WorkerCrashed:
                    raise
                except TrialError:
                    continue

    def _answer(self, index: int) -> dict[str, Any]:
        try:
            answer = self._channels[index].receive(10.0)
        except WorkerTimeout:
            raise
        except TrialError as error:
            raise self._crashed(index) from error
        if not answer["ok"]:
            raise TrialError(f"{self._roles[index]}: {answer['error']}: {answer['text']}")
        return answer

    def all_pids(self) -> set[int]:
        """Return the process IDs of all of the group's processes on this host, a launcher included."""
        if not self.is_here:
            return set()
        return {*self.pids.values(), *(process.pid for process in self._launch.started)}

    def end(self) -> None:
        """Tell all workers to exit and wait for them; those that do not are killed."""
        for channel in self._channels.values():
            try:
                channel.send(EXIT)
            except TrialError:  # the worker has ended already
                continue
        self._launch.end()
        self._close()

    def kill(self) -> None:
        """End the group at once."""
        self._launch.kill()
        self._close()

    def _close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


def _listed(names: Sequence[str]) -> str:
    """Return names, of many the first few and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_MOST_NAMED])} and {more} more"
