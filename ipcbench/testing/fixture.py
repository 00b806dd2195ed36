"""Where laws are checked: a bench gives labs, a lab is one channel with an agent at each end."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ipcbench.backend import Address, Backend, Capabilities
from ipcbench.spec import NAME_PREFIX, ChannelSpec, Delivery
from ipcbench.testing.agents.client import Agent, Call, ThreadAgent
from ipcbench.testing.agents.pool import Pool, Pools
from ipcbench.testing.agents.verbs import Role, Target
from ipcbench.testing.failure import AgentError, Failure, LawBroken, LawSkipped, require
from ipcbench.testing.leaks import remove_files

PATIENCE_S = 10.0
"""Time-out given to a call that should succeed. Long, since the machine may be busy; costs nothing if the call does."""

DEADLINE_S = 30.0
"""How long an agent may take over one request before it counts as hung."""

SHORT_S = 0.03
"""Time-out given to a call that should time out."""

_HELLO_SEED = 2**63
_FIRST_HELLO_S = 0.02
_LONGEST_HELLO_S = 1.0
_MOST_HELLOS = 16


class End:
    """One end of a lab's channel: an agent, and the endpoint that it has open or will open."""

    def __init__(self, lab: Lab, role: Role, index: int, agent: Agent) -> None:
        self._lab = lab
        self.role = role
        self.index = index
        self.agent = agent
        self.handle = lab.bench.next_number()
        self.label = role if role == "writer" else f"reader {index}"

    def start_open(self) -> Call:
        """Begin to open the endpoint."""
        lab = self._lab
        return self.agent.start(
            "open",
            f"opening {self.label}",
            target=lab.bench.target,
            address=lab.address.as_dict(),
            role=self.role,
            index=self.index,
            handle=self.handle,
        )

    def open(self) -> None:
        """Open the endpoint."""
        self.start_open().result(DEADLINE_S)

    def start(self, scenario: str, **arguments: Any) -> Call:
        """Begin a scenario of scenarios.py."""
        size = f" {arguments['size']} bytes" if arguments.get("size") else ""
        label = f"{self.label} ({scenario.replace('_', ' ')}{size})"
        return self.agent.start("play", label, scenario=scenario, handle=self.handle, arguments=arguments)

    def play(self, scenario: str, **arguments: Any) -> Any:
        """Carry out a scenario and return its value."""
        return self.start(scenario, **arguments).result(DEADLINE_S)

    def write(self, sequence: int, size: int = 64, kind: str = "bytes", timeout_s: float | None = PATIENCE_S) -> None:
        """Write one message of the lab's stream."""
        seed = self._lab.seed
        found = self.play("write", seed=seed, sequence=sequence, size=size, timeout_s=timeout_s, kind=kind)
        if found["failure"]:
            raise AgentError(self.label, Failure.from_dict(found["failure"]))

    def start_read(self, sequence: int, size: int = 64, timeout_s: float | None = PATIENCE_S) -> Call:
        """Begin to read what should be that message of the lab's stream; `check_read` judges the result."""
        return self.start("read", timeout_s=timeout_s, seed=self._lab.seed, sequence=sequence, size=size)

    def check_read(self, call: Call, sequence: int, size: int = 64) -> None:
        """Wait for a `start_read` and require that it was that message."""
        found = call.result(DEADLINE_S)
        what = f"{self.label}, message {sequence} of {size} bytes"
        if found["failure"]:
            raise AgentError(what, Failure.from_dict(found["failure"]))
        require(found["plain"], f"{what}: read returned {found['kind']}, not a one-dimensional memoryview of bytes")
        require(found["same"], f"{what}: got {found['size']} bytes that are not those of the message")

    def read(self, sequence: int, size: int = 64) -> None:
        """Read one message and require that it is that one of the lab's stream."""
        self.check_read(self.start_read(sequence, size), sequence, size)

    def close(self) -> None:
        """Close the endpoint."""
        self.play("close")

    def kill(self) -> None:
        """Kill the agent."""
        self.agent.kill()


