"""How an endpoint waits: when polling pays, when it does not, and how the waits are counted."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path

import pytest

import ipcbench.sync.wait
from ipcbench.backend import Waits
from ipcbench.errors import PeerLost, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.sync.wait import Attempts, Doorbell, Waiter
from ipcbench.util.clock import now_ns

LONG_NS = 10**10


class Peer:
    """A condition that becomes true at a given look; a sleeper is woken at once."""

    def __init__(self, path: Path) -> None:
        Doorbell.make(path)
        self.bell = Doorbell(path)
        self.looks_left = 0

    def __call__(self) -> bool:
        self.looks_left -= 1
        return self.looks_left < 0

    def wake(self) -> None:
        """Let the next look of a sleeper succeed."""
        self.looks_left = 1
        self.bell.ring()

    def waiter(self, strategy: str = "auto", *, endpoints: int = 1, **changes: int) -> Waiter:
        plain = {"doorbell": self.bell, "arm": self.wake, "disarm": lambda: None, "check_peers": lambda: None}
        return Waiter(strategy, endpoints, **{**plain, **changes})


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(tmp_path / "bell")
    yield peer
    peer.bell.close()


def wait(waiter: Waiter, peer: Peer, looks: int) -> None:
    """Wait for something that becomes true at that look."""
    peer.looks_left = looks
    waiter.begun_count += 1
    assert waiter.until(peer, now_ns() + LONG_NS)


AT_ONCE, NEVER = 3, 2**62
"""Looks after which a peer on another core answers, and of one that waits for this very core."""


VAIN_NS = 40_000
LONG = 2**19
"""Longest pause, in waits."""


def pauses(count: int, attempts: Attempts | None = None) -> list[int]:
    """Return the pauses of an endpoint that polls in vain only, each after as many attempts as it takes."""
    attempts, found = attempts or Attempts(), []
    for _ in range(count):
        while not attempts.skips_count:
            attempts.failed(VAIN_NS)
        found.append(attempts.skips_count)
        attempts.skips_count = 0  # the pause has passed
    return found


def test_polling_goes_on_while_hardly_any_of_it_is_in_vain() -> None:
    attempts = Attempts()
    for _ in range(1000):
        attempts.failed(VAIN_NS)
        attempts.succeeded(100)
        assert not attempts.skips_count


def test_one_wait_in_twenty_in_vain_is_too_many() -> None:
    attempts = Attempts()
    for _ in range(1000):
        attempts.failed(VAIN_NS)
        attempts.succeeded(20)
    assert attempts.skips_count


def test_polling_pauses_after_ten_ms_in_vain_and_pauses_double() -> None:
    attempts, count = Attempts(), 0
    while not attempts.skips_count:
        attempts.failed(VAIN_NS)
        count += 1
    assert count * VAIN_NS == 10_000_000
    assert pauses(8) == [2**16, 2**17, 2**18, LONG, LONG, LONG, LONG, LONG]


def test_a_lost_core_costs_the_time_that_it_was_lost_for() -> None:
    attempts = Attempts()
    attempts.failed(9_000_000)
    assert not attempts.skips_count
    attempts.failed(1_000_000)
    assert attempts.skips_count


def test_a_few_lucky_attempts_do_not_shorten_the_pauses_and_many_do() -> None:
    attempts = Attempts()
    assert pauses(3, attempts)[-1] == 2**18
    attempts.succeeded(1000)
    assert pauses(1, attempts) == [LONG]
    attempts.succeeded(100_000)
    assert pauses(1, attempts) == [2**16]


def test_auto_stops_to_poll_for_a_peer_that_never_answers_meanwhile(peer: Peer) -> None:
    waiter = peer.waiter(yield_ns=20_000)
    assert len(waiter.looks) > 0
    while waiter.looks:
        wait(waiter, peer, NEVER)
    tried_count = waiter.waits.slept_count
    for _ in range(100):
        wait(waiter, peer, NEVER)
    assert not waiter.looks
    assert waiter.waits == Waits(0, 0, tried_count + 100)


def test_auto_polls_again_when_the_peer_answers_again(peer: Peer) -> None:
    waiter = peer.waiter(yield_ns=LONG_NS)
    waiter._attempts.skips_count = 3
    waiter.looks = range(0)
    for _ in range(5):
        wait(waiter, peer, AT_ONCE)
    assert waiter.waits == Waits(0, 2, 3)
    assert len(waiter.looks) > 0


def test_what_ends_during_the_callers_own_looks_counts_as_success(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count(0, 1_000)
    monkeypatch.setattr(ipcbench.sync.wait, "now_ns", lambda: next(readings))
    waiter = peer.waiter(yield_ns=20_000)
    for _ in range(50):
        waiter.begun_count += 31  # ended before `until` was needed
        wait(waiter, peer, NEVER)
    assert len(waiter.looks) > 0
    assert waiter.waits == Waits(50 * 31, 0, 50)


def test_a_wait_during_which_the_core_was_lost_does_not_pay(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock is 50 ms after the last: somebody else had the core in between."""
    readings = itertools.count(0, 50_000_000)
    monkeypatch.setattr(ipcbench.sync.wait, "now_ns", lambda: next(readings))
    waiter = peer.waiter(yield_ns=100_000)
    peer.looks_left = 1
    waiter.begun_count += 1
    assert waiter.until(peer, None)
    assert not waiter.looks
    assert waiter.waits == Waits(0, 1, 0)


