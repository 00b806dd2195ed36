"""The hot path in C and its Python counterpart do the same."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcbench.trace.format import (
    BIN_COUNT,
    CALL,
    HEADER_BYTES,
    HISTOGRAMS_BYTES,
    MARKER,
    PACK_HEAD,
    RECORD_BYTES,
    SUM_CELLS,
)
from ipcbench.trace.record import hot
from ipcbench.trace.record.hot import python as in_python
from tests.trace.reading import ROOT

SLOTS_COUNT = 12  # more than calls: a slot that was not finished stays empty
LAST = 3
HEADS = tuple(PACK_HEAD(CALL, 0, ends, 1, 1, 2, 3, 0, 0) for ends in range(LAST + 2))


def in_c() -> Any:
    name = "ipcbench.trace.record.hot._c"
    if os.environ.get("IPCBENCH_EXPECT") == "all":
        return import_module(name)
    return pytest.importorskip(name, reason="not built: there is no C compiler")


@pytest.fixture(params=["python", "c"])
def by(request: pytest.FixtureRequest) -> Any:
    """Each of the two modules."""
    return in_python if request.param == "python" else in_c()


class Made:
    """A call site with a segment and histograms in memory, of one of the two modules; calls that leave are noted."""

    def __init__(self, by: Any, always: bool = True, seed: int = 1) -> None:
        left: list[tuple[Any, ...]] = []
        looks: list[int] = []

        class CallThatLeaves(by.HotCall):  # type: ignore[misc]
            __slots__ = ()

            def _leave(self, end_ns: int, kind: type[BaseException] | None) -> None:
                stamps = min(len(self._stamps()), 8)
                left.append((stamps, self.sent_bytes, self.recv_bytes, kind, self._trace, self._span))
                self._end()

        class SiteThatLooks(by.HotCallSite):  # type: ignore[misc]
            __slots__ = ()

            def look(self) -> None:
                looks.append(self.passed()[0])
                self.look_ns = 2**62

        self.left, self.looks = left, looks
        self.no_op = by.HotNoOp()
        self.segment = by.Slots(bytearray(HEADER_BYTES + SLOTS_COUNT * RECORD_BYTES))
        self.histograms = by.HotHistograms(bytearray(HISTOGRAMS_BYTES))
        self.site = SiteThatLooks(self.no_op, seed)
        self.site.kind = CallThatLeaves
        self.site.segment = self.segment
        self.site.heads = HEADS
        self.site.last_stage = LAST
        self.site.histograms = self.histograms
        self.site.always = always

    def records(self) -> list[tuple[Any, ...]]:
        """Return what is in the finished slots; of the times, only how many there are."""
        finished = []
        for offset in range(HEADER_BYTES, len(self.segment.buffer), RECORD_BYTES):
            data = bytes(self.segment.buffer[offset : offset + RECORD_BYTES])
            words = np.frombuffer(data, np.uint64)
            if not words[15]:
                continue
            times = words[5:13].tolist()
            used = [at_ns for at_ns in times if at_ns]
            assert used == sorted(used)
            assert times == used + [0] * (8 - len(used))
            assert int(words[15]) == offset ^ MARKER
            finished.append((data[:16], words[2:5].tolist(), len(used), words[13:15].tolist()))
        return finished

    def sums(self) -> list[int]:
        self.histograms.put()
        cells = np.frombuffer(self.histograms.buffer, np.uint64, offset=HEADER_BYTES)
        assert len(cells) == SUM_CELLS + BIN_COUNT
        places = [cells[1:15].tolist(), cells[SUM_CELLS // 2 : SUM_CELLS // 2 + 14].tolist()]
        calls, failures, sent, recv, total, longest, *stages, again = max(places)
        assert calls == again == int(cells[SUM_CELLS:].sum())
        assert sum(stages) % 2**64 == total >= longest
        return [int(cells[0]), calls, failures, sent, recv, sum(stage_ns > 0 for stage_ns in stages[LAST + 1 :])]


numbers = st.one_of(
    st.integers(-3, 2**70),
    st.sampled_from([0, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 1.5, True, np.int64(7)]),
    st.none(),
    st.text(max_size=2),
)
marks = st.one_of(
    st.tuples(st.just("mark"), st.lists(st.integers(0, 2**40), max_size=2)),
    st.tuples(st.sampled_from(["serialized", "received"]), st.tuples(numbers)),
    st.tuples(st.just("sent"), st.just(())),
    st.tuples(st.just("_cut"), st.tuples(st.integers(0, 4))),
)
calls = st.fixed_dictionaries({
    "marks": st.lists(marks, max_size=10), "recorded": st.booleans(),
    "error": st.sampled_from([None, None, None, ValueError]),
    "trace": st.one_of(st.none(), st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))),
    "noted": st.booleans(), "reversed": st.sampled_from([False, False, True]), "twice": st.booleans(),
})  # fmt: skip


@given(plans=st.lists(calls, max_size=9))
def test_the_same_calls_leave_the_same_records(plans: list[dict[str, Any]]) -> None:
    results = []
    for by in (in_python, in_c()):
        made = Made(by)
        made.site.slowest_ns = 2**40  # none of them is the slowest so far
        for plan in plans:
            call = made.site.begin()
            call.__enter__()
            call._recorded, call._noted = plan["recorded"], plan["noted"]
            if plan["trace"]:
                call._trace, call._span = plan["trace"], 7
            for name, arguments in plan["marks"]:
                getattr(call, name)(*arguments)
            if plan["reversed"] and not plan["recorded"]:
                call._begin_ns = 2**62
            call.__exit__(plan["error"], None, None)
            if plan["twice"]:
                call.__exit__(None, None, None)
        results.append((made.records(), made.left, made.sums()))
    assert results[0] == results[1]


@pytest.mark.parametrize(("period", "untimed"), [(1, False), (2, False), (16, False), (16, True), (1000, True)])
def test_the_sample_has_its_size_and_no_call_is_forgotten(by: Any, period: int, untimed: bool) -> None:
    made = Made(by, always=False)
    made.site.period, made.site.untimed = period, untimed
    count = 3000 * period
    recorded = seen = warm_ups = 0
    for _ in range(count):
        call = made.site.begin()
        if call is not made.no_op:
            seen += not call._warm_up
            warm_ups += call._warm_up
            call.__enter__()
            recorded += call._recorded
            call.__exit__(None, None, None)
    assert warm_ups <= recorded
    assert bool(warm_ups) == untimed
    assert 0.9 < recorded * period / count < 1.1
    passed, counted = made.site.passed()
    assert len(made.looks) == 1  # at once, and not again before it is time
    assert (passed + made.looks[0], counted) == (count, count - seen)
    assert made.site.passed() == (0, 0)


def test_the_call_before_one_that_is_timed_is_timed_and_discarded(by: Any) -> None:
    made = Made(by, always=False)
    made.site.period, made.site.untimed = 16, True
    kinds = ""
    for number in range(2000):
        call = made.site.begin()
        if call is made.no_op:
            kinds += "."
            continue
        kinds += "w" if call._warm_up else "R"
        call.__enter__()
        call.mark(sent_bytes=number)
        call.__exit__(ValueError if call._warm_up else None, None, None)
    assert kinds.count("R") > 50
    assert ".R" not in kinds
    assert "ww" not in kinds
    kept = [sizes[0] for *_, sizes in made.records()] + [sent_bytes for _, sent_bytes, *_ in made.left]
    assert kept == [at for at, kind in enumerate(kinds) if kind == "R"]


def test_sites_of_different_seeds_record_different_calls(by: Any) -> None:
    rows = set()
    for seed in range(1, 20):
        made = Made(by, always=False, seed=seed)
        made.site.period = 50
        flags = []
        for _ in range(200):
            call = made.site.begin()
            call.__enter__()
            flags.append(call._recorded)
            call._end()
        rows.add(tuple(flags))
    assert len(rows) == 19


def test_marks_take_their_arguments_by_name_and_refuse_others(by: Any) -> None:
    made = Made(by)
    with made.site.begin() as call:
        call.mark(sent_bytes=3)
        call.serialized(sent_bytes=4)
        call.received(recv_bytes=5)
        for wrong in (lambda: call.mark(1, 2, 3), lambda: call.mark(other=1), lambda: call.mark(1, recv_bytes=1),
                      call.serialized, lambda: call.received(1, 2)):  # fmt: skip
            with pytest.raises(TypeError):
                wrong()
        assert (len(call._stamps()), call.sent_bytes, call.recv_bytes) == (3, 7, 5)


def test_calls_at_once_are_different_and_are_reused(by: Any) -> None:
    made = Made(by)
    first = [made.site.begin() for _ in range(5)]
    assert len(set(map(id, first))) == 5
    for call in first:
        call.__enter__()
    for call in first:
        call._end()
        call._end()
    second = [made.site.begin() for _ in range(6)]
    assert len(set(map(id, second))) == 6
    assert set(map(id, first)) < set(map(id, second))


def test_what_is_released_takes_nothing_more(by: Any) -> None:
    made = Made(by)
    made.segment.release()
    made.histograms.release()
    for recorded in (True, False):
        call = made.site.begin()
        call.__enter__()
        call._recorded = recorded
        call.__exit__(None, None, None)
    assert len(made.left) == 2
    with pytest.raises(ValueError, match=r"released|closed"):
        made.histograms.add(1, [], 2, 0, 0, False)


def test_histograms_refuse_what_no_sum_can_hold_and_stay_whole(by: Any) -> None:
    made = Made(by)
    sizes: tuple[Any, ...] = ((-1, 0), (0, 2**63), (1.5, 0), ("a", 0))
    for arguments in ((5, [], 4, 0, 0), (5, [6], 4, 0, 0), *((1, [], 2, *both) for both in sizes)):
        with pytest.raises((ValueError, TypeError)):
            made.histograms.add(*arguments, False)
    for _ in range(3):
        made.histograms.add(1, [3, 2], 4, 2**63 - 1, 0, True)  # more than a sum holds; one stage is negative
    made.histograms.add_untimed(7)
    assert made.sums()[:3] == [7, 3, 3]


def test_what_is_not_made_whole_does_not_end_the_process() -> None:
    by = in_c()
    with pytest.raises(TypeError):
        by.HotCallSite(by.HotNoOp(), 1).begin()
    with pytest.raises(TypeError):
        by.HotCallSite.__new__(by.HotCallSite).begin()
    with pytest.raises(AttributeError):
        by.HotRecorder.__new__(by.HotRecorder).call("x")

    class Odd(int):
        def __add__(self, other: object) -> Any:
            call.sent_bytes = 0
            return NotImplemented

    with Made(by).site.begin() as call:
        call.serialized(Odd(3))
        call.serialized(Odd(4))


def test_in_c_nothing_is_leaked() -> None:
    made = Made(in_c())

    def use() -> None:
        for number in range(2000):
            with made.site.begin() as call:
                call.serialized(number * 10**6)
                call.received(number * 10**6)
                call._trace, call._span = (number, 2**60 + number), 2**61
                call._recorded = number % 2 == 0
        made.left.clear()

    use()
    before = sys.getallocatedblocks()
    for _ in range(5):
        use()
    assert sys.getallocatedblocks() - before < 200  # of 10,000 calls
    references = sys.getrefcount(made.site), sys.getrefcount(made.no_op)
    use()
    assert (sys.getrefcount(made.site), sys.getrefcount(made.no_op)) == references


def test_the_tracer_in_python_passes_its_tests() -> None:
    if not hot.IS_C:
        pytest.skip("the Python counterpart is in use already")
    names = ["recorder", "sides", "wrap", "crash"]
    environment = {**os.environ, "IPCBENCH_PURE": "1", "IPCBENCH_KILLS": "10"}
    with TemporaryDirectory(prefix="ipcb-") as folder:  # a short name, because sockets are made below it
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"--basetemp={folder}/t",
             "--timeout=100", "--maxfail=1", *(f"tests/trace/test_{name}.py" for name in names)],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=250,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
