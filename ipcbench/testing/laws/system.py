"""Laws C13 to C15 and C20: killed processes, what a channel leaves behind, channels side by side, who may open."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

from ipcbench.spec import Delivery
from ipcbench.testing.agents.client import Agent, ProcessAgent, until
from ipcbench.testing.agents.verbs import Role
from ipcbench.testing.failure import AgentError, LawBroken, LawSkipped, require
from ipcbench.testing.fixture import DEADLINE_S, PATIENCE_S, SHORT_S, ChannelUnderTest, EndpointUnderTest, Fixture
from ipcbench.testing.laws.limits import BULKY_BYTES, fill
from ipcbench.testing.leaks import files, traces

_QUIET_S = 0.3
_QUIET_INLINE_S = 0.05
_LEAVING_S = 5.0
_ENDLESS = 2**40
_CYCLES = 6


def killed_peers(fixture: Fixture) -> None:
    """C13: a killed peer shows as an error or a time-out, and nothing is invented."""
    for delivery in fixture.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
            _writer_killed(channel)
    for readers in fixture.readers if "every_message" in fixture.can.deliveries else []:
        with fixture.channel(readers=readers, delivery="every_message") as channel:
            _reader_killed(channel)
    if "latest_value" in fixture.can.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery="latest_value") as channel:
            _kill(channel, channel.readers[0])
            fill(channel, 0, PATIENCE_S, size=64, most=100)
    if not fixture.inline and fixture.can.launcher != "mpiexec":
        for kind in fixture.kinds:
            _use_in_children(fixture, kind)
        for delivery in fixture.deliveries if fixture.can.detects_peer_exit else ():
            _outlived_by_children(fixture, delivery)


def _kill(channel: ChannelUnderTest, victim: EndpointUnderTest) -> None:
    """Kill an endpoint's agent.

    Raises:
        LawSkipped: the MPI launcher has then ended all other processes, so that none is left to observe anything.
    """
    victim.kill()
    if channel.fixture.can.launcher == "mpiexec":
        others = [endpoint.agent for endpoint in channel.endpoints if endpoint is not victim]
        if all(isinstance(agent, ProcessAgent) and agent.has_ended(DEADLINE_S) for agent in others):
            raise LawSkipped("capabilities.launcher is mpiexec, which ended all processes when one was killed")


def _writer_killed(channel: ChannelUnderTest) -> None:
    """Kill the writer (a process, in the middle of writing). Readers get an unbroken part of the stream, then an error
    or a time-out, at every further read too.
    """
    size = min(BULKY_BYTES, channel.fixture.can.max_message_bytes)
    stream = {"seed": channel.seed, "first": 0, "timeout_s": PATIENCE_S}
    if channel.fixture.inline:
        channel.writer.play("write_stream", **stream, count=5, sizes=[size], kinds=["bytes"])
    else:
        channel.writer.start("write_for", **stream, size=size, duration_s=DEADLINE_S)
    for call in [reader.start("hold", timeout_s=PATIENCE_S) for reader in channel.readers]:
        call.result(DEADLINE_S)
    stream["timeout_s"] = PATIENCE_S if channel.fixture.can.detects_peer_exit else _quiet_s(channel.fixture)
    reads = [r.start("read_stream", **stream, count=_ENDLESS, sizes=[size], extra_s=0) for r in channel.readers]
    _kill(channel, channel.writer)
    for reader, call in zip(channel.readers, reads, strict=True):
        what = f"{reader.label}, {channel.address.channel.delivery}, after the writer was killed"
        counts = call.result(DEADLINE_S)
        _nothing_invented(channel, counts, what)
        _lost_or_late(channel, counts["ended"], what)
    again = [(reader, reader.start("read", timeout_s=0.0)) for reader in channel.readers]
    for reader, call in again:
        outcome, what = call.result(DEADLINE_S), f"{reader.label}, after the writer was killed"
        require(outcome["failure"] is not None, f"{what}: a further read returned a message")
        _lost_or_late(channel, outcome["failure"]["kind"], f"{what}, at a further read")


def _use_in_children(fixture: Fixture, kind: dict[str, Any]) -> None:
    """Fork processes that have endpoints. A child can neither use nor end what it inherited."""
    with fixture.channel(**{**kind, "readers": 1}) as channel:
        for sequence, endpoint in enumerate((channel.writer, channel.readers[0])):
            _use(channel, sequence)
            done = endpoint.play("use_in_child", timeout_s=SHORT_S)
            require(not done, f"{endpoint.label}, {kind}, used in a forked child: not EndpointClosed but {done}")
        _use(channel, 2)


def _outlived_by_children(fixture: Fixture, delivery: Delivery) -> None:
    """Kill processes that have endpoints and have forked. A child does not hide that its parent was killed, not even
    where the rest of a message is missing.
    """
    for role in ("writer", "reader") if delivery == "every_message" else ("writer",):  # that of values never waits
        with fixture.channel(delivery=delivery) as channel:
            child = (channel.writer if role == "writer" else channel.readers[0]).play("fork")
            try:
                (_writer_killed if role == "writer" else _reader_killed)(channel)
            except LawBroken as broken:
                raise LawBroken(f"{delivery}, {role} killed, its child lives: {broken}") from None
            finally:
                os.kill(child, signal.SIGKILL)


def _quiet_s(fixture: Fixture) -> float:
    """Return the time-out of a call that may not learn that its peer has gone."""
    return _QUIET_INLINE_S if fixture.inline else _QUIET_S


def _nothing_invented(channel: ChannelUnderTest, counts: dict[str, Any], what: str) -> None:
    """Require that all messages were whole, in order, and came once; in a lossless stream, also without holes."""
    require(not counts["damaged_count"], f"{what}: {counts['damaged_count']} messages were not whole")
    require(not counts["foreign_count"], f"{what}: {counts['foreign_count']} messages were never written")
    require(not counts["repeated"], f"{what}: messages {counts['repeated']} came more than once")
    require(not counts["disordered"], f"{what}: messages {counts['disordered']} came after later ones")
    holes = [gap for gap in counts["gaps"] if gap[0] > 0 and gap[1] < counts["last_sequence"]]
    if channel.address.channel.delivery == "every_message":
        require(not holes, f"{what}: messages {holes} are missing in the middle")


def _lost_or_late(channel: ChannelUnderTest, kind: str, what: str) -> None:
    """Require that an error is PeerLost or, if the backend does not detect that, TransportTimeout."""
    if channel.fixture.can.detects_peer_exit:
        require(kind == "PeerLost", f"{what}: got {kind}, not PeerLost, although detects_peer_exit")
    require(kind in {"PeerLost", "TransportTimeout"}, f"{what}: got {kind}, neither PeerLost nor TransportTimeout")


def _reader_killed(channel: ChannelUnderTest) -> None:
    """Kill a reader (a process, in the middle of reading) while the others read on. The writer gets an error or blocks
    after a bounded number of messages.
    """
    victim, survivors = channel.readers[0], channel.readers[1:]
    size = min(BULKY_BYTES, channel.fixture.can.max_message_bytes)
    stream = {"seed": channel.seed, "first": 0, "sizes": [size], "count": _ENDLESS, "extra_s": 0}
    reads = [
        (reader, reader.start("read_stream", **stream, timeout_s=2 * _quiet_s(channel.fixture))) for reader in survivors
    ]
    if not channel.fixture.inline:
        victim.start("read_stream", **stream, timeout_s=PATIENCE_S)
    fill(channel, 0, PATIENCE_S, size, most=5)
    _kill(channel, victim)
    outcome = fill(channel, 5, PATIENCE_S if channel.fixture.can.detects_peer_exit else _quiet_s(channel.fixture), size)
    what = f"writer, after {victim.label} of {len(channel.readers)} was killed"
    require(outcome["failure"] is not None, f"{what}: {outcome['taken']} more messages were accepted without an error")
    _lost_or_late(channel, outcome["failure"]["kind"], what)
    for reader, call in reads:
        _nothing_invented(channel, call.result(DEADLINE_S), f"{reader.label}, after {victim.label} was killed")


def nothing_remains(fixture: Fixture) -> None:
    """C14: `destroy` leaves nothing with the channel's name, whatever happened before, and may be repeated."""
    for delivery in fixture.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
            _use(channel, 0)
            channel.close()
            channel.destroy()
            _require_no_traces(channel, "after close and destroy")
            channel.destroy()
            for agent in {endpoint.agent for endpoint in channel.endpoints}:
                target, address = fixture.target, channel.address.as_dict()
                agent.start("destroy", "a further destroy", target=target, address=address).result(DEADLINE_S)
        with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
            channel.writer.write(0)
            channel.destroy()
            channel.close()
            _require_no_traces(channel, "after destroy and then close")
        with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
            channel.writer.write(0)
            if not fixture.inline:
                for reader in channel.readers:
                    reader.start("hold", timeout_s=PATIENCE_S)
            for endpoint in channel.endpoints:
                endpoint.kill()
            channel.destroy()
            _require_no_traces(channel, "after all processes were killed and the channel destroyed")
    _nothing_piles_up(fixture)


