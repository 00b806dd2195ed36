"""Pools of agents: started when they are needed, kept for the next check, replaced when killed.

There is one kind of pool for each launcher. `spawn`: each agent is a process, replaced by itself. `mpiexec` and
`fork`: the agents are those of one launch, replaced as a whole. `inline`: an agent is a thread of this process; to kill
it is to end the thread while its endpoint is neither closed nor ever used again, which is all that others see of a
killed process.
"""

from __future__ import annotations

import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ipcbench.backend import Launcher
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.launch import Launch, find_mpiexec, gather, import_path, launch
from ipcbench.spec import NAME_PREFIX
from ipcbench.testing.agents.client import Agent, ProcessAgent, ThreadAgent
from ipcbench.testing.failure import LawBroken
from ipcbench.util.files import temporary_folder

_VERBS = "ipcbench.testing.agents.verbs:Dispatcher"
_ENDING_S = 20.0


class Pool(ABC):
    """Agents numbered from 0."""

    @abstractmethod
    def acquire(self, count: int) -> Sequence[Agent]:
        """Return `count` living agents; start those that are missing."""

    @abstractmethod
    def discard(self) -> None:
        """End all agents, whatever they are busy with; the next `acquire` starts new ones."""

    def close(self) -> None:
        """End all agents, which are idle."""
        self.discard()


class ThreadPool(Pool):
    """Agents that are threads of this process."""

    def __init__(self) -> None:
        self._agents: list[ThreadAgent] = []

    def acquire(self, count: int) -> Sequence[Agent]:
        for number in range(count):
            if number == len(self._agents):
                self._agents.append(ThreadAgent(number))
            elif self._agents[number].killed:
                self._agents[number] = ThreadAgent(number)
        return self._agents[:count]

    def discard(self) -> None:
        for agent in self._agents:
            agent.dismiss()
        self._agents.clear()


class ProcessPool(Pool):
    """Agents that are processes. They can import what the suite could import when they were started; if that has
    changed, `acquire` starts new ones.
    """

    def __init__(self) -> None:
        self._import_path = import_path()

    def _refresh(self) -> None:
        if self._import_path != import_path():
            self.discard()
            self._import_path = import_path()

    @abstractmethod
    def agents(self) -> Sequence[ProcessAgent]:
        """Return the agents that were not killed."""

    def pids(self) -> set[int]:
        """Return all processes of the pool."""
        return {agent.pid for agent in self.agents()}

    def filenos(self) -> set[int]:
        """Return all descriptors that the suite has open for the pool."""
        return {fileno for agent in self.agents() for fileno in agent.filenos()}


def _start(
    launcher: Launcher, groups: Sequence[Sequence[int]], *, bound: bool
) -> tuple[list[Launch], list[ProcessAgent]]:
    """Start agents, each group of numbers by a launch of its own; return the launches and the agents, in order.

    Raises:
        BackendUnavailable: the launcher is missing.
        TrialError: the agents have not all reported.
    """
    folder = tempfile.TemporaryDirectory(prefix=f"{NAME_PREFIX}agents-{os.getpid()}-", dir=temporary_folder())
    with folder, Switchboard(Path(folder.name)) as switchboard:
        variables = {"PYTHONFAULTHANDLER": "1"}
        launches = [
            launch(launcher, numbers, switchboard, _VERBS, bound=bound, environment=variables) for numbers in groups
        ]
        workers = gather(switchboard, launches, {number: f"agent {number}" for group in groups for number in group})
    return launches, [ProcessAgent(n, *workers[n], group) for group in launches for n in group.indices]


class SpawnPool(ProcessPool):
    """Agents that are processes of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._agents: dict[int, ProcessAgent] = {}

    def acquire(self, count: int) -> Sequence[Agent]:
        self._refresh()
        missing = [[n] for n in range(count) if n not in self._agents or self._agents[n].killed]
        if missing:
            bound = threading.current_thread() is threading.main_thread()
            self._agents.update((agent.number, agent) for agent in _start("spawn", missing, bound=bound)[1])
        return [self._agents[number] for number in range(count)]

    def agents(self) -> Sequence[ProcessAgent]:
        return [agent for agent in self._agents.values() if not agent.killed]

    def discard(self) -> None:
        for agent in self.agents():
            agent.dismiss()
        self._agents.clear()


class LaunchPool(ProcessPool):
    """Agents that are ranks, or children of one parent. MPI begins and ends in all ranks of a launch together, so there
    is one launch for each number of agents, and none of its agents is left out.
    """

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher
        self._launches: dict[int, tuple[Launch, list[ProcessAgent]]] = {}

    def acquire(self, count: int) -> Sequence[Agent]:
        self._refresh()
        if count in self._launches and any(agent.killed for agent in self._launches[count][1]):
            self._end(count)  # of MPI's, the launcher has ended all
        if count not in self._launches:
            (group,), agents = _start(self._launcher, [range(count)], bound=False)
            self._launches[count] = (group, agents)
        return self._launches[count][1]

    def _end(self, count: int) -> None:
        """End all agents of a launch, whatever they are busy with."""
        group, agents = self._launches.pop(count)
        for agent in agents:
            agent.dismiss()
        group.end(_ENDING_S)

    def agents(self) -> Sequence[ProcessAgent]:
        return [agent for _, agents in self._launches.values() for agent in agents if not agent.killed]

    def pids(self) -> set[int]:
        return super().pids() | {process.pid for group, _ in self._launches.values() for process in group.started}

    def filenos(self) -> set[int]:
        files = (file for group, _ in self._launches.values() for file in (group.output, group.ended))
        return super().filenos() | {file.fileno() for file in files if file is not None}

    def discard(self) -> None:
        for count in tuple(self._launches):
            self._end(count)

    def close(self) -> None:
        agents = self.agents()
        with suppress(LawBroken):  # one that has gone already need not leave
            for agent in agents:
                agent.tell_to_leave()
            all(agent.has_ended(_ENDING_S) for agent in agents)
        self.discard()


class Pools:
    """The pools of a suite's run, shared by all backends: agents take any backend, so few processes serve many."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pools: dict[Launcher, ProcessPool] = {
            "spawn": SpawnPool(),
            "fork": LaunchPool("fork"),
            "mpiexec": LaunchPool("mpiexec"),
        }

    def pool(self, launcher: Launcher) -> Pool:
        """Return the pool of that launcher; threads are not shared, they cost nothing.

        Raises:
            BackendUnavailable: the launcher is missing.
        """
        if launcher == "mpiexec":
            find_mpiexec()
        return self._pools[launcher] if launcher != "inline" else ThreadPool()

    def pids(self) -> set[int]:
        """Return all processes of the pools."""
        return {pid for pool in self._pools.values() for pid in pool.pids()}

    def filenos(self) -> set[int]:
        """Return all descriptors of this process that belong to the pools."""
        return {fileno for pool in self._pools.values() for fileno in pool.filenos()}

    def close(self) -> None:
        """End all agents; twice is fine, and pools that are used again start new ones. A forked child ends none: they
        are its parent's.
        """
        if os.getpid() != self._pid:
            return
        for pool in self._pools.values():
            pool.close()
