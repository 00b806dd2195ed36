"""The recorder: what it writes is what happened, and nothing that happens to it reaches the application."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipcbench import trace
from ipcbench.errors import ConfigError
from ipcbench.stats.histogram import bin_index
from ipcbench.trace.format import BIN_COUNT, HEADER_BYTES, RECORD_BYTES, SAMPLED, bin_of
from ipcbench.trace.ids import parse_trace_id
from ipcbench.trace.readers.batch import LOSING, Notes
from ipcbench.trace.readers.own import read_segment
from ipcbench.trace.readers.processes import read_processes
from ipcbench.trace.record import histograms as histogram_files
from ipcbench.trace.record.budget import Costs, Governor
from ipcbench.trace.record.context import unpack_context
from ipcbench.trace.record.recorder import STATE, _Unresolved
from ipcbench.trace.record.thread_recorder import ThreadRecorder
from ipcbench.trace.report.audit import Objection, audit
from ipcbench.trace.report.gather import gather
from ipcbench.util.clock import now_ns
from tests.trace.made import record, rpc
from tests.trace.reading import calls_count, check_whole, histograms, in_threads, records, run_program


def test_a_call_is_recorded_with_its_stages_and_bytes(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path / "new" / "folder")
    rpc(recorder)
    with trace.call("rollout", trace.PIPELINE) as call:
        call.mark(5)
        call.mark()
    with trace.call("seven", trace.Schema("own", tuple("abcdefg")), peer="tcp://x") as call:
        for _ in range(6):
            call.mark(1, 2)
    trace.stop()
    first, second, third = records(tmp_path / "new" / "folder")
    assert (first.method, first.sent_bytes, first.recv_bytes, first.failed) == ("Matmul", 10, 20, False)
    assert list(first.stages) == ["serialize", "send", "wait", "deserialize"]
    assert list(second.stages) == ["get", "compute", "put"]
    assert list(third.stages) == list("abcdefg")
    assert (third.sent_bytes, third.recv_bytes) == (12, 6)
    check_whole((first, second, third))


def test_a_failure_is_recorded_and_goes_on_its_way(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path, sample=1000)
    rpc(recorder)

    with pytest.raises(TimeoutError), recorder.call("Matmul") as call:  # noqa: PT012 # as an application fails
        call.serialized(7)
        raise TimeoutError
    trace.stop()
    failed = records(tmp_path)[-1]
    assert (failed.failed, failed.sent_bytes) == (True, 7)
    assert failed.stages["wait"] == failed.stages["deserialize"] == 0


@pytest.mark.parametrize("marks", [0, 1, 2, 3, 4, 9])
def test_too_few_and_too_many_marks_are_no_error(tmp_path: Path, marks: int) -> None:
    recorder = trace.start(tmp_path)
    for schema in (trace.RPC, trace.PIPELINE):
        with recorder.call("any", schema) as call:
            for _ in range(marks):
                call.mark()
    trace.stop()
    assert all(sum(call.stages.values()) == call.total_ns for call in records(tmp_path))


def test_what_cannot_be_stored_does_not_reach_the_application(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path)
    rpc(recorder, sent=-5)
    rpc(recorder, sent=2**70)
    rpc(recorder, method="fine")
    trace.stop()
    assert [call.method for call in records(tmp_path)] == ["fine"]


def test_a_call_that_cannot_begin_for_lack_of_memory_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MemoryError of the making of a call site reached the application."""

    def full(*_: object) -> None:
        raise MemoryError

    recorder = trace.start(tmp_path)
    rpc(recorder, method="before")
    monkeypatch.setattr(ThreadRecorder, "_new_call_site", full)
    rpc(recorder)
    monkeypatch.undo()
    rpc(recorder)
    trace.stop()
    assert recorder.problem == "MemoryError"
    assert [call.method for call in records(tmp_path)] == ["before", "Matmul"]