class Lab:
    """One channel, its writer's end and its readers' ends; opened, closed and removed by whoever asked for it.

    Args:
        bench: what the lab stands on.
        address: the channel, which exists.
        agents: who takes the writer's end and those of reader 0, 1 …
    """

    def __init__(self, bench: Bench, address: Address, agents: Sequence[Agent]) -> None:
        self.bench = bench
        self.address = address
        self.seed = bench.next_number()
        self.writer = End(self, "writer", 0, agents[0])
        self.readers = [End(self, "reader", index, agent) for index, agent in enumerate(agents[1:])]
        self.ends = [self.writer, *self.readers]
        self.destroyed = False

    def open(self, order: Sequence[int] | None = None) -> None:
        """Open all ends, one after the other: the writer first, or in `order`, in which 0 is the writer and i + 1 is
        reader i. Under an MPI launcher the calls begin in that order, and then all are waited for.
        """
        ends = self.ends if order is None else [self.ends[number] for number in order]
        if self.bench.can.launcher == "mpiexec":
            for call in [end.start_open() for end in ends]:
                call.result(DEADLINE_S)
        else:
            for end in ends:
                end.open()

    def settle(self) -> None:
        """Send a greeting until all readers have got the same one, so that a fault at the start of the stream, which is
        law C5's matter, does not show in every other law.
        """
        wait_s = _FIRST_HELLO_S
        for number in range(_MOST_HELLOS):
            found = self.writer.play("write", seed=_HELLO_SEED, sequence=number, size=16, timeout_s=PATIENCE_S)
            if found["failure"]:
                raise AgentError("writer, first message", Failure.from_dict(found["failure"]))
            hello = {"seed": _HELLO_SEED, "sequence": number, "timeout_s": wait_s}
            reads = [reader.start("read_until", **hello) for reader in self.readers]
            arrived = [call.result(DEADLINE_S) for call in reads]
            if all(arrived):
                return
            wait_s = min(2 * wait_s, _LONGEST_HELLO_S)
        raise LawBroken(f"all ends are open, but of {_MOST_HELLOS} messages none reached all readers")

    def exchange(self, sequence: int, size: int = 64, kind: str = "bytes") -> None:
        """Write one message while all readers wait for it; require that each gets it unchanged."""
        reads = [reader.start_read(sequence, size) for reader in self.readers]
        self.writer.write(sequence, size, kind)
        for reader, call in zip(self.readers, reads, strict=True):
            reader.check_read(call, sequence, size)

    def close(self) -> None:
        """Close this lab's endpoints, those of all agents at the same time; the channel stays."""
        handles: dict[Agent, list[int]] = {}
        for end in self.ends:
            if not end.agent.killed:
                handles.setdefault(end.agent, []).append(end.handle)
        for call in [agent.start("close", "closing", handles=numbers) for agent, numbers in handles.items()]:
            call.result(DEADLINE_S)

    def destroy(self) -> None:
        """Remove the channel."""
        self.destroyed = True
        self.bench.clerk.start("destroy", "destroy", target=self.bench.backend, address=self.address.as_dict()).result(
            DEADLINE_S
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is checked."""

    readers: tuple[int, ...] = (1, 3)
    """Numbers of readers that each law is checked with, as far as it depends on them."""
    quick: bool = False
    """Fewer, smaller and shorter: for the suite's own tests and a first look."""


class Bench:
    """What a law is checked on: the backend, its agents, and labs for the asking. One bench serves one law.

    Args:
        backend: the class under test.
        pools: where agents come from.
        scope: how much to check.
    """

    _numbers = itertools.count(1)
    _token = f"{os.getpid()}-{secrets.token_hex(3)}"

    def __init__(self, backend: type[Backend], pools: Pools, scope: Scope) -> None:
        self.backend = backend
        self.can: Capabilities = backend.capabilities
        self.inline = self.can.launcher == "inline"
        self.target: Target = backend if self.inline else f"{backend.__module__}:{backend.__qualname__}"
        self.quick = scope.quick
        self.readers = [count for count in scope.readers if count <= self.can.max_readers]
        self.most_readers = max(self.readers)
        self.pool: Pool = pools.pool(self.can.launcher)
        self.clerk = ThreadAgent(-1)

    @classmethod
    def next_number(cls) -> int:
        """Return a number that nobody else has in this process: for handles, seeds and names."""
        return next(cls._numbers)

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries that the backend offers, in a fixed order."""
        return sorted(self.can.deliveries)

    def need(self, delivery: Delivery) -> None:
        """Skip the law unless the backend offers this delivery."""
        if delivery not in self.can.deliveries:
            raise LawSkipped(f"capabilities.deliveries has no {delivery}")

    def new_name(self) -> str:
        """Return a channel name that nobody else has."""
        return f"{NAME_PREFIX}law-{self._token}-{self.next_number():05}"

    def channel(self, **wanted: Any) -> ChannelSpec:
        """Return a channel with small defaults in place of what is not `wanted`."""
        size = min(2**16, self.can.max_message_bytes)
        defaults = {"name": self.new_name(), "delivery": self.deliveries[0], "max_message_bytes": size, "depth": 8}
        return ChannelSpec(**{**defaults, **wanted})

    def create(self, channel: ChannelSpec) -> Address:
        """Make the channel."""
        call = self.clerk.start("create", "create", target=self.backend, channel=channel.as_dict())
        return Address.from_dict(call.result(DEADLINE_S))

    @contextmanager
    def lab(
        self, *, opened: bool = True, settled: bool = True, seats: Sequence[int] | None = None, **wanted: Any
    ) -> Iterator[Lab]:
        """Give a lab for the block; after it, close what is open and remove the channel.

        Args:
            opened: whether all ends are open, the writer's first.
            settled: whether a first message has gone through.
            seats: numbers of the agents that take the writer's end and those of the readers; 0, 1, 2 … by default.
            wanted: fields of the channel.
        """
        channel = self.channel(**wanted, processes=tuple(seats or ()))
        numbers = channel.process_numbers()
        agents = self.pool.acquire(max(numbers) + 1)
        lab = Lab(self, self.create(channel), [agents[number] for number in numbers])
        try:
            if opened:
                lab.open()
                if settled:
                    lab.settle()
            yield lab
            lab.close()
            if not lab.destroyed:
                lab.destroy()
        except BaseException:
            self.pool.discard()
            if not lab.destroyed:
                with suppress(LawBroken):  # the verdict is what has happened before
                    lab.destroy()
            raise
        finally:
            remove_files(channel.name)

    def end(self, *, failed: bool) -> None:
        """Let threads go, now that the law is decided, and agents too if they may be left in any state."""
        self.clerk.dismiss()
        if failed or self.inline:
            self.pool.discard()
