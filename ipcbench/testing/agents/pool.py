"""Crews of agents: started when they are needed, kept for the next check, replaced when killed.

There is one kind of crew for each launcher. `spawn`: one process an agent, replaced one by one. `mpiexec`: all agents
are ranks of one launch, replaced as a whole. `inline`: an agent is a thread of this process; to kill it means that the
thread ends while its endpoint is neither closed nor ever used again, which is all that the others could see of a killed
process.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from ipcbench.backend import Launcher
from ipcbench.errors import TransportError
from ipcbench.testing.agents.client import Agent, ProcessAgent, ThreadAgent
from ipcbench.testing.agents.process import BOUND, LEAVE
from ipcbench.testing.door import Door
from ipcbench.testing.failure import LawBroken
from ipcbench.testing.starting import agent_command, import_path, mpiexec_command, start

_ENDING_S = 20.0


class Crew(ABC):
    """Agents numbered from 0."""

    @abstractmethod
    def muster(self, count: int) -> Sequence[Agent]:
        """Return `count` living agents; start those that are missing."""

    @abstractmethod
    def discard(self) -> None:
        """End all agents, whatever they are busy with; the next `muster` starts new ones."""

    def close(self) -> None:
        """End all agents, which have nothing to do."""
        self.discard()


class ThreadCrew(Crew):
    """Agents that are threads of this process."""

    def __init__(self) -> None:
        self._agents: list[ThreadAgent] = []

    def muster(self, count: int) -> Sequence[Agent]:
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


class ProcessCrew(Crew):
    """Agents that are processes, and what the suite holds for them. They can import what the suite could import when
    they were started; if that has changed, `muster` starts new ones.
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

    @abstractmethod
    def launcher_pids(self) -> set[int]:
        """Return the processes between the suite and its agents."""

    def pids(self) -> set[int]:
        """Return all processes of the crew."""
        return {agent.pid for agent in self.agents()} | self.launcher_pids()

    def filenos(self) -> set[int]:
        """Return all descriptors that the suite holds for the crew."""
        return {fileno for agent in self.agents() for fileno in agent.filenos()}


class SpawnCrew(ProcessCrew):
    """Agents that are processes of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._agents: dict[int, ProcessAgent] = {}

    def muster(self, count: int) -> Sequence[Agent]:
        self._refresh()
        missing = [n for n in range(count) if n not in self._agents or self._agents[n].killed]
        if missing:
            self._start(missing)
        return [self._agents[number] for number in range(count)]

    def _start(self, numbers: Sequence[int]) -> None:
        bound = [BOUND] if threading.current_thread() is threading.main_thread() else []
        started: dict[int, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        with Door() as door:
            for number in numbers:
                errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the agent closes it when it ends
                started[number] = (start(agent_command(door, str(number)) + bound, door, errors), errors)

            def check() -> None:
                for process, errors in started.values():
                    if process.poll() is not None:
                        said = os.pread(errors.fileno(), 4000, 0).decode(errors="replace")
                        raise TransportError(f"an agent ended at its start with exit code {process.returncode}: {said}")

            try:
                arrived = door.admit(len(numbers), check)
            except TransportError:
                for process, errors in started.values():
                    process.kill()
                    process.wait(_ENDING_S)
                    errors.close()
                raise
        for number, (pid, connection) in arrived.items():
            self._agents[number] = ProcessAgent(number, pid, connection, *started[number])

    def agents(self) -> Sequence[ProcessAgent]:
        return [agent for agent in self._agents.values() if not agent.killed]

    def launcher_pids(self) -> set[int]:
        return set()

    def discard(self) -> None:
        for agent in self.agents():
            agent.dismiss()
        self._agents.clear()


class _Launch:
    """One MPI launch: its launcher, its agents, and the file that they all write their stderr to."""

    def __init__(self, count: int) -> None:
        """Start `count` agents; rank r is agent r.

        Raises:
            TransportError: they have not reported.
        """
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self.agents: list[ProcessAgent] = []
        with Door() as door:
            command = [*mpiexec_command(), "-n", str(count), *agent_command(door, "-")]
            self.process = start(command, door, self.errors)
            try:
                arrived = door.admit(count, self._check)
            except TransportError:
                self.process.kill()
                self.end()
                raise
        self.agents = [ProcessAgent(n, *arrived[n], None, self.errors) for n in range(count)]

    def _check(self) -> None:
        if self.process.poll() is not None:
            said = os.pread(self.errors.fileno(), 4000, 0).decode(errors="replace")
            raise TransportError(f"the MPI launcher ended at once with exit code {self.process.returncode}: {said}")

    def is_whole(self) -> bool:
        """Return whether no agent was killed; with one, the launcher has ended them all."""
        return not any(agent.killed for agent in self.agents)

    def end(self) -> None:
        """End all agents, whatever they are busy with, and the launcher; remove what MPI leaves when it is killed."""
        for agent in self.agents:
            agent.dismiss()
        try:
            self.process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_ENDING_S)
        for path in {path for agent in self.agents for path in agent.shared_memory}:
            path.unlink(missing_ok=True)
        self.errors.close()


class MpiCrew(ProcessCrew):
    """Agents that are ranks. MPI begins and ends in all ranks of a launch together, so there is one launch for each
    number of agents, and none of its agents is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._launches: dict[int, _Launch] = {}

    def muster(self, count: int) -> Sequence[Agent]:
        self._refresh()
        launch = self._launches.get(count)
        if launch is not None and not launch.is_whole():
            self._launches.pop(count).end()
            launch = None
        if launch is None:
            launch = self._launches[count] = _Launch(count)
        return launch.agents

    def agents(self) -> Sequence[ProcessAgent]:
        return [agent for launch in self._launches.values() for agent in launch.agents if not agent.killed]

    def launcher_pids(self) -> set[int]:
        return {launch.process.pid for launch in self._launches.values()}

    def filenos(self) -> set[int]:
        return super().filenos() | {launch.errors.fileno() for launch in self._launches.values()}

    def discard(self) -> None:
        while self._launches:
            self._launches.popitem()[1].end()

    def close(self) -> None:
        agents = self.agents()
        with suppress(LawBroken):  # one that has gone already need not leave
            for call in [agent.start(LEAVE) for agent in agents]:
                call.result(_ENDING_S)
            for agent in agents:
                agent.has_ended(_ENDING_S)
        self.discard()


class Pool:
    """The crews of a suite's run, shared by all backends: agents take any backend, so few processes serve many."""

    def __init__(self) -> None:
        self._crews: dict[Launcher, ProcessCrew] = {"spawn": SpawnCrew(), "mpiexec": MpiCrew()}

    def crew(self, launcher: Launcher) -> Crew:
        """Return the crew of that launcher; threads are not shared, they cost nothing."""
        return self._crews[launcher] if launcher != "inline" else ThreadCrew()

    def pids(self) -> set[int]:
        """Return all processes that the pool keeps."""
        return {pid for crew in self._crews.values() for pid in crew.pids()}

    def filenos(self) -> set[int]:
        """Return all descriptors of this process that belong to the pool."""
        return {fileno for crew in self._crews.values() for fileno in crew.filenos()}

    def close(self) -> None:
        """End all agents; twice is fine, and a pool that is used again starts new ones."""
        for crew in self._crews.values():
            crew.close()
