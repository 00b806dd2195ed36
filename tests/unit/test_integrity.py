"""The tracker counts each way in which delivery can go wrong, and nothing else."""

import pytest

from ipcbench.harness.integrity import Tracker
from ipcbench.results.model import Integrity
from ipcbench.workload.message import HEADER_BYTES, SEQUENCE, Outgoing

SIZE = len(Outgoing(bytes(32)).buffer)


def message(sequence: int) -> memoryview:
    outgoing = Outgoing(bytes(range(32)))
    outgoing.head[SEQUENCE] = outgoing.tail[0] = sequence
    return memoryview(outgoing.buffer)


def track(sequences, delivery="every_message", total=None) -> Integrity:
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
def test_every_message_requires_each_number_once_and_in_order(sequences, counts):
    expected = Integrity(
        expected_count=max(sequences), received_count=len(sequences), hashed_count=len(sequences), **counts
    )
    assert track(sequences) == expected


def test_messages_missing_at_the_end_are_lost_and_a_short_one_is_torn():
    assert track([1, 2], total=5).lost_count == 3
    tracker = Tracker("every_message", SIZE)
    assert not tracker.accept(message(1)[:-1], hashing=False)
    assert tracker.result(1).torn_count == 1


def test_latest_value_skips_without_error_but_may_not_go_back_or_repeat():
    skipping = track([1, 4, 9], "latest_value")
    assert (skipping.skipped_count, skipping.errors_count) == (6, 0)
    assert track([1, 4, 3], "latest_value").reordered_count == 1
    assert track([1, 4, 4], "latest_value").duplicated_count == 1


def test_a_torn_message_is_not_counted_as_lost_too():
    tracker = Tracker("every_message", SIZE)
    bad = bytearray(message(2))
    bad[HEADER_BYTES] ^= 1
    views = (message(1), memoryview(bad), message(3))
    assert [tracker.accept(view, hashing=True) for view in views] == [True, False, True]
    assert tracker.result(3) == Integrity(expected_count=3, received_count=3, torn_count=1, hashed_count=3)


def test_messages_that_the_hot_loop_has_checked_are_counted():
    tracker = Tracker("every_message", SIZE)
    tracker.accept(message(1), hashing=True)
    tracker.advance(count=9, last=10, hashed=2)
    tracker.accept(message(11), hashing=True)
    assert tracker.result(11) == Integrity(expected_count=11, received_count=11, hashed_count=4)
    latest = Tracker("latest_value", SIZE)
    latest.advance(count=4, last=10, hashed=0)
    assert latest.result(10).skipped_count == 6