def _use(channel: ChannelUnderTest, sequence: int) -> None:
    """Send one message to all readers."""
    channel.writer.write(sequence)
    for reader in channel.readers:
        reader.read(sequence)


def _require_no_traces(channel: ChannelUnderTest, when: str) -> None:
    """Ask the operating system, not the backend: no file may carry the channel's name, and soon nothing else may;
    libraries are allowed to close descriptors and end threads in the background.
    """
    name = channel.address.channel.name
    here = [str(trace) for trace in files(name)]
    require(not here, f"{when}, this remains: {'; '.join(here)}")
    agents = {endpoint.agent for endpoint in channel.endpoints if not endpoint.agent.killed}
    pids = {os.getpid(), *(agent.pid for agent in agents if isinstance(agent, ProcessAgent))}
    if not until(lambda: not traces(name, pids), _LEAVING_S):
        raise LawBroken(f"{when}, this remains: {'; '.join(map(str, traces(name, pids)))}")


def _nothing_piles_up(fixture: Fixture) -> None:
    """Make, use and remove channels: the agents' descriptors and threads must not accumulate."""
    agents = fixture.pool.acquire(2)

    def cycle() -> None:
        with fixture.channel() as channel:
            _use(channel, 0)

    def held(agent: Agent) -> dict[str, int]:
        counts: dict[str, int] = agent.start("counts").result(DEADLINE_S)
        return counts

    def is_steady(agent: Agent, before: dict[str, int]) -> bool:
        return all(count < before[what] + _CYCLES for what, count in held(agent).items())

    for _ in range(2):
        cycle()
    counts = [held(agent) for agent in agents]
    for _ in range(_CYCLES):
        cycle()
    for agent, before in zip(agents, counts, strict=True):
        steady = until(partial(is_steady, agent, before), _LEAVING_S)
        require(steady, f"agent {agent.number} held {before}, and after {_CYCLES} more channels {held(agent)}")