def test_where_endpoints_share_cores_a_long_yield_that_ends_the_wait_pays(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = itertools.count(0, 50_000_000)
    monkeypatch.setattr(ipcbench.sync.wait, "now_ns", lambda: next(readings))
    waiter = peer.waiter(endpoints=10_000)
    for _ in range(100):
        peer.looks_left = 1
        waiter.begun_count += 1
        assert waiter.until(peer, None)
    assert waiter.waits == Waits(0, 100, 0)


def test_a_peer_on_the_same_core_runs_while_auto_waits_for_it(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count(0, 100)  # of a clock by which nobody else ever has the core
    monkeypatch.setattr(ipcbench.sync.wait, "now_ns", lambda: next(readings))
    monkeypatch.setattr(os, "sched_yield", lambda: setattr(peer, "looks_left", 0))
    waiter = peer.waiter(yield_ns=20_000)
    for _ in range(1000):
        wait(waiter, peer, NEVER)
    assert waiter.waits == Waits(0, 1000, 0)


@pytest.mark.parametrize(
    ("yield_ns", "yields_count"),
    [(10_000, 30), (3_000_000, 1)],
    ids=["a few yields, however long each takes", "not if one gave the core to a stranger"],
)
def test_auto_yields_in_vain(yield_ns: int, yields_count: int, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    readings, yields = itertools.count(0, yield_ns), list[int]()
    monkeypatch.setattr(ipcbench.sync.wait, "now_ns", lambda: next(readings))
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    waiter = peer.waiter(endpoints=10_000, yield_ns=20_000)
    wait(waiter, peer, NEVER)
    assert len(yields) == yields_count
    assert waiter.waits == Waits(0, 0, 1)


def test_without_a_core_for_each_auto_yields_and_then_sleeps(peer: Peer) -> None:
    waiter = peer.waiter(endpoints=10_000)
    assert len(waiter.looks) == 0
    wait(waiter, peer, 1)
    assert waiter.waits == Waits(0, 1, 0)
    for _ in range(50):
        wait(waiter, peer, NEVER)
    assert waiter.waits == Waits(0, 1, 50)


@pytest.mark.parametrize(
    ("took_ns", "pauses"),
    [(100_000, False), (1_000, True), (3_000_000, True)],
    ids=["peers run", "nobody runs", "a stranger runs"],
)
def test_where_endpoints_share_cores_yields_in_vain_cost_what_no_peer_ran_for(
    took_ns: int, pauses: bool, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    yields = list[int]()
    monkeypatch.setattr(ipcbench.sync.wait, "now_ns", lambda: sum(yields))
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(took_ns))
    waiter = peer.waiter(endpoints=10_000)
    for _ in range(300):
        wait(waiter, peer, NEVER)
    assert (waiter._attempts.skips_count > 0) == pauses


def test_polling_never_pauses_where_it_should_not_adapt(peer: Peer) -> None:
    waiter = peer.waiter(yield_ns=1000, adapts=False)
    for _ in range(40):
        wait(waiter, peer, NEVER)
    assert len(waiter.looks) > 0


def test_without_a_doorbell_polling_never_pauses(peer: Peer) -> None:
    waiter = peer.waiter(doorbell=None, yield_ns=1000)
    for _ in range(40):
        wait(waiter, peer, NEVER)
    assert len(waiter.looks) > 0


@pytest.mark.parametrize(
    ("strategy", "looks", "expected"),
    [("spin", AT_ONCE, Waits(1, 0, 0)), ("yield", AT_ONCE, Waits(0, 1, 0)), ("block", NEVER, Waits(0, 0, 1))],
)
def test_a_fixed_strategy_never_changes(peer: Peer, strategy: str, looks: int, expected: Waits) -> None:
    waiter = peer.waiter(strategy)
    before, total = waiter.looks, Waits(0, 0, 0)
    for _ in range(300):
        wait(waiter, peer, looks)
        total += expected
    assert waiter.waits == total
    assert waiter.looks == before


def test_a_peer_that_rings_again_and_again_does_not_hide_that_another_has_died(peer: Peer) -> None:
    """A reader with nothing to read rings at a writer that sleeps, which then slept until its time-out."""
    stopped = threading.Event()

    def ring() -> None:
        while not stopped.wait(0.001):
            peer.bell.ring()

    def check() -> None:
        raise PeerLost("another reader has died")

    ringer, deadline = threading.Thread(target=ring), now_ns() + 20 * 10**9
    ringer.start()
    try:
        with pytest.raises(PeerLost):
            peer.waiter("block", check_peers=check, arm=lambda: None).until(lambda: False, deadline)
        assert now_ns() < deadline
    finally:
        stopped.set()
        ringer.join()


def test_waits_of_a_span_are_the_difference() -> None:
    assert Waits(5, 4, 3) - Waits(1, 1, 1) == Waits(4, 3, 2)


@pytest.mark.parametrize("strategy", ["auto", "spin", "yield", "block"])
def test_a_deadline_ends_every_way_of_waiting(peer: Peer, strategy: str) -> None:
    never: Callable[[], bool] = lambda: False  # noqa: E731
    waiter = peer.waiter(strategy, arm=lambda: None)
    assert not waiter.until(never, now_ns() + 1_000_000)


@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
@pytest.mark.parametrize(("strategy", "way"), [("block", "slept"), ("spin", "spun"), ("yield", "yielded")])
@pytest.mark.parametrize("backend_name", ["shm", "lmdb"])
def test_each_wait_of_an_endpoint_is_counted_once(backend_name: str, strategy: str, way: str, delivery: str) -> None:
    backend = get_backend(backend_name)()
    channel = ChannelSpec(f"ipcb-waits-{os.getpid()}", max_message_bytes=8, wait=strategy, delivery=delivery)
    address = backend.create(channel)
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            writer.write(b"there")
            reader.read()  # no wait
            for _ in range(3):
                with pytest.raises(TransportTimeout):
                    reader.read(0.001)
            assert getattr(reader.waits, f"{way}_count") == sum(astuple(reader.waits)) == 3
            assert writer.waits == Waits(0, 0, 0)
    finally:
        backend.destroy(address)


@pytest.mark.parametrize("strategy", ["auto", "block", "spin", "yield"])
def test_a_full_channel_makes_the_writer_wait(strategy: str) -> None:
    backend = get_backend("shm")()
    address = backend.create(ChannelSpec(f"ipcb-full-{os.getpid()}", max_message_bytes=8, depth=2, wait=strategy))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0):
            writer.write(b"1")
            writer.write(b"2")
            with pytest.raises(TransportTimeout):
                writer.write(b"3", 0.001)
            assert sum(astuple(writer.waits)) == 1
    finally:
        backend.destroy(address)


@pytest.mark.parametrize(("strategy", "way"), [("auto", "block"), ("block", "block"), ("spin", "spin")])
def test_an_endpoint_with_one_way_of_waiting_names_it(strategy: str, way: str) -> None:
    backend = get_backend("pipe")()
    address = backend.create(ChannelSpec(f"ipcb-way-{os.getpid()}", wait=strategy))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            assert writer.waits == reader.waits == way
    finally:
        backend.destroy(address)


def test_yields_that_hand_the_core_to_the_peer_do_not_pay_for_long() -> None:
    attempts, count = Attempts(), 0
    while not attempts.skips_count:
        attempts.yielded(20_000, last_ns=5_000)
        count += 1
    assert count == 40_000_000 // 20_000 + 1
    attempts.skips_count = 0
    for _ in range(10_000):  # one in five: the peers are apart by now
        attempts.yielded(20_000, last_ns=5_000)
        for _ in range(4):
            attempts.yielded(1_000, last_ns=300)
    assert not attempts.skips_count


def test_a_pause_may_be_taken_at_once(peer: Peer) -> None:
    waiter = peer.waiter()
    assert waiter.take_skips(64) == 0
    waiter._attempts.skips_count = 100
    assert [waiter.take_skips(64) for _ in range(4)] == [64, 35, 0, 0]
    assert waiter._attempts.skips_count == 0
