"""The hot loops on an endpoint made of lists: no process, no clock but a counted one."""

from array import array

import pytest

from ipcbench.harness import loops
from ipcbench.harness.loops import HASH_EVERY, read_every, read_latest, set_phase, write_flat_out, write_paced
from ipcbench.workload.message import FLAGS, SEQUENCE, Outgoing, Phase, body_matches, unpack_stamp

FOREVER = 2**62


class Clock:
    """A clock that moves by `step_ns` at every look."""

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
    made = []
    for number in [*numbers, max(numbers) + 1]:
        one = Outgoing(b"x" * 16)
        one.head[SEQUENCE] = one.tail[0] = number
        one.head[FLAGS] = phase
        made.append(memoryview(one.buffer))
    made[-1].cast("q")[FLAGS] = then
    source = iter(made)
    return (lambda _timeout_s: next(source)), len(made[0])


def test_flat_out_numbers_its_messages_and_alternates_two_bodies():
    sent: list[bytes] = []
    stamps, durations = columns(5)
    assert write_flat_out(record(sent), pair(), 10, FOREVER, 1.0, stamps, durations) == 5
    assert [unpack_stamp(one)[0] for one in sent] == [11, 12, 13, 14, 15]
    assert [one[64:65] for one in sent] == [b"a", b"b", b"a", b"b", b"a"]
    assert all(body_matches(memoryview(one)) for one in sent)
    assert list(stamps) == [unpack_stamp(one)[2] for one in sent]


def test_flat_out_stops_at_its_time_but_sends_at_least_two():
    sent: list[bytes] = []
    assert write_flat_out(record(sent), pair(), 0, 0, 1.0, *columns(5)) == 2
    assert len(sent) == 2


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


def test_read_every_hashes_one_body_in_so_many():
    hashed: list[int] = []

    def matches(view: memoryview) -> bool:
        hashed.append(unpack_stamp(view)[0])
        return True

    read, size = stream(range(1, 3 * HASH_EVERY))
    read_every(read, size, size - 8, 0, 1.0, matches, *columns(3 * HASH_EVERY), 0, 3 * HASH_EVERY)
    assert hashed == [HASH_EVERY, 2 * HASH_EVERY]


def test_read_every_stops_at_a_body_that_does_not_match():
    read, size = stream(range(1, 3 * HASH_EVERY))
    end, _, _, _ = read_every(
        read, size, size - 8, 0, 1.0, lambda _view: False, *columns(3 * HASH_EVERY), 0, 3 * HASH_EVERY
    )
    assert end == HASH_EVERY - 1


def test_read_latest_keeps_gaps_and_refuses_to_go_back():
    read, size = stream([3, 7, 8, 6])
    received, waited = columns(10)
    sequences = array("q", bytes(80))
    end, view, _, _ = read_latest(read, size, size - 8, 0, 1.0, body_matches, received, waited, sequences, 0)
    assert (end, list(sequences[:3]), unpack_stamp(view)[0]) == (3, [3, 7, 8], 6)
