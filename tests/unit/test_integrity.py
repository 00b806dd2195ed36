"""The tracker counts each way in which delivery can go wrong, and nothing when it does not."""

import pytest

from ipcbench.harness.integrity import Tracker
from ipcbench.results.model import Integrity
from ipcbench.workload.message import HEADER_BYTES, SEQUENCE, Outgoing

SIZE = len(Outgoing(bytes(32)).buffer)


def message(sequence: int) -> memoryview:
    one = Outgoing(bytes(range(32)))
    one.head[SEQUENCE] = one.tail[0] = sequence
    return memoryview(one.buffer)


def judge(sequences, delivery="every_message", total=None) -> Integrity:
    tracker = Tracker(delivery, SIZE)
    for sequence in sequences:
        tracker.accept(message(sequence), hashing=True)
    return tracker.result(max(sequences) if total is None else total)


@pytest.mark.parametrize(
    ("sequences", "counts"),
    [
        ([1, 2, 3, 4], {}),
        ([1, 2, 4, 5], {"lost_count": 1}),
        ([1, 2, 2, 3], {"duplicated_count": 1}),
        ([1, 3, 2, 4], {"reordered_count": 1}),
        ([3, 4], {"lost_count": 2}),
        ([1, 5, 2, 2], {"lost_count": 2, "reordered_count": 1, "duplicated_count": 1}),
    ],
)
def test_every_message_demands_each_number_once_and_in_order(sequences, counts):
    found = judge(sequences)
    expected = Integrity(
        expected_count=max(sequences), received_count=len(sequences), hashed_count=len(sequences), **counts
    )
    assert found == expected


def test_messages_missing_at_the_end_are_lost():
    assert judge([1, 2], total=5).lost_count == 3


def test_latest_value_skips_without_error_but_may_not_go_back_or_repeat():
    found = judge([1, 4, 9], "latest_value")
    assert (found.skipped_count, found.errors_count) == (6, 0)
    assert judge([1, 4, 3], "latest_value").reordered_count == 1
    assert judge([1, 4, 4], "latest_value").duplicated_count == 1


def test_a_torn_message_is_counted_and_not_taken_for_a_lost_one():
    tracker = Tracker("every_message", SIZE)
    bad = bytearray(message(2))
    bad[HEADER_BYTES] ^= 1
    assert [tracker.accept(one, hashing=True) for one in (message(1), memoryview(bad), message(3))] == [
        True,
        False,
        True,
    ]
    assert tracker.result(3) == Integrity(expected_count=3, received_count=3, torn_count=1, hashed_count=3)


def test_a_short_message_is_torn():
    tracker = Tracker("every_message", SIZE)
    assert not tracker.accept(message(1)[:-1], hashing=False)
    assert tracker.result(1).torn_count == 1


def test_what_the_hot_loop_found_in_order_is_taken_over():
    tracker = Tracker("every_message", SIZE)
    tracker.accept(message(1), hashing=True)
    tracker.advance(count=9, last=10, hashed=2)
    tracker.accept(message(11), hashing=True)
    assert tracker.result(11) == Integrity(expected_count=11, received_count=11, hashed_count=4)
    latest = Tracker("latest_value", SIZE)
    latest.advance(count=4, last=10, hashed=0)
    assert latest.result(10).skipped_count == 6
