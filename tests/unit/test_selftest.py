"""The self-test's counting, and the backends whose slowness is known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ipcbench.backend import Address
from ipcbench.harness.loops import set_phase
from ipcbench.registry import get_backend
from ipcbench.selftest import METRICS, VerdictCounts, count_verdicts, upper_bound, verdicts
from ipcbench.spec import MODES, ChannelSpec
from ipcbench.testing.faults.slowed import slowed_name
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import INTENDED, SENT, Outgoing, Phase
from tests.unit.builders import Cell, make_run

FIVE = (1.0, 1.01, 0.99, 1.005, 0.995)


@pytest.mark.parametrize(
    ("hits", "count", "expected"), [(0, 59, 0.0495), (10, 200, 0.0832), (1, 1, 1.0), (155, 5000, 0.0355)]
)
def test_the_upper_bound_is_the_exact_one(hits: int, count: int, expected: float) -> None:
    assert upper_bound(hits, count) == pytest.approx(expected, abs=2e-4)


def test_both_directions_count_as_false() -> None:
    counts = VerdictCounts("latency", 5, percent=0, verdicts_count=20, slower_count=1, faster_count=2)
    assert (counts.different_ratio, counts.found_ratio) == (0.15, 0.05)


def test_each_size_gives_a_verdict_by_each_metric_after_the_first_rounds(tmp_path: Path) -> None:
    names = (slowed_name("shm", 0, again=True), *(slowed_name("shm", percent) for percent in (0, 10)))
    times = dict(zip(names, (1.0, 1.0, 1.1), strict=True))
    cells = {
        (name, size): Cell(10_000.0 * slow, 1e5 / slow, round_trip_ns=20_000.0 * slow, factors=FIVE)
        for name, slow in times.items()
        for size in (64, 128)
    }
    run = make_run(tmp_path / "run", cells, modes=MODES, payload="bytes", codec="raw", rounds=5)
    found = Counter(verdicts(run))
    assert {each[:3] for each in found} == {
        (metric, rounds, percent) for metric in METRICS for rounds in (1, 2, 3, 5) for percent in (0, 10)
    }
    counts = count_verdicts(found)
    assert all(each.verdicts_count == 2 for each in counts)
    assert [(each.metric, each.rounds_count, each.percent) for each in counts[:3]] == [
        ("latency", 1, 0), ("latency", 1, 10), ("latency", 2, 0),
    ]  # fmt: skip
    assert {each.different_ratio for each in counts if each.percent == 0 or each.rounds_count < 3} == {0.0}
    assert {each.found_ratio for each in counts if each.percent == 10 and each.rounds_count >= 3} == {1.0}


@pytest.mark.parametrize(
    ("delay_ns", "processes", "holds_count"),
    [(1, (), 1), (0, (), 0), (0, (1, 0), 1)],
    ids=["one way", "half a round trip is not held", "a reply"],
)
def test_a_slowed_read_returns_when_the_message_is_older_by_its_share(
    delay_ns: int, processes: tuple[int, ...], holds_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = get_backend(slowed_name("null", 50))()
    channel = ChannelSpec("ipcb-slowed", readers=1, max_message_bytes=1024, processes=processes)
    address: Address = backend.create(channel)
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            held: list[int] = []
            hold = reader._hold
            monkeypatch.setattr(type(reader), "_hold", lambda _, took_ns: (held.append(took_ns), hold(took_ns)))
            message = Outgoing(b"x")
            set_phase([message], Phase.MEASURE)
            message.head[INTENDED] = now_ns() - 100_000
            message.head[SENT] = message.head[INTENDED] + delay_ns
            writer.write(message.buffer, 1.0)
            reader.read(1.0)
            assert now_ns() - message.head[INTENDED] >= 100_000 + 125_000 * len(held)
            assert len(held) == holds_count
    finally:
        backend.destroy(address)


def test_a_round_trip_that_slept_is_held_as_one_of_one_and_a_half_times_the_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its hold would put the peer to sleep, and make the next trip slow, too."""
    backend = get_backend(slowed_name("null", 50))()
    address: Address = backend.create(ChannelSpec("ipcb-slowed", readers=1, max_message_bytes=1024, processes=(1, 0)))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            held: list[int] = []
            monkeypatch.setattr(type(reader), "_hold", lambda _, took_ns: held.append(took_ns))
            message = Outgoing(b"x")
            set_phase([message], Phase.MEASURE)
            for age_ns in (1_000_000, 3_600_000_000_000):
                message.head[INTENDED] = message.head[SENT] = now_ns() - age_ns
                writer.write(message.buffer, 1.0)
                reader.read(1.0)
            assert held[1] == int(1.5 * held[0])
    finally:
        backend.destroy(address)


def test_other_names_are_no_backends() -> None:
    import ipcbench.testing.faults.slowed as module

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018
