"""Diagnoses of programs with a fault, and what is claimed of measured changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipcbench.diagnose.diagnosis import (
    BASE,
    FIRST_CALL,
    TRANSPORT,
    Diagnosis,
    Remedy,
    _from_recording,
    _interval,
    _part,
    _replayed,
    diagnose,
    source_of,
)
from ipcbench.diagnose.prediction import Recorded, work_ns
from ipcbench.diagnose.render import gain_words, total_words
from ipcbench.diagnose.what_if import SERVER, WhatIf, changed, usual_first_call, without_own_work
from ipcbench.replay.clients import read_traffic
from ipcbench.replay.run import Contender, Measured, Request
from ipcbench.replay.traffic import ThreadCalls, Traffic
from ipcbench.stats.estimates import Interval
from tests.replay.made import thread, traffic

ROOT = Path(__file__).parents[2]


def diagnosed(fault: str, folder: Path, source: str, budget_s: float = 60) -> Diagnosis:
    """Run the program with the fault, and diagnose what it recorded."""
    command = [sys.executable, "-m", "tests.diagnose.faulty", fault, str(folder / "trace")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = read_traffic(folder / "trace")
    assert found.server_known
    return diagnose(found, Request(backends=("zmq", "shm"), rounds=3, budget_s=budget_s, source=source))


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


def test_a_server_that_came_late_is_found_whatever_the_budget(tmp_path: Path) -> None:
    """The wait for it is most of the time; if that cut what is replayed, it would be a single call."""
    made = diagnosed("late server", tmp_path, "zmq", budget_s=8)
    assert made.remedies[0].key == FIRST_CALL
    assert made.remedies[0].predicted_ns.estimate < made.recorded_ns / 2
    assert made.replayed_count > 20
    assert not any(each.gain_ratio.low > 0.5 for each in made.others), "that wait for a server is no wait for a core"


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
        (replace(remedy(0.1, 0.2, 0.3), has_few_calls=True), False),
    ],
    ids=[
        "clear",
        "may be a loss",
        "two rounds",
        "on a condition",
        "less than one in a hundred",
        "as recorded",
        "few calls",
    ],
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


def late(count: int = 50, late_ns: int = 100_000_000) -> ThreadCalls:
    """Return calls of which the first waited for a server that came late."""
    made = thread(count)
    made.queue_ns[:] = 1_000
    made.queue_ns[0] += late_ns
    made.total_ns[0] += late_ns
    return made


def test_a_server_that_came_late_is_gone_with_another_transport() -> None:
    """To warm up would help, and no transport."""
    whole = traffic(late())
    part = changed(whole, usual_first_call)
    contenders = {BASE: Contender("zmq", part), f"{TRANSPORT}shm": Contender("shm", part)}
    measured = {name: Measured(threads_ns=[[part.recorded_ns]] * 3) for name in contenders}
    (shm,) = _replayed(Recorded(whole, part, None, 0.0), contenders, measured, ())
    assert not shm.helps
    (first,) = _from_recording(whole)
    assert first.key == FIRST_CALL
    assert first.gain_ratio.estimate > 0.8


@pytest.mark.parametrize("usual_queue_ns", [1_000, 0, -1])
def test_a_late_server_cuts_what_is_replayed_to_its_first_call(usual_queue_ns: int) -> None:
    """Nobody waits for it in a replay; nor for one that was away later."""
    made = late(200, 20_000_000_000)
    made.queue_ns[1:] = usual_queue_ns
    part = _part(changed(traffic(made), usual_first_call), 200 * 210_000)
    assert len(part.threads[0].method) == 200
    assert len(traffic(made).limited(100 * 210_000).threads[0].method) >= 50
    made.total_ns[:2] = made.total_ns[1::-1]
    made.queue_ns[:2] = made.queue_ns[1::-1]
    assert len(_part(traffic(made), 100 * 210_000).threads[0].method) >= 50


def test_a_server_that_had_no_core_for_a_while_was_there() -> None:
    """20 ms are 20,000 times the usual queue, and no time that another server would not have waited."""
    made = late(50, 20_000_000)
    assert not made.stuck_ns.any()
    assert late(50, 60_000_000).stuck_ns[0] == 60_001_000 - 10_000


def test_a_large_first_message_is_a_late_first_call() -> None:
    made = thread(50)
    made.sent_bytes[0], made.total_ns[0] = 2**24, 20_000_000
    assert not list(_from_recording(traffic(made)))
    made.sent_bytes[0] = 0
    assert [each.key for each in _from_recording(traffic(made))] == [FIRST_CALL]


@pytest.mark.parametrize("late_at", [0, 20])
def test_a_wait_for_an_absent_server_is_a_wait_for_a_core(late_at: int) -> None:
    """While it started, it waited 60 ms for a core; its calls are as quick as ever."""
    made = late()
    for column in (made.total_ns, made.queue_ns):
        column[[0, late_at]] = column[[late_at, 0]]
    waited_ns = {made.name: 60_000_000}
    found = [each.key for each in _from_recording(replace(traffic(made), waited_ns=waited_ns))]
    assert found == ([FIRST_CALL] if late_at == 0 else [])
    made.total_ns[1:] += 3_000_000 * (made.method[1:] == 1) * (np.arange(49) % 3 > 0)
    found = [each.key for each in _from_recording(replace(traffic(made), waited_ns=waited_ns))]
    assert "neighbours" in found


def replayed(whole: Traffic, count: int, lost_ns: float = 0.0) -> Remedy:
    """Return what another transport would bring, from replays of so many calls that take half as long over it."""
    part = replace(whole, threads=tuple(each.first(count) for each in whole.threads))
    contenders = {BASE: Contender("zmq", part), f"{TRANSPORT}shm": Contender("shm", part)}
    times = {name: 1_000_000 * count // (1 if name == BASE else 2) for name in contenders}
    measured = {name: Measured(threads_ns=[[times[name]] * len(whole.threads)] * 3) for name in contenders}
    (found,) = _replayed(Recorded(whole, part, None, lost_ns), contenders, measured, ())
    return found


@pytest.mark.parametrize("server_ns", [50_000, -1])
def test_the_gain_of_another_transport_holds_what_a_wait_for_a_core_may_become(server_ns: int) -> None:
    whole = traffic(thread(200, server_ns, total_ns=2_000_000))
    quiet, little, much = (replayed(whole, 50, share * whole.recorded_ns) for share in (0.0, 0.1, 0.6))
    assert quiet.helps
    assert little.helps
    gain = little.gain_ratio
    assert gain.high - gain.estimate == pytest.approx(0.1)
    assert gain.estimate - gain.low == pytest.approx(0.1)
    assert not much.helps


@pytest.mark.parametrize("server_ns", [50_000, -1])
def test_a_replay_of_few_calls_claims_something(server_ns: int) -> None:
    whole = traffic(thread(200, server_ns, total_ns=2_000_000))
    assert replayed(whole, 6).helps
    few = replayed(whole, 5)
    assert not few.helps
    assert not few.is_sure
    assert few.predicted_ns.low == few.predicted_ns.high
    assert "[" not in gain_words(few)
    assert not replayed(traffic(thread(3, total_ns=2_000_000)), 3).is_sure, "nor does a recording of few"


@pytest.mark.parametrize("is_known", [True, False])
def test_three_clients_of_one_thread_are_predicted_to_end_before_it_does(is_known: bool) -> None:
    """It works for 150 µs on each of their calls, one at a time; the replay was impossibly quick."""
    server_most_ns = 150_000 if is_known else 1_000_000
    made = [thread(20, 150_000, str(number), "s", total_ns=500_000, server_most_ns=server_most_ns)
            for number in range(3)]  # fmt: skip
    whole, work_ns = traffic(*made), 3 * 20 * 150_000
    contenders = {BASE: Contender("zmq", whole), f"{TRANSPORT}shm": Contender("shm", whole)}
    measured = {BASE: Measured(threads_ns=[[made[0].recorded_ns] * 3] * 3),
                f"{TRANSPORT}shm": Measured(threads_ns=[[1] * 3] * 3)}  # fmt: skip
    (found,) = _replayed(Recorded(whole, whole, None, 0.0), contenders, measured, ())
    assert found.predicted_ns.low == pytest.approx(work_ns)
    apart = replace(whole, threads=tuple(replace(each, total_ns=each.total_ns - 200_000) for each in made))
    (found,) = _replayed(Recorded(apart, apart, None, 0.0), contenders, measured, ())
    assert found.predicted_ns.low < work_ns, "they called one after another"


def test_a_client_of_few_calls_hides_what_others_show() -> None:
    """All of its calls are replayed, and it is not the slowest."""
    whole = traffic(thread(200, total_ns=2_000_000), thread(2, total_ns=2_000_000))
    assert replayed(whole, 10).helps
    assert not replayed(whole, 1).is_sure


def shared(count: int = 20) -> list[ThreadCalls]:
    """Return three clients of one server, which works 150 µs in each call; the rest of a call is queue."""
    return [thread(count, 150_000, str(number), "s", total_ns=500_000) for number in range(3)]


@pytest.mark.parametrize("part_count", [20, 10])
def test_a_queue_is_neither_transport_nor_a_wait_for_a_core(part_count: int) -> None:
    """The server waited for a core while it worked: that is in its work, and in what its clients queued. Over another
    transport that takes as long, twice the recorded time was predicted.
    """
    whole = replace(traffic(*shared()), waited_ns={"s": 9_000_000})
    part = replace(whole, threads=tuple(each.first(part_count) for each in whole.threads))
    contenders = {BASE: Contender("zmq", part), f"{TRANSPORT}shm": Contender("shm", part)}
    measured = {name: Measured(threads_ns=[[8_000_000] * 3] * 3) for name in contenders}
    (found,) = _replayed(Recorded(whole, part, None, 9e6), contenders, measured, ())
    assert found.predicted_ns.estimate == pytest.approx(whole.recorded_ns)


def test_nothing_is_claimed_of_clients_that_take_turns() -> None:
    """A replay spins where they waited: shared memory was said to take four times as long."""
    whole = replace(traffic(*shared()), takes_turns=True)
    contenders = {BASE: Contender("zmq", whole), f"{TRANSPORT}shm": Contender("shm", whole)}
    measured = {name: Measured(threads_ns=[[8_000_000] * 3] * 3) for name in contenders}
    assert not list(_replayed(Recorded(whole, whole, None, 0.0), contenders, measured, ()))


def test_a_server_without_work_costs_nothing_more() -> None:
    whole = traffic(thread(20))
    contenders = {BASE: Contender("zmq", whole), SERVER: Contender("zmq", whole)}
    times_ns = {BASE: whole.recorded_ns, SERVER: 2 * whole.recorded_ns}
    measured = {name: Measured(threads_ns=[[times_ns[name]]] * 3) for name in contenders}
    (found,) = _replayed(Recorded(whole, whole, None, 0.0), contenders, measured, [WhatIf(SERVER, without_own_work)])
    assert found.gain_ratio.estimate == 0


def test_a_slower_day_makes_no_transport_slower() -> None:
    """What the calls as recorded take here beyond their work is twice what it was, and so is that over shm."""
    whole = traffic(thread(20))
    rest_ns = whole.recorded_ns - work_ns(whole.threads[0])
    contenders = {BASE: Contender("zmq", whole), f"{TRANSPORT}shm": Contender("shm", whole)}
    measured = {name: Measured(threads_ns=[[whole.recorded_ns + rest_ns]] * 3) for name in contenders}
    (found,) = _replayed(Recorded(whole, whole, None, 0.0), contenders, measured, ())
    assert found.predicted_ns.estimate == pytest.approx(whole.recorded_ns)


def test_a_wait_for_a_core_is_bounded_by_what_the_server_works_at_least() -> None:
    """It works 150 µs at least in each of 60 calls, one at a time; some were answered at once."""
    made = shared()
    made[0].total_ns[:6], made[0].total_ns[6:] = 200_000, 700_000
    whole = replace(traffic(*made), waited_ns={"s": 10**12, "0": 0, "1": 0, "2": 0})
    (found,) = _from_recording(whole)
    assert found.predicted_ns.estimate == pytest.approx(60 * 150_000)
    assert found.bound == "at most"
    few = replace(whole, threads=tuple(each.first(5) for each in whole.threads))
    assert not list(_from_recording(few))


def test_no_interval_reaches_below_work_that_is_known() -> None:
    found = _interval([21.8, 36.6, 38.2], least=21.8, most=37.0)
    assert (found.low, found.estimate, found.high) == (21.8, 36.6, 37.0)


def test_bounds_are_said_as_bounds() -> None:
    known = Interval(0.2, 0.3, 0.4)
    made = Remedy("fewer calls", "zmq", 3, Interval(6e6, 7e6, 8e6), known)
    assert (total_words(made, "en"), gain_words(made)) == ("at most 7.00 ms", "at least 30.0 [20.0, 40.0]")
    most = Remedy("neighbours", "", 0, Interval(7e6, 7e6, 7e6), Interval(0.3, 0.3, 0.3))
    assert (total_words(most, "en"), gain_words(most)) == ("at least 7.00 ms", "at most 30.0")
