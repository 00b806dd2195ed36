"""Parts of calls: they add up, unknown work stays unknown, and nothing is claimed beyond the floor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcbench.diagnose.attribution import PARTS, attribute, floors_ns, own_serialization
from ipcbench.replay.latency_table import LatencyTable
from tests.replay.made import thread, traffic

FLOOR = LatencyTable((0, 100_000), (10_000.0, 40_000.0))
"""10 µs a message, and 0.3 ns a byte."""


def test_parts_of_a_call_whose_server_is_known() -> None:
    """A small call: 200 µs, 5 before, 5 after of which 1 outside stages, 50 of the server, and 20 of the floor."""
    every, small, large = attribute(traffic(thread(2, name="one")), FLOOR)
    assert (every.name, every.calls_count, every.total_ns) == ("", 2, 400_000)
    assert (small.name, large.name) == ("Small", "Large")
    assert small.parts_ns["serialize"] == 5_000
    assert small.parts_ns["fixed"] == 20_000
    assert small.parts_ns["bytes"] == pytest.approx(0.3 * 3)
    assert small.parts_ns["server"] == 50_000
    assert small.parts_ns["excess"] == pytest.approx(140_000 - 20_000 - 0.9)
    assert (small.parts_ns["deserialize"], small.parts_ns["other"]) == (4_000, 1_000)
    assert (small.parts_ns["unknown"], small.parts_ns["queue"]) == (0, 0)
    assert large.parts_ns["bytes"] == pytest.approx(0.3 * 100_020)
    assert small.share("serialize", "deserialize") == pytest.approx(9 / 200)


def test_what_may_be_the_servers_is_unknown() -> None:
    every = attribute(traffic(thread(server_ns=-1)), FLOOR)[0]
    assert every.parts_ns["server"] == every.parts_ns["excess"] == 0
    assert every.parts_ns["unknown"] > 0


def test_a_server_that_is_known_in_part_leaves_the_rest_unknown() -> None:
    part = attribute(traffic(thread(server_ns=30_000, server_most_ns=190_000)), FLOOR)[0]
    assert part.parts_ns["server"] == 12 * 30_000
    assert part.parts_ns["excess"] == 0
    assert part.parts_ns["unknown"] > 0


def test_without_a_floor_all_of_the_way_is_left_over() -> None:
    every = attribute(traffic(), None)[0]
    assert every.parts_ns["fixed"] == every.parts_ns["bytes"] == 0
    assert every.parts_ns["excess"] == 12 * 140_000


def test_calls_quicker_than_the_floor_are_counted_and_take_no_more_than_they_did() -> None:
    slow = LatencyTable((0, 100_000), (1e9, 1e9))
    every = attribute(traffic(), slow)[0]
    assert every.quicker_count == 12
    assert every.parts_ns["fixed"] == 12 * 140_000
    assert every.parts_ns["excess"] == 0


@given(st.tuples(*[st.integers(0, 10**6)] * 3), st.integers(-1, 10**6), st.integers(-1, 10**6), st.integers(0, 10**7))
def test_parts_add_up_to_the_total(work: tuple[int, int, int], server_ns: int, queue_ns: int, total_ns: int) -> None:
    before, after, other = work
    least = before + after + max(server_ns, 0) + max(queue_ns, 0)
    times = {"before_ns": before, "after_ns": after, "other_ns": min(other, after), "queue_ns": queue_ns}
    made = thread(4, server_ns=server_ns, total_ns=max(total_ns, least), **times)
    for each in attribute(traffic(made), FLOOR):
        assert sum(each.parts_ns[part] for part in PARTS) == pytest.approx(each.total_ns)
        assert min(each.parts_ns.values()) >= 0


def test_the_floor_of_all_calls_is_that_of_both_messages() -> None:
    (whole,) = floors_ns(traffic(), [FLOOR])
    assert whole == pytest.approx(6 * (20_000 + 0.3 * 3) + 6 * (20_000 + 0.3 * 100_020))


def test_a_server_serializes_as_its_client_does_and_never_longer_than_it_worked() -> None:
    made = thread(4, server_ns=50_000, before_ns=100_000, after_ns=5_000, other_ns=5_000)
    assert not any(each.any() for each in own_serialization(made)), "it packs no large reply, and nobody unpacks one"
    made = replace(made, recv_bytes=made.sent_bytes // 4)
    unpack, pack = own_serialization(made)
    assert (unpack == 0).all(), "the client takes no time to unpack"
    assert pack.tolist() == [0, 25_000, 0, 25_000]
    assert (own_serialization(replace(made, recv_bytes=made.sent_bytes))[1] <= 50_000).all()
    assert np.all(own_serialization(thread(4, server_ns=-1))[0] == 0)


def test_what_quick_calls_lack_of_serialization_was_taken_by_slow_ones() -> None:
    """The client packs in 10 ms on average, and the server's calls scatter: none of that is its own work."""
    made = thread(4, server_ns=0, after_ns=0, other_ns=0)
    made = replace(
        made,
        method=np.zeros(4, np.int64),
        sent_bytes=np.full(4, 10**6),
        recv_bytes=np.full(4, 10**6),
        before_ns=np.array([20, 8, 6, 6]) * 10**6,
        server_ns=np.array([4, 18, 8, 8]) * 10**6,
    )
    unpack, pack = own_serialization(made)
    assert (unpack + pack).sum() == pytest.approx(38e6)
    made = replace(made, server_ns=made.server_ns + 10**7)
    assert sum(each.sum() for each in own_serialization(made)) == pytest.approx(40e6), "the rest is its own"
