"""The hot loops on endpoints made of lists, without processes and with a fake clock."""

from array import array

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipcbench.harness import loops
from ipcbench.harness.digest import totals_quantiles
from ipcbench.harness.loops import (
    HASH_EVERY,
    RUN,
    LoopTotals,
    read_every,
    read_in_runs,
    read_latest,
    set_phase,
    touching,
    write_flat_out,
    write_in_runs,
    write_paced,
)
from ipcbench.stats.histogram import bin_index
from ipcbench.util.bins import BIN_COUNT
from ipcbench.workload.message import (
    FLAGS,
    SEQUENCE,
    TRAILER_BYTES,
    Outgoing,
    Phase,
    body_matches,
    unpack_stamp,
    unpack_word,
)

FOREVER = 2**62


class Clock:
    """A clock that advances by `step_ns` at every reading."""

    def __init__(self, step_ns: int) -> None:
        self.now, self.step_ns = 0, step_ns

    def __call__(self) -> int:
        self.now += self.step_ns
        return self.now


def columns(count: int) -> tuple[array, array]:
    return array("q", bytes(8 * count)), array("q", bytes(8 * count))


def record(into: list[bytes]):
    return lambda message, _timeout_s: into.append(bytes(message))


def pair(phase: Phase = Phase.MEASURE) -> list[Outgoing]:
    messages = [Outgoing(b"a" * 16), Outgoing(b"b" * 16)]
    set_phase(messages, phase)
    return messages


def stream(numbers, phase: Phase = Phase.MEASURE, then: Phase = Phase.END):
    """Return a `read` that yields those sequence numbers, then one message of phase `then`."""
    views = []
    for number in [*numbers, max(numbers) + 1]:
        message = Outgoing(b"x" * 16)
        message.head[SEQUENCE] = message.tail[0] = number
        message.head[FLAGS] = phase
        views.append(memoryview(message.buffer))
    views[-1].cast("q")[FLAGS] = then
    source = iter(views)
    return (lambda _timeout_s: next(source)), len(views[0])


def test_flat_out_numbers_its_messages_and_alternates_two_bodies():
    sent: list[bytes] = []
    stamps, durations = columns(5)
    assert write_flat_out(record(sent), pair(), 10, FOREVER, 1.0, stamps, durations) == 5
    assert [unpack_stamp(message)[0] for message in sent] == [11, 12, 13, 14, 15]
    assert [message[64:65] for message in sent] == [b"a", b"b", b"a", b"b", b"a"]
    assert all(body_matches(memoryview(message)) for message in sent)
    assert list(stamps) == [unpack_stamp(message)[2] for message in sent]


def test_flat_out_stops_at_its_time_but_sends_at_least_two():
    sent: list[bytes] = []
    assert write_flat_out(record(sent), pair(), 0, 0, 1.0, *columns(5)) == 2
    assert len(sent) == 2


def test_in_runs_every_message_has_its_number_and_one_in_a_run_its_own_times():
    sent: list[bytes] = []
    stamps, durations = columns(4)
    count = 1 + 3 * RUN
    assert write_in_runs(record(sent), pair(), 10, FOREVER, 1.0, stamps, durations) == len(sent) == count
    assert [unpack_stamp(message)[0] for message in sent] == list(range(11, 11 + count))
    assert [unpack_word(message, len(message) - TRAILER_BYTES)[0] for message in sent] == list(range(11, 11 + count))
    assert [message[64:65] for message in sent] == [b"ab"[index & 1 :][:1] for index in range(count)]
    assert list(stamps) == [unpack_stamp(message)[2] for message in sent[::RUN]]
    assert sorted(stamps) == list(stamps)
    assert all(durations)


@pytest.mark.parametrize(("stop_ns", "runs"), [(0, 1), (5 * RUN * 1_000, 5), (5 * RUN * 1_000 + 9_000, 6)])
def test_in_runs_the_writer_stops_with_the_run_in_which_its_time_is_over(monkeypatch, stop_ns, runs):
    clock = Clock(step_ns=0)
    monkeypatch.setattr(loops, "now_ns", clock)

    def write(_message, _timeout_s):
        clock.now += 1_000

    stamps, durations = columns(20)
    assert write_in_runs(write, pair(), 0, stop_ns, 1.0, stamps, durations) == 1 + runs * RUN
    assert list(stamps[: runs + 1]) == [1_000 * RUN * index for index in range(runs + 1)]
    assert list(durations[: runs + 2]) == [1_000] * (runs + 1) + [0]


