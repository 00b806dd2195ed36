"""Diagnoses of programs with a fault, and what is claimed of measured changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.diagnose.diagnosis import BASE, FIRST_CALL, TRANSPORT, Diagnosis, Remedy, _replayed, diagnose, source_of
from ipcbench.diagnose.prediction import Recorded
from ipcbench.diagnose.what_if import what_ifs
from ipcbench.replay.clients import read_traffic
from ipcbench.replay.run import Contender, Measured, Request
from ipcbench.stats.estimates import Interval
from tests.diagnose.test_what_if import COSTS
from tests.replay.made import thread, traffic

ROOT = Path(__file__).parents[2]


def diagnosed(fault: str, folder: Path, source: str) -> Diagnosis:
    """Run the program with the fault, and diagnose what it recorded."""
    command = [sys.executable, "-m", "tests.diagnose.faulty", fault, str(folder / "trace")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = read_traffic(folder / "trace")
    assert found.server_known
    return diagnose(found, Request(backends=("zmq", "shm"), rounds=3, budget_s=60, source=source))


def test_a_far_way_is_found_and_no_other_change_is_said_to_mend_it(tmp_path: Path) -> None:
    """A relay delays each message by 5 ms; whatever else is slow here is far below that."""
    made = diagnosed("relay", tmp_path, "zmq-tcp-insecure")
    every = made.attributions[0]
    assert every.share("excess", "queue") > 0.8
    assert made.remedies[0].key.startswith("transport ")
    assert made.remedies[0].gain_ratio.estimate > 0.3, "0.9 where processes need not wait for a core"
    assert {floor.backend for floor in made.floors} == {"zmq-tcp-insecure", "zmq", "shm"}
    assert not made.failures


def test_a_late_first_call_is_found(tmp_path: Path) -> None:
    made = diagnosed("slow first call", tmp_path, "zmq")
    assert made.remedies[0].key == "first call"
    assert made.remedies[0].predicted_ns.estimate < made.recorded_ns / 2


def remedy(*gain: float, rounds_count: int = 3, backend: str = "zmq", condition: str = "") -> Remedy:
    low, estimate, high = gain
    return Remedy("x", backend, rounds_count, Interval(1, 2, 3), Interval(low, estimate, high), "", condition)


@pytest.mark.parametrize(
    ("made", "helps"),
    [
        (remedy(0.1, 0.2, 0.3), True),
        (remedy(-0.01, 0.2, 0.3), False),
        (remedy(0.1, 0.2, 0.3, rounds_count=2), False),
        (remedy(0.1, 0.2, 0.3, condition="it is float32"), False),
        (remedy(0.001, 0.005, 0.008), False),
        (remedy(0.2, 0.2, 0.2, rounds_count=0, backend=""), True),
    ],
    ids=["clear", "may be a loss", "two rounds", "on a condition", "less than one in a hundred", "as recorded"],
)
def test_a_change_helps_only_if_all_of_its_interval_is_a_gain(made: Remedy, helps: bool) -> None:
    assert made.helps is helps


@pytest.mark.parametrize(
    ("names", "source"),
    [(("IPC",), "zmq"), (("TCP",), "zmq-tcp-insecure"), (("IPC+SHM",), "zmq"), (("shm",), "shm"),
     (("pipe", "TCP"), "pipe"), (("HTTP",), ""), ((), "")],
)  # fmt: skip
def test_the_recordings_word_for_its_transport_stands_for_a_backend(names: tuple[str, ...], source: str) -> None:
    assert source_of(replace(traffic(), transports=names)) == source


def test_only_the_last_run_of_a_log_is_diagnosed(tmp_path: Path) -> None:
    """The first one is a warm-up: its calls would count twice."""
    rows = "\n".join(
        f"{number:<5} {'Echo':<20} {1.0:<15.3f} {1.0:<12.3f} {time:<12.3f} {1.0:<17.3f} {time + 3:<12.3f} {1.0:<12.2f} "
        f"{1.0:<12.2f} {1.0:<18.2f}"
        for time in (500.0, 5.0)
        for number in (1, 2, 3)
    )
    heads = ("ID", "Method", "Serialize(ms)", "Send(ms)", "Recv(ms)", "Deserialize(ms)", "Total(ms)", "Sent(KB)",
             "Recv(KB)", "Throughput(MB/s)")  # fmt: skip
    ruler = "=" * 120
    log = f"ZeroMQ Performance Log - Transport: TCP\n{ruler}\n{' '.join(heads)}\n{ruler}\n{rows}\n"
    (tmp_path / "zmq_performance.log").write_text(log)
    whole = read_traffic(tmp_path / "zmq_performance.log")
    last = read_traffic(tmp_path / "zmq_performance.log", last_run=True)
    assert (whole.calls_count, last.calls_count) == (6, 3)
    assert last.threads[0].total_ns.max() == 8_000_000
    assert last.transports == ("TCP",)
    assert "3 calls of runs before the last one in the log are left out." in last.remarks


def test_what_a_part_of_calls_that_nobody_made_takes_stands_for_all_of_them() -> None:
    """It was given as the total of all calls."""
    whole = replace(traffic(thread(16)), is_timed=False)
    part = replace(whole, threads=(whole.threads[0].first(8),))
    contenders = {BASE: Contender("zmq", part), f"{TRANSPORT}shm": Contender("shm", part)}
    times = dict(zip(contenders, (1_000, 250), strict=True))
    measured = {name: Measured(threads_ns=[[time_ns]] * 3) for name, time_ns in times.items()}
    (found,) = _replayed(Recorded(whole, part, None, 0.0), contenders, measured, ())
    assert found.predicted_ns.estimate == pytest.approx(2 * 250)
    assert found.gain_ratio.estimate == pytest.approx(0.75)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_slow_call_beyond_the_part_that_is_replayed_is_gone_with_another_transport(is_known: bool) -> None:
    """100 calls of 0.2 ms are replayed; of the 100 after them, one took half a second at the server."""
    made = thread(200, server_ns=50_000 if is_known else -1)
    for name in ("total_ns", *(("server_ns", "server_most_ns") if is_known else ())):
        getattr(made, name)[150] += 500_000_000
    whole = traffic(made)
    part = replace(whole, threads=(made.first(100),))
    contenders = {BASE: Contender("zmq", part), f"{TRANSPORT}shm": Contender("shm", part)}
    usual_ns = part.recorded_ns
    measured = {name: Measured(threads_ns=[[usual_ns if name == BASE else usual_ns // 2]] * 3) for name in contenders}
    (found,) = _replayed(Recorded(whole, part, None, 0.0), contenders, measured, ())
    assert found.predicted_ns.low > 500_000_000
    assert found.predicted_ns.high < whole.recorded_ns


def test_a_server_that_came_late_is_gone_with_another_transport() -> None:
    """The first call waited 100 ms for it; to warm up would help, and no transport."""
    made = thread(50)
    made.queue_ns[:] = 1_000
    made.queue_ns[0] += 100_000_000
    made.total_ns[0] += 100_000_000
    whole = traffic(made)
    usual_ns = whole.recorded_ns - 100_000_000
    changed = [each for each in what_ifs(whole, COSTS) if each.key == FIRST_CALL]
    contenders = {BASE: Contender("zmq", whole), f"{TRANSPORT}shm": Contender("shm", whole),
                  FIRST_CALL: Contender("zmq", changed[0].traffic)}  # fmt: skip
    measured = {name: Measured(threads_ns=[[usual_ns]] * 3) for name in contenders}
    found = {each.key: each for each in _replayed(Recorded(whole, whole, None, 0.0), contenders, measured, changed)}
    assert not found[f"{TRANSPORT}shm"].helps
    assert found[FIRST_CALL].gain_ratio.estimate > 0.8
