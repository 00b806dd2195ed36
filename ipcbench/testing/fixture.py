"""What a law is checked on: a fixture opens channels under test, each with an agent for every endpoint."""

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
from ipcbench.testing.agents.client import Agent, PendingCall, ThreadAgent
from ipcbench.testing.agents.pool import Pool, Pools
from ipcbench.testing.agents.verbs import Role, Target
from ipcbench.testing.failure import AgentError, Failure, LawBroken, LawSkipped, require
from ipcbench.testing.leaks import remove_files

PATIENCE_S = 10.0
"""Time-out given to a call that should succeed: long, since the machine may be busy."""

DEADLINE_S = 30.0
"""How long an agent may take over one request before it counts as hung."""

SHORT_S = 0.03
"""Time-out given to a call that should time out."""

_HELLO_SEED = 2**63
_FIRST_HELLO_S = 0.02
_LONGEST_HELLO_S = 1.0
_MOST_HELLOS = 16


class EndpointUnderTest:
    """An endpoint of a channel under test, and the agent that has it open or will open it."""

    def __init__(self, channel: ChannelUnderTest, role: Role, index: int, agent: Agent) -> None:
        self._channel = channel
        self.role = role
        self.index = index
        self.agent = agent
        self.handle = channel.fixture.next_number()
        self.label = role if role == "writer" else f"reader {index}"

    def start_open(self) -> PendingCall:
        """Begin to open the endpoint."""
        return self.agent.start(
            "open",
            f"opening {self.label}",
            target=self._channel.fixture.target,
            address=self._channel.address.as_dict(),
            role=self.role,
            index=self.index,
            handle=self.handle,
        )

    def open(self) -> None:
        """Open the endpoint."""
        self.start_open().result(DEADLINE_S)

    def start(self, scenario: str, **arguments: Any) -> PendingCall:
        """Begin a scenario of scenarios.py."""
        size = f" {arguments['size']} bytes" if arguments.get("size") else ""
        label = f"{self.label} ({scenario.replace('_', ' ')}{size})"
        return self.agent.start("play", label, scenario=scenario, handle=self.handle, arguments=arguments)

    def play(self, scenario: str, **arguments: Any) -> Any:
        """Carry out a scenario and return its value."""
        return self.start(scenario, **arguments).result(DEADLINE_S)

    def write(self, sequence: int, size: int = 64, kind: str = "bytes", timeout_s: float | None = PATIENCE_S) -> None:
        """Write one message of the channel's stream."""
        seed = self._channel.seed
        outcome = self.play("write", seed=seed, sequence=sequence, size=size, timeout_s=timeout_s, kind=kind)
        if outcome["failure"]:
            raise AgentError(self.label, Failure.from_dict(outcome["failure"]))

    def start_read(self, sequence: int, size: int = 64, timeout_s: float | None = PATIENCE_S) -> PendingCall:
        """Begin to read what should be that message of the channel's stream; `check_read` judges the result."""
        return self.start("read", timeout_s=timeout_s, seed=self._channel.seed, sequence=sequence, size=size)

    def check_read(self, call: PendingCall, sequence: int, size: int = 64) -> None:
        """Wait for a `start_read` and require that it was that message."""
        outcome = call.result(DEADLINE_S)
        what = f"{self.label}, message {sequence} of {size} bytes"
        if outcome["failure"]:
            raise AgentError(what, Failure.from_dict(outcome["failure"]))
        require(outcome["plain"], f"{what}: read returned {outcome['kind']}, not a one-dimensional memoryview of bytes")
        require(outcome["same"], f"{what}: got {outcome['size']} bytes that are not those of the message")

    def read(self, sequence: int, size: int = 64) -> None:
        """Read one message and require that it is that message of the channel's stream."""
        self.check_read(self.start_read(sequence, size), sequence, size)

    def close(self) -> None:
        """Close the endpoint."""
        self.play("close")

    def kill(self) -> None:
        """Kill the agent."""
        self.agent.kill()