def test_the_schedule_never_slips_however_late_the_writer_is(monkeypatch):
    clock = Clock(step_ns=1_000)
    monkeypatch.setattr(loops, "now_ns", clock)
    stall = {2: 50_000_000}  # the third write takes 50 ms
    calls: list[int] = []

    def write(message, _timeout_s):
        clock.now += stall.get(len(calls), 0)
        calls.append(unpack_stamp(message)[1])

    intended, sent = columns(8)
    durations = array("q", bytes(64))
    write_paced(write, pair(), 0, 1_000_000, 1_000_000.0, 0, 8, 1.0, intended, sent, durations)
    assert calls == [1_000_000 * (1 + index) for index in range(8)], "latency must count from the intended time"
    assert list(intended) == calls
    late_ns = [actual - due for actual, due in zip(sent, intended, strict=True)]
    assert max(late_ns[:3]) < 1_000_000
    assert min(late_ns[3:]) > 40_000_000, "the messages that were due during the stall are the late ones"
    assert durations[2] >= 50_000_000


def test_read_every_returns_the_first_message_that_is_not_the_next():
    read, size = stream([5, 6, 7])
    received, waited = columns(10)
    end, view, before, after = read_every(
        read, size, size - 8, 4, 1.0, body_matches, received, waited, 0, len(received)
    )
    assert (end, unpack_stamp(view)[3]) == (3, Phase.END)
    assert before <= after
    assert all(received[:3])


@pytest.mark.parametrize("numbers", [[1, 2, 4], [1, 2, 2], [1, 2, 1]])
def test_read_every_stops_at_a_gap_a_repeat_or_a_step_back(numbers):
    read, size = stream(numbers)
    end, view, _, _ = read_every(read, size, size - 8, 0, 1.0, body_matches, *columns(10), 0, 10)
    assert (end, unpack_stamp(view)[0]) == (2, numbers[2])


@pytest.mark.parametrize(
    ("matching", "hashed", "end"), [(True, [1, 2], 3 * HASH_EVERY - 1), (False, [1], HASH_EVERY - 1)]
)
def test_read_every_hashes_every_64th_body_and_stops_at_a_mismatch(matching, hashed, end):
    numbers: list[int] = []

    def matches(view: memoryview) -> bool:
        numbers.append(unpack_stamp(view)[0])
        return matching

    read, size = stream(range(1, 3 * HASH_EVERY))
    stop = 3 * HASH_EVERY
    assert read_every(read, size, size - 8, 0, 1.0, matches, *columns(stop), 0, stop)[0] == end
    assert numbers == [HASH_EVERY * number for number in hashed]


def in_runs(read, size, sequence=0, matches=body_matches, tail=None, stop=10):
    """Return what `read_in_runs` returns, and its columns."""
    received, waited = columns(stop)
    where = size - TRAILER_BYTES if tail is None else tail
    return *read_in_runs(read, size, where, sequence, 1.0, matches, received, waited, 0, stop), received, waited


def test_in_runs_the_reader_stamps_the_last_of_each_run_and_that_is_the_last_of_the_window(monkeypatch):
    clock = Clock(step_ns=0)
    monkeypatch.setattr(loops, "now_ns", clock)
    read, size = stream(range(5, 5 + 3 * RUN))

    def read_and_wait(timeout_s):
        clock.now += 1_000
        return read(timeout_s)

    end, last, view, _, _, received, waited = in_runs(read_and_wait, size, 4)
    assert (end, last, unpack_stamp(view)[3]) == (3, 4 + 3 * RUN, Phase.END)
    assert list(received[:4]) == [RUN * 1_000, 2 * RUN * 1_000, 3 * RUN * 1_000, 0]
    assert list(waited[:4]) == [1_000, 1_000, 1_000, 0]


def test_in_runs_the_reader_stops_when_the_columns_are_full():
    read, size = stream(range(1, 5 * RUN))
    assert in_runs(read, size, stop=3)[:3] == (3, 3 * RUN, None)


def lost(messages, place):
    del messages[place]


def repeated(messages, place):
    messages.insert(place, messages[place - 1])


