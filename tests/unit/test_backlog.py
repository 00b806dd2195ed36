"""Whether a writer that is behind its schedule can hold the rate, on synthetic windows of known cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ipcbench.harness.backlog import arriving_ratio, held_ratio

INTERVAL_NS = 1_000_000
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def window(write_ns: Sequence[float], turn_count: int = 0, pause_ns: int = 20_000_000) -> Columns:
    """Return what a writer records whose writes take that long; it pauses after every `turn_count` messages."""
    index = np.arange(len(write_ns))
    due = index * INTERVAL_NS + (index // turn_count * pause_ns if turn_count else 0)
    written = np.array(write_ns, dtype=np.int64)
    sent = due.copy()
    for i in index[1:]:
        sent[i] = max(due[i], sent[i - 1] + written[i - 1])
    return due, sent, written


def stalled(count: int, places: Sequence[int], stall_ns: float) -> np.ndarray:
    times = np.full(count, 20_000.0)
    times[list(places)] = stall_ns
    return times


@pytest.mark.parametrize("turn_count", [0, 15])
@pytest.mark.parametrize("stall_ms", [3, 37, 149])
@pytest.mark.parametrize("place", range(0, 150, 7))
def test_a_stall_is_caught_up_wherever_it_is(place: int, stall_ms: int, turn_count: int) -> None:
    assert held_ratio(*window(stalled(150, [place], stall_ms * 1e6), turn_count)) == 1.0


@pytest.mark.parametrize("place", [147, 148, 149])
def test_a_stall_that_leaves_no_time_to_catch_up_is_no_proof(place: int) -> None:
    assert held_ratio(*window(stalled(150, [20, place], 30e6))) == 1.0


@pytest.mark.parametrize("every", [4, 5, 10, 20])
def test_a_sawtooth_of_stalls_is_held(every: int) -> None:
    times = stalled(150, range(0, 150, every), 0.9 * every * INTERVAL_NS)
    assert held_ratio(*window(times)) == 1.0


@pytest.mark.parametrize("turn_count", [0, 1, 15, 50])
@pytest.mark.parametrize("slow", [1.2, 2.0, 30.0])
def test_writes_slower_than_the_rate_are_not_held(slow: float, turn_count: int) -> None:
    ratio = held_ratio(*window([slow * INTERVAL_NS] * 150, turn_count, pause_ns=100_000))
    assert 0.0 < ratio < 1.0
    if not turn_count:
        assert ratio == pytest.approx(1.0 / slow, rel=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_irregular_writes_that_are_too_slow_are_not_held(seed: int) -> None:
    assert held_ratio(*window(np.random.default_rng(seed).exponential(2.0 * INTERVAL_NS, 150))) < 1.0


def test_writes_that_block_in_bursts_once_a_buffer_is_full_are_not_held() -> None:
    """The first half of the window fills the buffer; then each 16th write waits until 16 have been read."""
    times = stalled(4000, range(2000, 4000, 16), 32.0 * INTERVAL_NS)
    assert held_ratio(*window(times)) == pytest.approx(0.5, abs=0.02)


def test_stalls_beside_too_slow_writes_hide_nothing() -> None:
    times = stalled(150, [20, 70, 149], 40e6) + 1.2e6
    assert held_ratio(*window(times)) < 1.0


def test_time_without_a_core_is_not_the_transport_s() -> None:
    """150 writes of 1.5 intervals: 75 intervals too long, of which neighbours took some."""
    columns = window([1.5 * INTERVAL_NS] * 150)
    assert held_ratio(*columns, waited_ns=80 * INTERVAL_NS) == 1.0
    assert held_ratio(*columns, waited_ns=60 * INTERVAL_NS) == pytest.approx(1 / 1.5, rel=0.01)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_short_windows(count: int) -> None:
    assert held_ratio(*window([20_000.0] * count)) == 1.0
    assert (held_ratio(*window([3e6] * count)) < 1.0) == (count > 2), "a single step may be a stall"


LEAST_NS = 1.5e6
"""A hundredth of a window of 150 messages."""


def arriving(late_ns: Sequence[float], batch: int = 1, turn_count: int = 150) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return turns of messages that come so late; of each batch, all with the last one."""
    index = np.arange(len(late_ns))
    due = index * INTERVAL_NS
    came = (due + np.array(late_ns, dtype=np.int64))[np.minimum(index // batch * batch + batch, len(index)) - 1]
    ends = range(turn_count, len(index), turn_count)
    return list(zip(np.split(due, ends), np.split(came, ends), strict=True))


def queue(slow: float) -> np.ndarray:
    """Return how late messages come of which the way takes a multiple of the interval for each."""
    return (slow - 1.0) * INTERVAL_NS * np.arange(150)


@pytest.mark.parametrize("batch", [1, 3, 10, 30])
@pytest.mark.parametrize("slow", [1.05, 1.3, 3.0])
def test_what_comes_ever_later_is_not_held_in_batches_either(slow: float, batch: int) -> None:
    ratio = arriving_ratio(arriving(queue(slow), batch), LEAST_NS)
    assert ratio == pytest.approx(1.0 / slow, rel=0.1 if batch < 30 else 0.25)


def test_turns_begin_anew() -> None:
    ratio = arriving_ratio(arriving(np.tile(queue(1.3)[:30], 5), 3, turn_count=30), LEAST_NS)
    assert ratio == pytest.approx(1.0 / 1.3, rel=0.1)


@pytest.mark.parametrize("batch", [1, 3, 10, 30, 150])
def test_batches_without_a_queue_are_held(batch: int) -> None:
    assert arriving_ratio(arriving(np.random.default_rng(batch).exponential(2e5, 150), batch), LEAST_NS) == 1.0


@pytest.mark.parametrize("places", [[20], [140], [149], [100, 120], [20, 80, 140]], ids=str)
@pytest.mark.parametrize("stall_ms", [3, 37, 149])
def test_stalls_on_the_way_are_held(stall_ms: int, places: list[int]) -> None:
    """What came meanwhile comes at once after each."""
    late, noise = np.zeros(150), np.random.default_rng(1).exponential(2e5, 150)
    for place in places:
        late[place:] = np.maximum(late[place:], stall_ms * 1e6 - INTERVAL_NS * np.arange(150 - place))
    assert arriving_ratio(arriving(late + noise), LEAST_NS) == 1.0


def test_a_few_messages_that_are_late_only_at_the_end_are_held() -> None:
    late = np.zeros(16)
    late[8:] = 2e6 * np.arange(1, 9)
    assert arriving_ratio(arriving(late), 0.16e6) == 1.0


def test_turns_that_begin_more_quickly_than_they_go_on_are_held() -> None:
    late = np.full(40, 2.5e6)
    late[:8], late[8:16] = 0.0, 1.2e6
    assert arriving_ratio(arriving(np.tile(late, 6), turn_count=40), 2.4e6) == 1.0


def test_what_an_endpoint_without_a_core_explains_is_held() -> None:
    turns = arriving(queue(1.5))
    assert arriving_ratio(turns, LEAST_NS, waited_ns=75 * INTERVAL_NS) == 1.0
    assert arriving_ratio(turns, LEAST_NS, waited_ns=70 * INTERVAL_NS) == pytest.approx(1 / 1.5, rel=0.01)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_messages_tell_of_no_queue(count: int) -> None:
    assert arriving_ratio(arriving(queue(3.0)[:count]), LEAST_NS) == 1.0
