"""An agent as the suite sees it: it is asked by verb, waited for with a deadline, and killed."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import msgpack
import psutil

from ipcbench.errors import TrialError, WorkerTimeout
from ipcbench.processes.control_channel import EXIT, ControlConnection
from ipcbench.processes.launch import Launch
from ipcbench.testing.agents.verbs import Dispatcher
from ipcbench.testing.failure import AgentError, AgentHung, AgentLost, Failure
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

_LAST_BYTES = 4000
_DYING_S = 20.0
_STACKS_S = 3.0
_LOOK_AGAIN_S = 0.002


def until(ready: Callable[[], bool], within_s: float) -> bool:
    """Poll every few milliseconds until `ready()`; return whether it became true in time."""
    stop = now_ns() + int(within_s * 1e9)
    pause = threading.Event()
    while not ready():
        if now_ns() >= stop:
            return False
        pause.wait(_LOOK_AGAIN_S)
    return True


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A request that an agent has not answered yet."""

    agent: Agent
    number: int
    label: str
    """Who was asked for what, as a verdict says it."""

    def result(self, within_s: float) -> Any:
        """Wait for the call's value.

        Raises:
            AgentError: the call raised.
            AgentHung: it has not returned by then.
            AgentLost: the agent ended.
        """
        answer = self.agent.collect(self, within_s)
        if not answer["done"]:
            raise AgentError(self.label, Failure.from_dict(answer["value"]))
        return answer["value"]


class Agent(ABC):
    """A thread or a process that answers requests one after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.killed = False
        self._requests = 0
        self._answers: dict[int, dict[str, Any]] = {}

    def start(self, verb: str, label: str = "", **arguments: Any) -> PendingCall:
        """Send a request; the call gives its answer."""
        self._requests += 1
        self._send({"do": verb, "number": self._requests, "arguments": arguments})
        return PendingCall(self, self._requests, label or f"agent {self.number}, {verb}")

    def collect(self, call: PendingCall, within_s: float) -> dict[str, Any]:
        """Return the call's answer; answers to other calls that come in between are kept for them."""
        deadline = deadline_ns(within_s)
        while call.number not in self._answers:
            answer = self._receive(remaining_s(deadline) or 0.0)
            if answer is None:
                raise AgentHung(f"{call.label} did not return within {within_s:g} s\n{self.stacks()}")
            self._answers[answer["number"]] = answer
        return self._answers.pop(call.number)

    @abstractmethod
    def _send(self, request: dict[str, Any]) -> None:
        """Pass a request to the agent."""

    @abstractmethod
    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next answer, or None if none comes in time."""

    @abstractmethod
    def stacks(self) -> str:
        """Return the current stacks of the agent's threads."""

    @abstractmethod
    def kill(self) -> None:
        """End the agent without any clean-up, and wait until it has ended."""

    @abstractmethod
    def leave(self) -> None:
        """Have the agent end as a program that is finished, and wait until it has ended."""

    @abstractmethod
    def dismiss(self) -> None:
        """End the agent, whatever it is busy with; the suite needs it no longer."""


class ThreadAgent(Agent):
    """An agent that is a thread of this process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._dispatcher = Dispatcher(number)
        self._inbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._outbox: SimpleQueue[bytes] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"agent-{number}", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while (request := self._inbox.get()) is not None:
            self._outbox.put(msgpack.packb(self._dispatcher.answer(request)))

    def _send(self, request: dict[str, Any]) -> None:
        self._inbox.put(request)

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = msgpack.unpackb(self._outbox.get(timeout=timeout_s))
        except Empty:
            return None
        return answer

    def stacks(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "(its thread has ended)"

    def kill(self) -> None:
        self.killed = True
        self._inbox.put(None)
        self._thread.join(_DYING_S)

    def leave(self) -> None:
        self.kill()

    def dismiss(self) -> None:
        self.killed = True
        self._inbox.put(None)


def _process_of(pid: int) -> psutil.Process | None:
    """Return the process that has this number now, not one that gets it later; None if there is none."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


class ProcessAgent(Agent):
    """An agent in a process of its own.

    Args:
        number: which agent it is.
        pid: its process.
        channel: its control channel.
        launch: what started it; a spawned agent has its own, the ranks of an MPI launch share theirs.
    """

    def __init__(self, number: int, pid: int, channel: ControlConnection, launch: Launch) -> None:
        super().__init__(number)
        self.pid = pid
        self._process = _process_of(pid)
        self._channel = channel
        self._launch = launch

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self._channel.send(request)
        except TrialError as error:
            raise self._lost() from error

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            return self._channel.receive(timeout_s)
        except WorkerTimeout:
            return None
        except TrialError as error:
            raise self._lost() from error

    def _lost(self) -> AgentLost:
        how, last = self._launch.how_it_ended(self.number), self._launch.tail(_LAST_BYTES)
        return AgentLost(f"agent {self.number} {how}\n{last}")

    def stacks(self) -> str:
        before = self._launch.output_size()
        self._signal(signal.SIGUSR1)
        until(lambda: "_run_module_as_main" in self._launch.tail(_LAST_BYTES, before), _STACKS_S)
        return self._launch.tail(_LAST_BYTES, before) or "(it did not say where it is)"

    def kill(self) -> None:
        self._strike()
        if not self.has_ended(_DYING_S):
            raise AgentHung(f"agent {self.number} survived being killed for {_DYING_S:g} s")
        self._release()

    def leave(self) -> None:
        self.tell_to_leave()
        if not self.has_ended(_DYING_S):
            raise AgentHung(f"agent {self.number} did not end within {_DYING_S:g} s\n{self.stacks()}")
        self.killed = True
        self._release()

    def tell_to_leave(self) -> None:
        """Tell the agent to end once it has answered what it was asked."""
        self._send(EXIT)

    def dismiss(self) -> None:
        if not self.killed:
            self._strike()
            self._release()

    def _strike(self) -> None:
        self.killed = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                self._process.send_signal(number)

    def has_ended(self, within_s: float) -> bool:
        """Wait until the control channel closes, which it does with the process; return whether it did in time."""
        deadline = deadline_ns(within_s)
        try:
            while True:
                self._channel.receive(remaining_s(deadline))
        except WorkerTimeout:
            return False
        except TrialError:
            return True

    def _release(self) -> None:
        """Close the control channel, and reap a process that has a launch to itself."""
        self._channel.close()
        if self._launch.launcher == "spawn":
            self._launch.end(_DYING_S)

    def filenos(self) -> set[int]:
        """Return the descriptors that the suite has open for this agent."""
        return set() if self.killed else {self._channel.fileno(), self._launch.output.fileno()}