class ChannelUnderTest:
    """One channel, its writer and its readers; whoever asked for it opens, closes and removes it.

    Args:
        fixture: what the channel belongs to.
        address: the channel, which exists.
        agents: the agents of the writers and of reader 0, 1 …
    """

    def __init__(self, fixture: Fixture, address: Address, agents: Sequence[Agent]) -> None:
        self.fixture = fixture
        self.address = address
        self.seed = fixture.next_number()
        count = address.channel.writers
        self.writers = [EndpointUnderTest(self, "writer", index, agent) for index, agent in enumerate(agents[:count])]
        self.writer = self.writers[0]
        self.readers = [EndpointUnderTest(self, "reader", index, agent) for index, agent in enumerate(agents[count:])]
        self.endpoints = [*self.writers, *self.readers]
        self.destroyed = False

    def open(self, order: Sequence[int] | None = None) -> None:
        """Open all endpoints one after the other: the writer first, or in `order`, where 0 is the writer and i + 1 is
        reader i. Under an MPI launcher the calls begin in that order, and then all are waited for.
        """
        endpoints = self.endpoints if order is None else [self.endpoints[number] for number in order]
        if self.fixture.can.launcher == "mpiexec":
            for call in [endpoint.start_open() for endpoint in endpoints]:
                call.result(DEADLINE_S)
        else:
            for endpoint in endpoints:
                endpoint.open()

    def settle(self) -> None:
        """Send a greeting until all readers have got the same one, so that a fault at the start of the stream, which
        is law C5's matter, does not show in every other law.
        """
        wait_s = _FIRST_HELLO_S
        for number in range(_MOST_HELLOS):
            outcome = self.writer.play("write", seed=_HELLO_SEED, sequence=number, size=16, timeout_s=PATIENCE_S)
            if outcome["failure"]:
                raise AgentError("writer, first message", Failure.from_dict(outcome["failure"]))
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
        """Close the channel's endpoints, those of all agents at the same time; the channel stays."""
        handles: dict[Agent, list[int]] = {}
        for endpoint in self.endpoints:
            if not endpoint.agent.killed:
                handles.setdefault(endpoint.agent, []).append(endpoint.handle)
        for call in [agent.start("close", "closing", handles=numbers) for agent, numbers in handles.items()]:
            call.result(DEADLINE_S)

    def destroy(self) -> None:
        """Remove the channel."""
        self.destroyed = True
        self.fixture.call("destroy", address=self.address.as_dict())


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is checked."""

    readers: tuple[int, ...] = (1, 3)
    """Numbers of readers with which each law is checked, as far as it depends on them."""
    quick: bool = False
    """Fewer, smaller and shorter: for the suite's own tests and a first look."""


class Fixture:
    """The backend under test, its agents, and channels on demand. Each law has its own.

    Args:
        backend: the class under test.
        pools: where agents come from.
        scope: how much to check.

    Raises:
        BackendUnavailable: the backend's launcher is missing.
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
        self._owner = ThreadAgent(-1)
        """Creates and removes the channels; a thread, so that a backend that hangs there is noticed."""

    @classmethod
    def next_number(cls) -> int:
        """Return a number that is unique in this process: for handles, seeds and names."""
        return next(cls._numbers)

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries that the backend offers, in a fixed order."""
        return sorted(self.can.deliveries)

    @property
    def kinds(self) -> Iterator[dict[str, Any]]:
        """Yield what `channel` takes for one of each kind: of each delivery, and of each other pattern."""
        for delivery in self.deliveries:
            yield {"delivery": delivery, "readers": self.most_readers}
        stream: dict[str, Any] = {"delivery": "every_message", "settled": False}
        if "queue" in self.can.patterns:
            yield {**stream, "pattern": "queue", "readers": self.most_readers}
        if "fan_in" in self.can.patterns:
            yield {**stream, "pattern": "fan_in", "readers": 1, "writers": 2}

    def need(self, delivery: Delivery) -> None:
        """Skip the law unless the backend offers this delivery."""
        if delivery not in self.can.deliveries:
            raise LawSkipped(f"capabilities.deliveries has no {delivery}")

    def new_name(self) -> str:
        """Return an unused channel name."""
        return f"{NAME_PREFIX}law-{self._token}-{self.next_number():05}"

    def spec(self, **wanted: Any) -> ChannelSpec:
        """Return a channel's spec: the `wanted` fields, and small defaults."""
        size = min(2**16, self.can.max_message_bytes)
        defaults = {"name": self.new_name(), "delivery": self.deliveries[0], "max_message_bytes": size, "depth": 8}
        return ChannelSpec(**{**defaults, **wanted})

    def call(self, verb: str, **arguments: Any) -> Any:
        """Have the backend create or destroy a channel."""
        return self._owner.start(verb, verb, target=self.backend, **arguments).result(DEADLINE_S)

    def create(self, spec: ChannelSpec, maker: Agent | None = None) -> Address:
        """Create the channel; `maker`, or any agent, has its parent do so if the launcher is `fork`."""
        if self.can.launcher != "fork":
            return Address.from_dict(self.call("create", channel=spec.as_dict()))
        maker = maker or self.pool.acquire(2)[0]
        asked = maker.start("create", target=self.target, channel=spec.as_dict())
        return Address.from_dict(asked.result(DEADLINE_S))

    @contextmanager
    def channel(self, *, opened: bool = True, settled: bool = True, **wanted: Any) -> Iterator[ChannelUnderTest]:
        """Provide a channel for the block; after it, close what is open and remove the channel.

        Args:
            opened: whether all endpoints are open, the writer's first.
            settled: whether a first message has gone through.
            wanted: fields of the channel's spec. Its `processes` are the numbers of the agents.
        """
        spec = self.spec(**wanted)
        numbers = spec.process_numbers() if spec.writers == 1 else tuple(range(spec.writers + spec.readers))
        agents = self.pool.acquire(max(numbers) + 1)
        channel = ChannelUnderTest(self, self.create(spec, agents[0]), [agents[number] for number in numbers])
        try:
            if opened:
                channel.open()
                if settled:
                    channel.settle()
            yield channel
            channel.close()
            if not channel.destroyed:
                channel.destroy()
        except BaseException:
            self.pool.discard()
            if not channel.destroyed:
                with suppress(LawBroken):  # the verdict is what has happened before
                    channel.destroy()
            raise
        finally:
            remove_files(spec.name)

    def end(self, *, failed: bool) -> None:
        """Let the threads end now that the law is decided, and the agents too if their state is unknown."""
        self._owner.dismiss()
        if failed or self.inline:
            self.pool.discard()
