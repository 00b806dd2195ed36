"""The suite can verify each of its messages, and its counts say what is wrong with a stream."""

from __future__ import annotations

import pytest

from ipcbench.testing.agents.pattern import (
    KINDS,
    StreamCounts,
    is_message,
    is_plain_view,
    make_as,
    make_message,
    read_header,
)

SIZES = [64, 16, 100]


def counts_of(sequences, count=10, seed=7, spoil=()):
    counts = StreamCounts(0, count)
    for place, sequence in enumerate(sequences):
        message = bytearray(make_message(seed, sequence, SIZES[sequence % len(SIZES)]))
        if place in spoil:
            message[-1] ^= 1
        counts.add(memoryview(message), 7, SIZES)
    return counts.as_dict()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 65_521, 65_537, 65_538, 200_000])
def test_a_message_is_known_by_every_byte(size):
    message = make_message(3, 5, size)
    assert len(message) == size
    assert is_message(memoryview(message), 3, 5, size)
    assert not is_message(memoryview(message + b"x"), 3, 5, size)
    for place in {0, size // 2, size - 1} if size else ():
        changed = bytearray(message)
        changed[place] ^= 0x80
        assert not is_message(memoryview(changed), 3, 5, size)
    if size >= 16:
        assert read_header(memoryview(message)) == (5, 3)
        assert not any(make_message(seed, n, size) == message for seed, n in ((3, 6), (4, 5)))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_holds_the_same_bytes(kind):
    made = make_as(kind, 1, 2, 33)
    assert bytes(made) == make_message(1, 2, 33)
    assert is_plain_view(made) == isinstance(made, memoryview)


def test_a_whole_stream_has_nothing_to_say():
    counts = counts_of(range(10))
    assert counts["received_count"] == 10
    assert not any(counts[what] for what in ("gaps", "missing_count", "repeated", "disordered", "ended"))
    assert not counts["damaged_count"] + counts["foreign_count"]


@pytest.mark.parametrize(
    ("sequences", "field", "value"),
    [
        ([0, 1, 4, 5, 6, 7, 8], "gaps", [[2, 3], [9, 9]]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], "gaps", [[0, 0]]),
        ([0, 1, 1, 2], "repeated", [1]),
        ([0, 2, 1, 3], "disordered", [1]),
        ([0, 11], "foreign_count", 1),
        ([0, 2, 1, 2, 3], "repeated", [2]),
    ],
)
def test_what_is_wrong_is_named(sequences, field, value):
    assert counts_of(sequences)[field] == value


def test_damage_and_strangers_are_counted_apart():
    assert counts_of([0, 1, 2], spoil={2})["damaged_count"] == 1
    assert counts_of([0, 1, 2], seed=8)["foreign_count"] == 3


def test_a_flood_is_noticed():
    counts = StreamCounts(0, 10)
    again = memoryview(make_message(7, 0, SIZES[0]))
    adds = 0
    while not counts.is_flood():
        counts.add(again, 7, SIZES)
        adds += 1
    assert adds < 100