def torn(messages, place):
    messages[place][-TRAILER_BYTES] ^= 255


def cut(messages, place):
    messages[place] = messages[place][:-1]


def longer(messages, place):
    messages[place] += b"x"


def ended(messages, place):
    memoryview(messages[place])[: 8 * (FLAGS + 1)].cast("q")[FLAGS] = Phase.END


@pytest.mark.parametrize("harm", [lost, repeated, torn, cut, longer, ended])
@pytest.mark.parametrize("place", [1, 8, RUN - 1, RUN, RUN + 1, 2 * RUN - 2, 2 * RUN - 1])
def test_in_runs_every_message_is_checked_not_only_the_stamped_ones(harm, place):
    sent: list[bytes] = []
    write_in_runs(record(sent), pair(), 0, FOREVER, 1.0, *columns(4))
    messages = [bytearray(message) for message in sent]
    harm(messages, place)
    views = iter([memoryview(message) for message in messages])
    end, last, view, before, after, *_ = in_runs(lambda _: next(views), len(sent[0]))
    assert (end, last, bytes(view)) == (place // RUN, place, bytes(messages[place]))
    assert 0 < before <= after


def test_in_runs_without_touching_the_end_the_trailer_is_not_compared():
    for harm, found in ((torn, False), (lost, True), (cut, True), (ended, True)):
        sent: list[bytes] = []
        write_in_runs(record(sent), pair(), 0, FOREVER, 1.0, *columns(4))
        messages = [bytearray(message) for message in sent]
        harm(messages, 20)
        views = iter([memoryview(message) for message in messages])
        last = in_runs(lambda _, views=views: next(views), len(sent[0]), tail=8 * SEQUENCE, stop=2)[1]
        assert (last == 20) == found, harm


@pytest.mark.parametrize(("wrong", "last"), [(None, 10 * RUN), (64, 63), (128, 127)])
def test_in_runs_every_64th_body_is_hashed_wherever_it_stands_in_its_run(wrong, last):
    numbers: list[int] = []

    def matches(view: memoryview) -> bool:
        numbers.append(unpack_stamp(view)[0])
        return numbers[-1] != wrong

    read, size = stream(range(1, 10 * RUN + 1))
    assert in_runs(read, size, matches=matches)[1] == last
    assert numbers == [number for number in (64, 128) if number <= (wrong or last)]


def test_read_latest_keeps_gaps_and_refuses_to_go_back():
    read, size = stream([3, 7, 8, 6])
    received, waited = columns(10)
    sequences = array("q", bytes(80))
    end, view, _, _ = read_latest(read, size, size - 8, 0, 1.0, body_matches, received, waited, sequences, 0)
    assert (end, list(sequences[:3]), unpack_stamp(view)[0]) == (3, [3, 7, 8], 6)


@pytest.mark.parametrize("touch", ["none", "header", "pages", "all"])
def test_touching_returns_the_same_view_and_the_header_costs_no_call(touch):
    view = memoryview(bytes(10_000))

    def read(_timeout_s: float) -> memoryview:
        return view

    assert touching(read, touch)(1.0) is view
    assert (touching(read, touch) is read) == (touch in {"none", "header"})


@example([-5])
@given(st.lists(st.integers(min_value=-5, max_value=2**62), min_size=1, max_size=50))
def test_totals_have_the_bins_of_the_histogram_and_count_negative_durations_as_0(values):
    totals = LoopTotals()
    for value in values:
        totals.add(value)
    counted = [max(0, value) for value in values]
    assert (np.bincount(bin_index(counted), minlength=BIN_COUNT) == np.array(totals.counts)).all()
    assert (totals.sum_ns, totals.max_ns) == (sum(counted), max(counted))


def test_quantiles_of_totals_are_within_one_percent():
    values = np.random.default_rng(5).lognormal(10.0, 1.0, 20_000).astype(np.int64)
    totals = LoopTotals()
    for value in values.tolist():
        totals.add(value)
    quantiles = totals_quantiles(totals.as_dict())
    for name, p in (("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99)):
        assert abs(getattr(quantiles, name) / np.quantile(values, p) - 1) < 0.01
    assert (quantiles.count, quantiles.max_ns) == (values.size, values.max())
    assert abs(quantiles.mean_ns / values.mean() - 1) < 1e-9
