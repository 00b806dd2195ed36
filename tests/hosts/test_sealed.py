"""What a launcher carries that does not encrypt: TLS between agent and coordinator, each sure of the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

pytest.importorskip("cryptography", reason="pip install 'ipcbench[hosts]'")

from ipcbench.hosts.link import AGENT, Link
from ipcbench.hosts.sealed import Bare, Identity, LinkLost, Sealed, new_identity
from ipcbench.util.clock import deadline_ns

_SOON_S = 20.0


class Pair:
    """Two pipes: the coordinator's ends and the agent's."""

    def __init__(self) -> None:
        to_agent, to_coordinator = os.pipe(), os.pipe()
        self.coordinator = Sealed(to_coordinator[0], to_agent[1])
        self.agent = Sealed(to_agent[0], to_coordinator[1])


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for end in (made.coordinator, made.agent):
        for descriptor in (end.incoming, end.outgoing):
            try:
                os.close(descriptor)
            except OSError:
                continue


def sealed(pair: Pair, coordinator: Identity, fingerprint: str, agent: Identity) -> list[Exception]:
    """Have both ends agree; return what either raised."""
    errors: list[Exception] = []

    def as_agent() -> None:
        try:
            pair.agent.seal_as_agent(agent, fingerprint, deadline_ns(_SOON_S))
        except LinkLost as error:
            errors.append(error)

    thread = threading.Thread(target=as_agent)
    thread.start()
    try:
        pair.coordinator.seal_as_coordinator(coordinator, deadline_ns(_SOON_S))
    except LinkLost as error:
        errors.append(error)
    thread.join()
    return errors


def test_frames_pass_both_ways_and_none_is_legible(pair: Pair) -> None:
    ours = new_identity()
    carried: list[bytes] = []
    write = os.write

    def seen(descriptor: int, data: memoryview) -> int:
        carried.append(bytes(data))
        return write(descriptor, data)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as held:
        patch.setattr("ipcbench.hosts.sealed.os.write", seen)
        assert sealed(pair, ours, ours.fingerprint, new_identity()) == []
        links = [Link(pair.coordinator, "the agent"), Link(pair.agent, "the coordinator")]
        for link in links:
            held.callback(link.close)
        words = b"a secret word " * 100_000  # more than a pipe holds
        for one, other in (links, links[::-1]):
            sender = threading.Thread(target=one.send, args=(AGENT, {"said": words}))
            sender.start()
            assert other.receive(_SOON_S) == [AGENT, {"said": words}]
            sender.join()
    assert sum(map(len, carried)) > 2 * len(words)
    assert not any(b"secret" in data for data in carried)


def test_what_the_host_says_before_is_passed_over(pair: Pair) -> None:
    ours = new_identity()
    os.write(pair.agent.outgoing, b"Welcome to host a\nipcbench is installed here\n")
    assert sealed(pair, ours, ours.fingerprint, new_identity()) == []


def test_an_agent_refuses_another_coordinator(pair: Pair) -> None:
    theirs = new_identity()
    (error,) = sealed(pair, theirs, new_identity().fingerprint, new_identity())
    assert str(error) == "this is not the coordinator that started this agent"


def test_a_coordinator_refuses_an_agent_without_the_key_of_its_certificate(pair: Pair) -> None:
    ours, shown, own = new_identity(), new_identity(), new_identity()
    errors = sealed(pair, ours, ours.fingerprint, Identity(own.pem, shown.certificate))
    assert any("no agreement on keys: CERTIFICATE_VERIFY_FAILED" in str(error) for error in errors)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"no agent\n" * 10,
        b"x" * 2**17,
        b"ipcbench-agent !!!\n",
        b"ipcbench-agent AAAA\n",
        b"ipcbench-agent " + b"A" * 2**17,
    ],
    ids=["nothing", "no agent", "too much", "no certificate", "a wrong one", "an endless one"],
)
def test_what_is_no_agent_is_refused(pair: Pair, said: bytes) -> None:
    def speak() -> None:
        with os.fdopen(os.dup(pair.agent.outgoing), "wb", closefd=True) as out:
            os.set_blocking(out.fileno(), True)
            try:
                out.write(said)
                out.flush()
            except OSError:
                pass
        pair.agent.close()

    speaker = threading.Thread(target=speak)
    speaker.start()
    with pytest.raises(LinkLost):
        pair.coordinator.seal_as_coordinator(new_identity(), deadline_ns(_SOON_S))
    pair.coordinator.close()
    speaker.join()


def test_a_changed_byte_ends_the_link(pair: Pair) -> None:
    ours = new_identity()
    assert sealed(pair, ours, ours.fingerprint, new_identity()) == []
    link = Link(pair.coordinator, "the agent")
    wire = Bare(os.dup(pair.agent.incoming), os.dup(pair.agent.outgoing))
    wire.write(memoryview(b"\x17\x03\x03\x00\x20" + bytes(32)))
    with pytest.raises(LinkLost, match="the agent is gone"):
        link.receive(_SOON_S)
    link.close()
    wire.close()