def channels_do_not_meet(fixture: Fixture) -> None:
    """C15: channels do not affect each other; an endpoint that is open and a name in use are refused."""
    for delivery in fixture.deliveries:
        name = fixture.new_name()
        with (
            fixture.channel(name=name, delivery=delivery, processes=(0, 1)) as there,
            fixture.channel(name=f"{name}x", delivery=delivery, processes=(1, 0)) as back,
        ):
            for sequence in range(5):
                there.writer.write(sequence)
                back.writer.write(sequence)
                there.readers[0].read(sequence)
                back.readers[0].read(sequence)
            before = traces(back.address.channel.name)
            there.close()
            there.destroy()
            gone = set(before) - set(traces(back.address.channel.name))
            require(not gone, f"destroying channel {name} removed {gone} of channel {name}x")
            _use(back, 5)
        with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
            _endpoints_open_once(channel)
        with fixture.channel(delivery=delivery, opened=False) as channel:
            _names_are_used_once(channel)


def _endpoints_open_once(channel: ChannelUnderTest) -> None:
    """Open the writer and a reader a second time, in the same process and in another: refused, and harmless."""
    for agent in (channel.writer.agent, channel.readers[-1].agent):
        for role in ("writer", "reader"):
            _is_refused(channel, role, agent, f"opening the {role} a second time in agent {agent.number}")
    _use(channel, 0)


def _is_refused(channel: ChannelUnderTest, role: Role, agent: Agent, what: str) -> None:
    """Open the writer or reader 0 in an agent; that must raise TransportError."""
    try:
        EndpointUnderTest(channel, role, 0, agent).open()
    except AgentError as error:
        if not error.failure.is_a("TransportError"):
            raise
    else:
        raise LawBroken(f"{what} was not refused")


def places_are_not_taken_again(fixture: Fixture) -> None:
    """C20: an endpoint that has closed or died opens no more, in no process."""
    for delivery in fixture.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
            _use(channel, 0)
            endpoints = (channel.readers[0], channel.writer)
            for endpoint in endpoints:
                closing = endpoint.start("close")
                if endpoint is channel.writer:
                    for reader in channel.readers[1:]:
                        reader.close()
                closing.result(DEADLINE_S)
            for endpoint in endpoints:
                for agent in (endpoint.agent, channel.readers[-1].agent):
                    what = f"opening the {endpoint.role} again in agent {agent.number} after it had closed"
                    _is_refused(channel, endpoint.role, agent, what)
        if fixture.inline or fixture.can.launcher == "mpiexec":
            continue
        for victim in ("reader", "writer"):
            with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
                _use(channel, 0)
                dead = channel.writer if victim == "writer" else channel.readers[0]
                other = channel.readers[0] if victim == "writer" else channel.writer
                dead.kill()
                _is_refused(channel, dead.role, other.agent, f"opening the {victim} again after its process was killed")


def _names_are_used_once(channel: ChannelUnderTest) -> None:
    """Make a second channel of the same name: refused, or at least harmless to the first."""
    alone = channel.fixture.can.launcher != "mpiexec"
    if alone:
        channel.writer.open()
    else:
        channel.open()
    try:
        channel.fixture.create(channel.address.channel, channel.writer.agent)
    except AgentError as error:
        if not error.failure.is_a("TransportError"):
            raise
    if alone:
        channel.readers[0].open()
    channel.settle()
    _use(channel, 0)
