"""A saturated trial without processes: both parts over a list of messages, with a clock that they advance."""

from collections.abc import Callable

import pytest

from ipcbench.harness import loops, reading, writing
from ipcbench.harness.clocks import Clocks
from ipcbench.harness.digest import Digest, judge
from ipcbench.harness.loops import RUN
from ipcbench.harness.plan import Plan
from ipcbench.harness.reading import ReaderPart, Received
from ipcbench.harness.worker import _outcome
from ipcbench.harness.writing import SHORT_NS, WriterPart, Written
from ipcbench.spec import SweepSpec
from ipcbench.workload.codec import get_codec
from ipcbench.workload.message import FLAGS, Outgoing, Phase, unpack_word

WINDOW_NS = 20_000_000
READ_NS = 7
Harm = Callable[[list[bytes], int], None]


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


class Recorder:
    """A writer whose write takes `took_ns`, and from the 4,000th on each 500th `stall_ns` more."""

    waits = None

    def __init__(self, clock: Clock, took_ns: int, stall_ns: int = 0) -> None:
        self.clock, self.took_ns, self.stall_ns, self.messages = clock, took_ns, stall_ns, list[bytes]()

    def write(self, message: bytearray, timeout_s: float) -> None:
        self.messages.append(bytes(message))
        self.clock.now += self.took_ns
        if len(self.messages) >= 4_000 and not len(self.messages) % 500:
            self.clock.now += self.stall_ns


class Player:
    """A reader of those messages, `READ_NS` each."""

    waits = None

    def __init__(self, clock: Clock, messages: list[bytes]) -> None:
        self.clock, self.messages = clock, iter(messages)

    def read(self, timeout_s: float) -> memoryview:
        self.clock.now += READ_NS
        return memoryview(next(self.messages))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (loops, reading, writing):
        monkeypatch.setattr(module, "now_ns", clock)
    return clock


def plan(**changes: object) -> Plan:
    sweep = SweepSpec(
        payload="bytes", codec="raw", window_s=WINDOW_NS / 1e9, warmup_s=0.03, readers=1, modes=("saturate",), **changes
    )
    return Plan.make(sweep.trial("shm", 16, 16, "saturate", 0), 0.0, 1.0)


def measure(
    clock: Clock, took_ns: int, harm: Harm | None = None, **changes: object
) -> tuple[Written, Received, list[bytes]]:
    """Return what both parts report, and the messages; `harm` gets them and the index of the window's first."""
    chosen = plan(**changes)
    recorder = Recorder(clock, took_ns)
    written = WriterPart(recorder, [Outgoing(b"a" * 16), Outgoing(b"b" * 16)], chosen).run()
    messages = recorder.messages
    if harm is not None:
        harm(messages, written.warmup_count)
    return written, ReaderPart(Player(clock, messages), get_codec("raw"), chosen).run(), messages


@pytest.mark.parametrize("took_ns", [5_000, SHORT_NS - 1_000, SHORT_NS + 1_000, 300_000])
def test_short_messages_are_stamped_in_runs_long_ones_each_and_the_end_is_noticed(clock, took_ns):
    written, received, messages = measure(clock, took_ns)
    stride = RUN if took_ns < SHORT_NS else 1
    assert written.stamp_stride == received.stamp_stride == stride
    window = [message for message in messages if unpack_word(message, 8 * FLAGS)[0] == Phase.MEASURE]
    assert written.messages_count == received.messages_count == len(window)
    late_ns = len(window) * took_ns - WINDOW_NS
    assert 0 <= late_ns <= stride * took_ns
    for columns in (written.columns, received.columns):
        assert all(len(columns[name]) == -(-len(window) // stride) for name in columns if name != "decode_ns")
    assert received.integrity.errors_count == 0


def test_stalls_during_the_warm_up_do_not_change_how_the_window_is_stamped(clock):
    recorder = Recorder(clock, 5_000, stall_ns=40_000_000)
    assert WriterPart(recorder, [Outgoing(b"a" * 16)], plan()).run().stamp_stride == RUN


def test_the_first_and_the_last_receipt_are_exact(clock):
    written, received, _ = measure(clock, 10_000)
    times = received.columns["received_ns"]
    assert times[-1] - times[0] == (received.messages_count - 1) * READ_NS
    assert received.columns["sequence"][0] == written.warmup_count + 1
    assert received.columns["sequence"][-1] == written.warmup_count + written.messages_count
    assert set(received.columns["read_ns"]) == {READ_NS}
    assert written.columns["sent_ns"][-1] - written.columns["sent_ns"][0] == (written.messages_count - 1) * 10_000


def drop(messages: list[bytes], place: int) -> None:
    del messages[place]


def repeat(messages: list[bytes], place: int) -> None:
    messages.insert(place, messages[place])


def swap(messages: list[bytes], place: int) -> None:
    messages[place], messages[place + 1] = messages[place + 1], messages[place]


def tear(messages: list[bytes], place: int) -> None:
    messages[place] = messages[place][:-8] + messages[place + 1][-8:]


@pytest.mark.parametrize(
    ("harm", "found"),
    [(drop, "lost_count"), (repeat, "duplicated_count"), (swap, "reordered_count"), (tear, "torn_count")],
)
@pytest.mark.parametrize("place", [1, 5, RUN - 1, RUN, RUN + 1, 500])
def test_one_damaged_message_is_counted_once_wherever_it_stands(clock, harm, found, place):
    _, received, _ = measure(clock, 10_000, lambda messages, first: harm(messages, first + place))
    assert received.integrity.errors_count == getattr(received.integrity, found) == 1


def test_latest_value_stamps_every_message(clock):
    written, received, _ = measure(clock, 10_000, delivery="latest_value")
    assert written.stamp_stride == received.stamp_stride == 1
    assert len(received.columns["received_ns"]) == received.messages_count == written.messages_count


def test_throughput_and_stride_of_the_record_count_all_messages(clock):
    written, received, _ = measure(clock, 10_000)
    answers = {index: _outcome(part) for index, part in enumerate((written, received))}
    digest = Digest(plan().trial, answers, {0: (1, None), 1: (2, None)}, plan_stride=1, clocks=Clocks())
    writer, reader = digest.endpoint(0), digest.endpoint(1)
    assert digest.throughput_per_s() == pytest.approx(1e9 / READ_NS)
    assert reader.messages_count == writer.messages_count == 1 + RUN * (reader.call.count - 1)
    assert writer.stamp_stride == reader.stamp_stride == reader.sample_stride == RUN
    assert (reader.call.p50_ns, writer.call.max_ns) == (READ_NS, 10_000)
    assert reader.last_ns - reader.first_ns == (reader.messages_count - 1) * READ_NS
    assert writer.last_ns - writer.first_ns == writer.messages_count * 10_000
    assert judge(plan().trial, (writer, reader), written.total_count, "", "") == ("ok", "")
