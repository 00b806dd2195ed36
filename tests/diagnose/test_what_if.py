"""Changes of calls: bytes and work go where the change moves them, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ipcbench.diagnose.costs import Costs
from ipcbench.diagnose.empty_call import EmptyCall
from ipcbench.diagnose.prediction import Recorded, changed_ns, with_known_work_ns, with_unknown_work_ns
from ipcbench.diagnose.what_if import (
    FEWER_CALLS,
    fewer_calls,
    half_precision,
    out_of_band,
    stay_on_one_side,
    usual_first_call,
    what_ifs,
    without_own_work,
)
from ipcbench.replay.traffic import COLUMNS, ThreadCalls
from tests.replay.made import thread, traffic

COSTS = Costs(2_000, 3_000, 0.5, 0.25, EmptyCall(1_500, 400, 300, 600, 189_000), (), (), ())


def same_but(changed: ThreadCalls, made: ThreadCalls, *names: str) -> None:
    """Require that only these columns changed."""
    for name in COLUMNS:
        if name not in names:
            assert (getattr(changed, name) == getattr(made, name)).all(), name


def test_out_of_band_leaves_a_small_head_to_pack_on_both_sides() -> None:
    made = thread(4, server_ns=90_000, before_ns=50_000, after_ns=40_000, other_ns=1_000)
    made = replace(made, recv_bytes=made.sent_bytes)
    changed = out_of_band(made, COSTS)
    same_but(changed, made, "before_ns", "after_ns", "server_ns")
    assert changed.before_ns.tolist() == [50_000, 2_000, 50_000, 2_000], "small messages stay as they are"
    assert changed.after_ns.tolist() == [40_000, 4_000, 40_000, 4_000]
    assert (changed.server_ns[1::2] < 90_000).all()
    assert (changed.server_ns[1::2] >= 5_000).all()


def test_no_change_makes_unknown_work_known() -> None:
    made = thread(4, server_ns=-1)
    for change in (lambda each: out_of_band(each, COSTS), lambda each: half_precision(each, COSTS),
                   lambda each: fewer_calls(each, COSTS), stay_on_one_side):  # fmt: skip
        assert (change(made).server_ns == -1).all()


def test_half_precision_halves_large_messages_and_pays_for_the_conversion() -> None:
    made = thread(4, server_ns=0, before_ns=20_000, after_ns=4_000)
    changed = half_precision(made, COSTS)
    same_but(changed, made, "before_ns", "after_ns", "server_ns", "sent_bytes", "recv_bytes")
    assert changed.sent_bytes.tolist() == [0, 50_000, 0, 50_000]
    assert (changed.recv_bytes == made.recv_bytes).all(), "20 bytes are no array"
    assert changed.before_ns.tolist() == [20_000, 10_000 + 50_000, 20_000, 10_000 + 50_000]
    assert changed.server_ns.tolist() == [0, 25_000, 0, 25_000]


def small(count: int) -> ThreadCalls:
    made = thread(count, server_ns=1_000)
    ten = np.full(count, 10)
    return replace(made, method=np.zeros(count, np.int64), sent_bytes=ten, recv_bytes=2 * ten)


def test_fewer_calls_keep_all_bytes_and_all_work_but_the_price_of_an_empty_call() -> None:
    """What each item takes to pack stayed once for all of them: 5 ms of packing were said to be gone."""
    made = small(250)
    made.gap_ns[7] += 900_000
    changed = fewer_calls(made, COSTS)
    assert len(changed.method) == 3
    assert changed.sent_bytes.tolist() == [1_000, 1_000, 500]
    for name in ("total_ns", "sent_bytes", "recv_bytes"):
        assert getattr(changed, name).sum() == getattr(made, name).sum(), name
    kept = np.array([100, 100, 50]) - 1
    assert (made.before_ns[0] * (kept + 1) - changed.before_ns).tolist() == (400 * kept).tolist()
    assert (made.after_ns[0] * (kept + 1) - changed.after_ns).tolist() == (300 * kept).tolist()
    assert made.gap_ns.sum() - changed.gap_ns.sum() == 1_500 * kept.sum()
    assert made.server_ns.sum() - changed.server_ns.sum() == 600 * kept.sum()
    quick = replace(made, before_ns=np.full(250, 100))
    assert fewer_calls(quick, COSTS).before_ns.tolist() == [100, 100, 100], "no more goes than is there"


def test_an_empty_call_costs_more_where_the_transport_was_slower_and_at_most_twice() -> None:
    made = small(250)
    for away_ns, times in ((95_000, 1.0), (189_000, 1.0), (283_500, 1.5), (900_000, 2.0)):
        slow = replace(made, total_ns=np.full(250, away_ns + 11_000), server_ns=np.full(250, 5_000),
                       before_ns=np.full(250, 3_000), after_ns=np.full(250, 3_000))  # fmt: skip
        changed = fewer_calls(slow, COSTS)
        assert slow.server_ns.sum() - changed.server_ns.sum() == 600 * times * 247
    unknown = replace(slow, server_ns=np.full(250, -1))
    assert unknown.before_ns.sum() - fewer_calls(unknown, COSTS).before_ns.sum() == 400 * 247


def test_calls_of_several_methods_and_large_ones_are_not_merged() -> None:
    made = thread(6)
    assert len(fewer_calls(made, COSTS).method) == 6


def test_a_reply_that_is_sent_back_stays_where_it_is() -> None:
    made = thread(4, server_ns=50_000)
    made = replace(made, recv_bytes=np.array([100_000, 8, 8, 8]), sent_bytes=np.array([8, 110_000, 8, 300_000]))
    changed = stay_on_one_side(made)
    assert changed.recv_bytes.tolist() == [64, 8, 8, 8]
    assert changed.sent_bytes.tolist() == [8, 10_064, 8, 300_000]


def test_a_late_first_call_is_made_usual_and_is_not_the_servers() -> None:
    made = thread(12, server_ns=50_000)
    for name, late_ns in (("server_ns", 9_000_000), ("server_most_ns", 9_000_000), ("total_ns", 9_200_000)):
        getattr(made, name)[0] = late_ns
    assert usual_first_call(made).server_ns[0] == 50_000
    assert without_own_work(made).server_ns[0] >= 9_000_000 - 50_000, "that is another remedy"
    even = thread(12)
    assert usual_first_call(even) is even


def test_only_what_could_matter_is_tried() -> None:
    idle = thread(server_ns=0, before_ns=0, after_ns=0, other_ns=0)
    assert [each.key for each in what_ifs(traffic(idle), COSTS)] == ["half precision"]
    keys = [each.key for each in what_ifs(traffic(small(60)), COSTS)]
    assert "fewer calls" in keys
    assert "half precision" not in keys
    known, unknown = traffic(small(60)), traffic(replace(small(60), server_ns=np.full(60, -1)))
    untold = replace(COSTS, empty_call=EmptyCall())
    for calls, costs, ends in ((known, COSTS, "both sides"), (unknown, COSTS, "known"), (known, untold, "measured")):
        assert next(each.note for each in what_ifs(calls, costs) if each.key == FEWER_CALLS).endswith(ends)


@pytest.mark.parametrize(("time", "usual", "expected"), [(50, 100, 50), (50, 60, 90), (50, 200, 25), (300, 200, 150)])
def test_a_replay_is_read_beside_that_of_the_recorded_calls(time: float, usual: float, expected: float) -> None:
    """Recorded: 100. What the recording took beyond its replay stays; a slower replay is scaled."""
    assert changed_ns(time, usual, 100) == pytest.approx(expected)


def test_what_a_server_may_do_for_each_item_stays_with_fewer_calls() -> None:
    """It works 1 ms for each of 200 calls, and was not recorded; 311 ms were said to become 17."""
    made = replace(small(200), server_ns=np.full(200, -1), server_most_ns=np.full(200, 1_150_000),
                   total_ns=np.full(200, 1_200_000))  # fmt: skip
    recorded = Recorded(traffic(made), traffic(made), None, 0.0)
    usual_ns, merged_ns = 30_000_000, 2_000_000
    took_ns = with_unknown_work_ns(recorded, [merged_ns], [usual_ns])
    assert took_ns == pytest.approx(made.recorded_ns - (usual_ns - merged_ns))


@pytest.mark.parametrize(
    ("usual_rest", "changed_rest", "expected_rest"),
    [(200, 100, 150), (200, 200, 300), (600, 200, 100), (10, 5, 10 + 280), (-5, 100, 100 + 300), (300, 0, 0)],
)
def test_what_is_left_of_the_transport_keeps_its_share_of_what_the_recording_took_beyond_its_replay(
    usual_rest: int, changed_rest: int, expected_rest: int
) -> None:
    """After the long waits for a slow server every call is slow; without them, a call costs less beyond a replay, too.

    In µs; the recorded calls have 300 beyond all work.
    """
    before = traffic(thread(3, total_ns=160_000, before_ns=0, after_ns=0, other_ns=0, server_ns=60_000))
    work_ns = before.recorded_ns - 300_000
    changed = traffic(thread(3, before_ns=0, after_ns=0, other_ns=0, server_ns=10_000))
    left_ns = work_ns - 3 * 50_000
    recorded = Recorded(before, before, None, 0.0)
    times_ns, usual_ns = [left_ns + 1000 * changed_rest], [work_ns + 1000 * usual_rest]
    took_ns = with_known_work_ns(recorded, changed, changed, times_ns, usual_ns)
    assert took_ns == pytest.approx(left_ns + 1000 * expected_rest)


def test_a_server_that_three_clients_keep_busy_is_most_of_the_time() -> None:
    """It works 60 µs in each call of each: a third of their time, and most of its own."""
    made = [thread(20, 60_000, str(number), "s") for number in range(3)]
    (server,) = (each for each in what_ifs(traffic(*made), COSTS) if each.key == "server")
    assert not server.condition
    alone = [replace(each, server="") for each in made]
    (server,) = (each for each in what_ifs(traffic(*alone), COSTS) if each.key == "server")
    assert server.condition


@pytest.mark.parametrize(("server_ns", "is_conditional"), [(150_000, False), (50_000, True)])
def test_a_servers_work_is_a_remedy_only_where_it_is_most_of_the_time(server_ns: int, is_conditional: bool) -> None:
    """Nobody knows how much of it can go: as a rank it would hide what is sure."""
    made = traffic(thread(server_ns=server_ns, server_most_ns=server_ns))
    (server,) = (each for each in what_ifs(made, COSTS) if each.key == "server")
    assert bool(server.condition) is is_conditional
