"""The self-test's counting, and the backends whose slowness is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipcbench.backend import Address
from ipcbench.harness.loops import set_phase
from ipcbench.registry import get_backend
from ipcbench.selftest import SLOWDOWNS_PERCENT, VerdictCounts, noise_of, upper_bound, verdicts
from ipcbench.spec import ChannelSpec
from ipcbench.testing.faults.slowed import slowed_name
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import INTENDED, Outgoing, Phase
from tests.unit.builders import Cell, make_run


@pytest.mark.parametrize(("hits", "count", "expected"), [(0, 59, 0.0495), (10, 200, 0.0832), (1, 1, 1.0)])
def test_the_upper_bound_is_the_exact_one(hits: int, count: int, expected: float) -> None:
    assert upper_bound(hits, count) == pytest.approx(expected, abs=2e-4)


def test_both_directions_count_as_false() -> None:
    counts = VerdictCounts(percent=0, verdicts_count=20, slower_count=1, faster_count=2)
    assert (counts.different_ratio, counts.found_ratio) == (0.15, 0.05)


def test_each_size_gives_a_verdict_on_each_slow_down(tmp_path: Path) -> None:
    names = (slowed_name("shm", 0, again=True), *(slowed_name("shm", percent) for percent in (0, *SLOWDOWNS_PERCENT)))
    latency = dict(zip(names, (10_000.0, 10_000.0, 10_500.0, 11_000.0, 12_000.0), strict=True))
    cells = {(name, size): Cell(latency[name]) for name in names for size in (64, 128)}
    run = make_run(tmp_path / "run", cells, modes=("paced",), payload="bytes", codec="raw")
    found = list(verdicts(run, noise_of(run)))
    assert [percent for percent, _ in found] == [0, *SLOWDOWNS_PERCENT] * 2
    assert {verdict for percent, verdict in found if percent == 0} == {"no clear difference"}
    assert {verdict for percent, verdict in found if percent >= 10} == {"slower"}


def test_a_slowed_read_returns_when_the_message_is_older_by_its_share() -> None:
    backend = get_backend(slowed_name("null", 50))()
    address: Address = backend.create(ChannelSpec("ipcb-slowed", readers=1, max_message_bytes=1024))
    try:
        with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
            message = Outgoing(b"x")
            set_phase([message], Phase.MEASURE)
            message.head[INTENDED] = now_ns() - 100_000
            writer.write(message.buffer, 1.0)
            reader.read(1.0)
            assert now_ns() - message.head[INTENDED] >= 225_000
    finally:
        backend.destroy(address)


def test_other_names_are_no_backends() -> None:
    import ipcbench.testing.faults.slowed as module

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018