@pytest.mark.parametrize("wrong", [1.5, -1, 2**62, 2**70, None, "x"])
def test_a_number_of_bytes_that_is_none_does_not_spoil_the_sums(tmp_path: Path, wrong: Any) -> None:
    recorder = trace.start(tmp_path, sample=1000)
    for _ in range(200):
        rpc(recorder, sent=wrong)
        rpc(recorder, method="fine")
    trace.stop()
    assert next(bulk for bulk in histograms(tmp_path) if bulk.method == "fine").sent_bytes > 0


def test_a_request_that_came_by_another_clock_is_no_danger(tmp_path: Path) -> None:
    trace.start(tmp_path, sample=2)
    for _ in range(100):
        with trace.serve(None, "m", received_ns=time.time_ns()) as call:
            call.replying(1)
        with trace.serve(None, "fine", received_ns=time.monotonic() * 1e9) as call:  # type: ignore[arg-type]
            call.replying(1)
    trace.stop()
    assert calls_count(tmp_path) >= 100


def test_a_call_that_is_not_timed_follows_nobody() -> None:
    trace.stop()
    with trace.call("x") as call:
        call.follow(trace.extract("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))


def test_records_and_histograms_hold_all_calls(tmp_path: Path) -> None:
    record(tmp_path, 5000, 16, ("m0", "m1", "m2"), sent=3)
    recorded = records(tmp_path)
    assert 100 < len(recorded) < 1000
    assert calls_count(tmp_path) == 5000
    for name in ("m0", "m1", "m2"):
        bulk = next(bulk for bulk in histograms(tmp_path) if bulk.method == name)
        assert bulk.summed_count == int(bulk.counts.sum())
        assert bulk.sent_bytes == 3 * bulk.summed_count
        assert int(bulk.stage_ns.sum()) == bulk.total_ns
        assert bulk.summed_count + sum(call.method == name for call in recorded) == 1666 + (name < "m2")


def test_a_sample_does_not_follow_the_rhythm_of_the_application(tmp_path: Path) -> None:
    record(tmp_path, 8000, 16, [f"m{number}" for number in range(16)])
    shares = Counter(call.method for call in records(tmp_path))
    assert len(shares) == 16
    assert max(shares.values()) < 5 * min(shares.values())


def test_bins_are_those_of_the_histogram() -> None:
    powers = 2 ** np.arange(41)
    values = np.unique(np.concatenate([np.arange(5000), powers, powers - 1, 3 ** np.arange(25)]))
    assert [bin_of(int(value)) for value in values] == bin_index(values).tolist()
    assert bin_of(2**62) == BIN_COUNT - 1


def test_budget_follows_the_time_between_calls() -> None:
    def period(between_ns: int) -> tuple[int, bool]:
        governor = Governor(Costs(1300.0, 1500.0, 150.0), 0.01)
        now, decided = 0, (0, True)
        for _ in range(50):
            now += between_ns * 32
            governor.planned_count = 32
            decided = governor.decide(now)
        return decided

    assert period(5_000_000) == (1, False)
    assert period(60_000)[1]
    assert 30 < period(60_000)[0] < 150
    assert period(30_000) == (1024, True)
    assert period(1_000) == (1024, True)


def test_with_a_budget_no_call_is_forgotten(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path, budget=0.001)
    for number in range(20_000):
        rpc(recorder, f"m{number % 2}")
    trace.stop()
    assert calls_count(tmp_path) == 20_000


def test_decorators(tmp_path: Path) -> None:
    @trace.traced("plain")
    def plain(value: int, *, key: int = 0) -> int:
        return value + key

    @trace.traced()
    async def waits() -> str:
        await asyncio.sleep(0)
        return "done"

    @trace.traced("values")
    def values() -> Iterator[int]:
        got = yield 1
        yield got * 2
        return "end"

    @trace.traced("avalues")
    async def avalues() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def all_of_them() -> list[int]:
        assert await waits() == "done"
        return [value async for value in avalues()]

    assert plain(1, key=2) == 3
    trace.start(tmp_path)
    assert plain(1, key=2) == 3
    turn = values()
    assert (next(turn), turn.send(21)) == (1, 42)
    with pytest.raises(StopIteration, match="end"):
        next(turn)
    early = values()
    next(early)
    early.close()
    assert asyncio.run(all_of_them()) == [1, 2]
    trace.stop()
    assert plain.__name__ == "plain"
    calls = records(tmp_path)
    methods = sorted((call.method.rpartition(".")[2], call.failed) for call in calls)
    assert methods == [(name, False) for name in ("avalues", "plain", "values", "values", "waits")]
    check_whole(calls)


def test_interleaved_tasks_pair_exactly(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path)

    async def task(number: int) -> None:
        for turn in range(10):
            with recorder.call(f"task {number}") as call:
                call.serialized(number)
                await asyncio.sleep(0)
                call.sent()
                await asyncio.sleep(0)
                call.received(turn)

    async def everyone() -> None:
        await asyncio.gather(*(task(number) for number in range(64)))

    asyncio.run(everyone())
    trace.stop()
    calls = {(call.method, call.sent_bytes, call.recv_bytes) for call in records(tmp_path)}
    assert calls == {(f"task {number}", number, turn) for number in range(64) for turn in range(10)}


def test_threads_have_segments_of_their_own(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path)

    def work(number: int) -> None:
        for turn in range(500):
            rpc(recorder, f"thread {number}", turn, number)

    in_threads(8, work)
    trace.stop()
    calls = sorted((call.method, call.sent_bytes) for call in records(tmp_path))
    assert calls == [(f"thread {number}", turn) for number in range(8) for turn in range(500)]
    assert len(list(tmp_path.glob("*.ipct"))) == 8
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4000 * 128 + 8 * 8192


def test_names_made_of_data_do_not_fill_the_disk(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path)
    for number in range(6000):
        rpc(recorder, f"GET /user/{number}")
    rpc(recorder, "\ud800 é" * 1000)
    trace.stop()
    names = {call.method for call in records(tmp_path)}
    assert len(records(tmp_path)) == 6001
    assert len(names) <= 4097
    assert "(other names)" in names


def test_segments_rotate_and_each_names_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipcbench.trace.record.files._FIRST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr("ipcbench.trace.record.files._LARGEST_SEGMENT_BYTES", 8192)
    recorder = trace.start(tmp_path)
    for number in range(500):
        rpc(recorder, "a name of more than a hundred bytes " * 5 + str(number % 5), number)
    trace.stop()
    assert len(list(tmp_path.glob("*.ipct"))) > 10
    assert sorted(call.sent_bytes for call in records(tmp_path)) == list(range(500))


def test_max_bytes_ends_recording_and_not_counting(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path, max_bytes="64KiB")
    for _ in range(2000):
        rpc(recorder)
    assert recorder.problem
    trace.stop()
    assert 100 < len(records(tmp_path)) < 500
    assert calls_count(tmp_path) == 2000


def test_a_full_folder_takes_no_more_than_it_may(tmp_path: Path) -> None:
    """Histograms of further methods are shared, so that each call still counts; a thread has at least one."""
    limit = 2**20
    recorder = trace.start(tmp_path, sample=8, max_bytes=limit)
    for number in range(8000):
        rpc(recorder, f"method {number % 80}")
    trace.stop()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit
    assert calls_count(tmp_path) == 8000
    assert "(other names)" in {bulk.method for bulk in histograms(tmp_path)}


@pytest.mark.usefixtures("no_space")
def test_a_full_disk_ends_recording_and_not_the_application(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path)
    for _ in range(10):
        rpc(recorder)
    assert "No space left" in recorder.problem
    assert list(tmp_path.glob("*.ipct")) == []
    notes = Notes()
    read_processes(tmp_path, notes)
    assert notes.counts["processes that could not write all their calls"] == 1


def test_a_disk_that_is_full_later_leaves_a_note_that_calls_are_lost(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """There is no room for a line, but the segment's first page is there already."""
    recorder = trace.start(tmp_path, sample=4)
    (tmp_path / "processes.jsonl").mkdir()
    rpc(recorder)
    request.getfixturevalue("no_space")
    for _ in range(100):
        rpc(recorder)
    trace.stop()
    assert calls_count(tmp_path) < 101
    assert Objection("count", LOSING, 1, grave=True) in audit([], gather([tmp_path]).notes)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_segment_that_was_cut_short_is_told_from_a_whole_one(tmp_path: Path, is_closed: bool) -> None:
    recorder = trace.start(tmp_path)
    for _ in range(100):
        rpc(recorder)
    if is_closed:
        trace.stop()
    (path,) = tmp_path.glob("*.ipct")
    assert gather([path]).notes.damaged_count == 0
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes()[: HEADER_BYTES + 50 * RECORD_BYTES])
    notes = gather([copy]).notes
    assert notes.damaged_count == 1
    assert "cut short" in notes.examples[0]


def test_a_histogram_file_that_was_cut_short_is_told_from_a_whole_one(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path, sample=1000)
    for method in ("a", "b"):
        for _ in range(10):
            rpc(recorder, method)
    trace.stop()
    (path,) = tmp_path.glob("*.ipch")
    assert gather([tmp_path]).notes.damaged_count == 0
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # a whole block
    assert "cut short" in gather([tmp_path]).notes.examples[0]


def test_a_budget_decides_between_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes to decide would else be in the times of the calls that have records."""
    decided = []

    def decide(_: ThreadRecorder, call_site: Any) -> None:
        decided.append((call_site.method, len(records(tmp_path))))
        call_site.look_ns = 0

    monkeypatch.setattr(ThreadRecorder, "decide", decide)
    trace.start(tmp_path, budget=0.01)
    one, other = multiprocessing.Pipe()
    one, other = trace.wrap(one, name="one"), trace.wrap(other, name="other")
    for _ in range(200):
        one.send_bytes(b"x")
        other.recv_bytes()
    one.close()
    other.close()
    with trace.call("own"):
        pass
    trace.stop()
    assert {method.split()[0] for method, _ in decided} >= {"one", "other", "own"}
    assert [count for _, count in decided] == list(range(1, len(decided) + 1)), "each once its record is written"


@pytest.mark.parametrize("folder", ["/proc/nothing/here", "/dev/null/x"])
def test_a_folder_that_cannot_be_made_is_no_error(folder: str) -> None:
    recorder = trace.start(folder)
    rpc(recorder)
    assert recorder.problem


def test_a_forked_child_writes_files_of_its_own(tmp_path: Path) -> None:
    code = """
import os, sys
from ipcbench import trace
recorder = trace.start(sys.argv[1], sample=2)
def work(begin):
    for number in range(begin, begin + 100):
        with recorder.call("x") as call:
            call.serialized(number); call.sent(); call.received(0)
work(0)
with recorder.call("x") as call:
    pid = os.fork()
    call.serialized(1000 if pid else 2000)
if not pid:
    work(200)
    os._exit(0)
os.waitpid(pid, 0)
work(100)
"""
    run_program(code, tmp_path)
    assert calls_count(tmp_path) == 302
    sent = [call.sent_bytes for call in records(tmp_path)]
    assert len(set(sent)) == len(sent)
    assert len({path.name.split("-")[3] for path in tmp_path.glob("*.ipct")}) == 2


def test_a_worker_of_multiprocessing_keeps_what_it_only_counted(tmp_path: Path) -> None:
    """A forked worker ends by `os._exit`, without the interpreter's exit handlers."""
    code = """
import multiprocessing, sys
from ipcbench import trace
def work(count):
    for _ in range(count):
        with trace.call("x") as call:
            call.serialized(1)
trace.start(sys.argv[1], budget=0.002)
context = multiprocessing.get_context("fork")
worker = context.Process(target=work, args=(5000,))
worker.start()
worker.join()
with context.Pool(1) as pool:
    pool.map(work, [1000] * 3)
    pool.close()
    pool.join()
"""
    run_program(code, tmp_path)
    assert calls_count(tmp_path) == 8000


def test_the_environment_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPCBENCH_TRACE", f"{tmp_path},sample=1,service=worker")
    monkeypatch.setattr(STATE, "recorder", _Unresolved())
    with trace.call("first"):
        pass
    trace.stop()
    assert [call.method for call in records(tmp_path)] == ["first"]


@pytest.mark.parametrize("text", ["x,sample=no", "x,sample=0", "x,budget=2", "x,colour=red", ",", "x,max_bytes=much"])
def test_a_wrong_variable_is_ignored(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPCBENCH_TRACE", text)
    monkeypatch.setattr(STATE, "recorder", _Unresolved())
    with trace.call("first") as call:
        call.mark()
    assert not STATE.recorder.enabled


def test_wrong_arguments_are_refused() -> None:
    for bad in ({"sample": 0}, {"budget": 1.0}, {"folder": ""}):
        with pytest.raises(ConfigError):
            trace.start(**{"folder": "x", **bad})  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        trace.Schema("too long", tuple("abcdefgh"))


HANDLER = """
import signal, sys
from pathlib import Path
from ipcbench import trace
from tests.trace.made import rpc
trace.record.files._LARGEST_SEGMENT_BYTES = 16_384 # most signals come while a segment or histograms are made
recorder = trace.start(sys.argv[1])
seen = depth = 0

def handle(*_):
    global seen, depth
    depth += 1
    if depth < 4: # one handler may be interrupted by the next, but not without end
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
    rpc(recorder, "handler", seen)
    rpc(recorder, f"handler {seen % 50}", seen)
    seen += 1
    depth -= 1
    if not depth:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001)
for number in range(20_000):
    rpc(recorder, "main", number)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
trace.stop()
print(seen)
"""


def test_calls_in_a_signal_handler(tmp_path: Path) -> None:
    seen_count = int(run_program(HANDLER, tmp_path))
    sent = sorted(call.sent_bytes for call in records(tmp_path) if call.method == "main")
    assert sent == list(range(20_000))
    assert seen_count > 0
    assert calls_count(tmp_path) == 20_000 + 2 * seen_count  # while a segment is made, calls go into histograms


def test_calls_while_histograms_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if signals came at the worst moments, and their handlers made calls of the same and of other methods."""
    recorder = trace.start(tmp_path, sample=1000)
    calls: Counter[str] = Counter()

    def make_calls() -> None:
        for method in ("a", "b", "c") * 3:  # not each of them has a record
            rpc(recorder, method, calls[method])
            calls[method] += 1
            assert sum(calls.values()) < 2000, "one call makes the next one necessary, without end"

    def during(what: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any) -> Any:
            make_calls()
            done = what(*arguments)
            make_calls()
            return done

        return do

    for name in ("extend_file", "pack_header"):
        monkeypatch.setattr(histogram_files, name, during(getattr(histogram_files, name)))
    for _ in range(30):
        make_calls()
    trace.stop()
    counts = Counter(call.method for call in records(tmp_path))
    for bulk in histograms(tmp_path):
        counts[bulk.method] += int(bulk.counts.sum())
    assert counts == calls


def test_trace_ids_in_every_form() -> None:
    digits = "0af7651916cd43dd8448eb211c80319c"
    for text in (f"00-{digits}-b7ad6b7169203331-01", digits, "0af76519-16cd-43dd-8448-eb211c80319c"):
        assert parse_trace_id(text) == (0x0AF7651916CD43DD, 0x8448EB211C80319C)
    assert parse_trace_id("anything else") != parse_trace_id("anything more")


def test_recording_loads_the_standard_library_only() -> None:
    code = "import sys; from ipcbench import trace; trace.start('/dev/null/x'); print(*sys.modules)"
    assert not {"numpy", "click", "zmq", "msgpack"} & set(run_program(code).split())


@pytest.mark.parametrize("options", [{"sample": 1_000_000}, {"budget": 1e-9}])
def test_a_call_without_a_record_says_when_it_was_sent(tmp_path: Path, options: dict[str, Any]) -> None:
    """So that its server knows how long it waited, although neither has a record of it."""
    recorder = trace.start(tmp_path, **options)
    contexts = []
    for _ in range(50):
        with recorder.call("m") as call:
            contexts.append(unpack_context(call.context()))
    *_, last = [each for each in contexts if each is not None and not each.sampled]  # a late one may be sampled
    assert last.span == 0
    assert 0 < last.sent_ns <= now_ns()
    assert last.boot == recorder._files.boot


@pytest.mark.parametrize("pure", ["", "1"])
def test_calls_that_are_only_counted_survive_the_end_of_their_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: str
) -> None:
    monkeypatch.setenv("IPCBENCH_PURE", pure)
    code = """
import os, sys
from ipcbench import trace
trace.start(sys.argv[1], budget=1e-9)
def calls(count):
    for _ in range(count):
        with trace.call("x"):
            pass
calls(3_000)
for _ in range(3):
    child = os.fork()
    if not child:
        calls(100)
        os._exit(0)
    os.waitpid(child, 0)
child = os.fork()
if not child:
    calls(500)
    os.kill(os.getpid(), 9)
os.waitpid(child, 0)
os._exit(0)
"""
    run_program(code, tmp_path)
    assert calls_count(tmp_path) == 3_800


@pytest.mark.parametrize("pure", ["", "1"])
def test_a_budget_times_calls_that_have_become_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: str) -> None:
    monkeypatch.setenv("IPCBENCH_PURE", pure)
    code = """
import sys, threading
from ipcbench import trace
trace.start(sys.argv[1], budget=1e-9)
for number in range(5_010):
    with trace.call("x"):
        if number >= 5_000:
            threading.Event().wait(0.045)
"""
    run_program(code, tmp_path)
    assert calls_count(tmp_path) == 5_010
    assert any(call.total_ns >= 45_000_000 for call in records(tmp_path))


def test_each_decision_of_a_budget_ends_an_interval(tmp_path: Path) -> None:
    """Also one without calls that were only counted: those of the next one must not be shared out among its records."""
    trace.start(tmp_path, budget=0.5)
    end_ns = now_ns() + 150_000_000
    while now_ns() < end_ns:
        with trace.call("x"):
            threading.Event().wait(0.001)
    trace.stop()
    (path,) = tmp_path.glob("*.ipct")
    kinds = np.frombuffer(path.read_bytes()[HEADER_BYTES:], np.uint8)[::RECORD_BYTES]
    assert np.count_nonzero(kinds == SAMPLED) >= 2


def test_threads_together_keep_to_max_bytes(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path, max_bytes=4 * 2**20)
    barrier = threading.Barrier(6)

    def work(method: str) -> None:
        barrier.wait()
        for _ in range(20_000):
            rpc(recorder, method)

    threads = [threading.Thread(target=work, args=(f"m{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * 2**20
    trace.stop()
    assert calls_count(tmp_path) == 120_000


def facts_after(program: str, folder: Path) -> dict[str, Any]:
    """Return what the only segment says of its thread, after a program that records into `sys.argv[1]`."""
    subprocess.run([sys.executable, "-c", program, folder / "trace"], check=False)
    notes = Notes()
    for path in (folder / "trace").glob("*.ipct"):
        list(read_segment(path, notes))
    (facts,) = notes.facts
    return facts


def test_a_segment_tells_how_long_its_thread_waited_for_a_core(tmp_path: Path) -> None:
    """Two busy processes on one core: each waits while the other runs."""
    program = """
import os, sys, time
from ipcbench import trace
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
trace.start(sys.argv[1])
if os.fork() == 0:
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass
    os._exit(0)
with trace.call("work"):
    pass
while os.waitpid(-1, os.WNOHANG) == (0, 0):
    pass
trace.stop()
"""
    assert facts_after(program, tmp_path)["waited_ns"] > 10**8


def test_how_long_a_killed_thread_waited_is_unknown(tmp_path: Path) -> None:
    program = """
import os, sys
from ipcbench import trace
trace.start(sys.argv[1])
with trace.call("x"):
    pass
os.kill(os.getpid(), 9)
"""
    assert facts_after(program, tmp_path)["waited_ns"] is None
