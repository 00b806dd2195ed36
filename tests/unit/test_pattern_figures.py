"""Queues and fan-in without processes: fairness, shares, schedules, waits, counts by number, ranks and answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipcbench.analysis.compare.compare import compare_runs
from ipcbench.analysis.exporters.common import select
from ipcbench.analysis.patterns.cells import pattern_cells
from ipcbench.analysis.recommend.needs import registered_offers
from ipcbench.analysis.recommend.patterns import PatternQuestion, recommend_pattern
from ipcbench.analysis.report.render import as_csv, as_json, as_markdown, as_text
from ipcbench.analysis.report.screen import screen
from ipcbench.analysis.report.so_far import so_far
from ipcbench.analysis.report.tables import tables
from ipcbench.errors import ConfigError, StoreError, TrialError
from ipcbench.harness.loops import write_batches, write_batches_paced
from ipcbench.harness.patterns.digest import Delivered, Receipts, Step, is_held, slowest_p99_ns
from ipcbench.harness.patterns.parts import Offered, Offering, began_numbers, make_began_file
from ipcbench.harness.patterns.trial import PatternTrial
from ipcbench.results.model import TrialResult
from ipcbench.spec import SweepSpec
from ipcbench.stats.fairness import jain_index, largest_share
from ipcbench.sweeps.load import load_sweep
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import INTENDED, SEQUENCE, Outgoing, Phase, unpack_stamp, unpack_word
from tests.unit.builders import conditions, quantiles
from tests.unit.pattern_runs import make_pattern_run, pattern_sweep, short


@pytest.mark.parametrize(
    ("counts", "jain", "share"),
    [
        ((5, 5, 5, 5), 1.0, 0.25),
        ((8, 0, 0, 0), 0.25, 1.0),
        ((1, 3), 16 / 20, 0.75),
        ((7,), 1.0, 1.0),
        ((0, 0), None, None),
    ],
)
def test_fairness_and_shares(counts: tuple[int, ...], jain: float | None, share: float | None) -> None:
    assert jain_index(counts) == pytest.approx(jain)
    assert largest_share(counts) == pytest.approx(share)


class Recorded:
    """Stands in for a transport: keeps (number, intended time, clock) of each message."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int]] = []
        self.batches: list[int] = []

    def __call__(self, buffers: list[bytearray]) -> None:
        self.batches.append(len(buffers))
        for buffer in buffers:
            self.sent.append((*(unpack_word(buffer, 8 * word)[0] for word in (SEQUENCE, INTENDED)), now_ns()))


@pytest.mark.parametrize("batch", [1, 4])
def test_each_message_counts_from_when_it_is_due_and_its_batch_goes_with_the_last(batch: int) -> None:
    write, interval = Recorded(), 200_000.0
    messages = [Outgoing(bytes(8)) for _ in range(2 * batch)]
    start = now_ns()
    assert write_batches_paced(write, messages, batch, 5, 3, start, interval, 6) == 6 * batch
    assert write.batches == [batch] * 6
    assert [number for number, _, _ in write.sent] == [5 + 3 * index for index in range(6 * batch)]
    assert [due for _, due, _ in write.sent] == [start + int(index * interval) for index in range(6 * batch)]
    for index, (_, _, sent) in enumerate(write.sent):
        assert sent >= start + int((index // batch * batch + batch - 1) * interval)


def test_a_late_writer_does_not_move_the_schedule() -> None:
    """Coordinated omission: all were due in the past, and their times count from then."""
    write = Recorded()
    begin = now_ns() - 10**9
    write_batches_paced(write, [Outgoing(b"")], 1, 0, 1, begin, 1_000_000.0, 3)
    assert [due for _, due, _ in write.sent] == [begin, begin + 1_000_000, begin + 2_000_000]


def test_flat_out_writes_until_its_time_is_over_and_counts_all() -> None:
    write = Recorded()
    count = write_batches(write, [Outgoing(b""), Outgoing(b"")], 2, 1, 2, now_ns() + 2_000_000)
    assert count == len(write.sent) > 0
    assert [number for number, _, _ in write.sent] == [1 + 2 * index for index in range(count)]


def receipts(*workers: list[tuple[int, int, int]]) -> Receipts:
    names = ("number", "intended_ns", "received_ns")
    columns = [np.array(each, dtype=np.int64).reshape(-1, 3).T for each in workers]
    return Receipts.of([{name: row.tobytes() for name, row in zip(names, each, strict=True)} for each in columns])


def test_a_window_of_a_queue_has_its_rate_shares_and_waits() -> None:
    first = [(number, 1000 * number, 1000 * number + 50) for number in range(6)]
    second = [(number, 1000 * number, 1000 * number + 150) for number in range(6, 8)]
    taken = receipts(first, second)
    flat = taken.window(Step(None, (Offered(2, 6, 2000, 7000),), 5000.0), 1, by_writer=False)
    assert flat.peer_counts == (4, 2)  # 2 to 5, and 6 and 7
    assert flat.rate_per_s == pytest.approx(6 / 5e-6)
    assert (flat.wait, flat.offered_per_s, flat.is_held) == (None, None, True)
    paced = taken.window(Step(0.5, (Offered(2, 6, 2000, 7000),), 5000.0, 1e6), 1, by_writer=False)
    assert paced.wait is not None
    assert (paced.wait.count, paced.wait.p50_ns, paced.wait.max_ns) == (6, 50.0, 150.0)
    assert paced.slowest_p99_ns is None
    assert paced.rate_per_s == pytest.approx(5 / 5e-6)  # 7 came after the window


def test_a_window_of_a_fan_in_counts_its_own_messages() -> None:
    """Writer 0 has even numbers, writer 1 odd ones, and one of the window before, which came in this one."""
    taken = receipts([(number, 100 * number, 100 * number + 7) for number in range(3, 20)])
    step = Step(None, (Offered(4, 8, 0, 1900), Offered(5, 7, 500, 2500)), 1500.0)
    flat = taken.window(step, 1, by_writer=True)
    assert flat.peer_counts == (8, 7)
    assert flat.rate_per_s == step.capacity_per_s == pytest.approx(15 / 1.5e-6)


def test_at_a_share_no_more_arrives_than_was_offered_however_late_a_writer_catches_up() -> None:
    """The second writer learns of the window when the first one is done with half, and its messages come in a burst;
    those of the window before come, too. Of the first writer two come when its window is over.
    """
    before = [(number, 0, 1001 + number) for number in range(20)]
    first = [(20 + 2 * turn, 1000 + 100 * turn, 1007 + 100 * turn + 1000 * (turn > 7)) for turn in range(10)]
    second = [(21 + 2 * turn, 1400 + 100 * turn, 2390 + turn) for turn in range(10)]
    step = Step(0.5, (Offered(20, 10, 1000, 2000), Offered(21, 10, 1400, 2400)), 1000.0, 20 / 1e-6)
    found = receipts(before + first + second).window(step, 1, by_writer=True)
    assert found.rate_per_s == pytest.approx(18 / 1e-6)
    assert found.is_held
    lost = receipts(before + first + second[:8]).window(step, 1, by_writer=True)
    assert not lost.is_held, "those of the window before make up for nothing"


def test_the_rate_flat_out_does_not_depend_on_who_waits_for_room_as_the_window_begins_and_ends() -> None:
    together = Step(None, (Offered(0, 500, 0, 1000), Offered(1, 300, 0, 1900)), 1000.0)
    assert together.capacity_per_s == pytest.approx(800 / 1e-6)
    assert together.is_together
    apart = Step(None, (Offered(0, 500, 0, 1000), Offered(1, 300, 501, 1000)), 1000.0)
    assert not apart.is_together
    assert not Step(None, (Offered(0, 0, 501, 1000),), 1000.0).is_together, "it learned too late of the window"
    assert Step(0.5, (Offered(0, 1, 0, 10), Offered(1, 1, 499, 510)), 1000.0, 2e6).is_together


@pytest.mark.parametrize(("late_count", "reason"), [(3, ""), (8, "in 8 windows of 50 ms")])
def test_a_window_in_which_the_writers_were_not_together_is_measured_again(late_count: int, reason: str) -> None:
    trial = PatternTrial.__new__(PatternTrial)
    windows = iter([(Offered(0, 5, 0, 9), Offered(1, 5, 26_000_000, 9))] * late_count)
    sound = (Offered(0, 5, 0, 9), Offered(1, 5, 24_000_000, 9))
    trial._offer = lambda *_: next(windows, sound)  # type: ignore[method-assign]
    if reason:
        with pytest.raises(TrialError, match=reason):
            trial._measure(0.05, 0.5, 1000.0)
    else:
        assert trial._measure(0.05, 0.5, 1000.0) == Step(0.5, sound, 5e7, 1000.0)


def test_a_writer_that_learns_late_of_a_window_begins_at_once_and_ends_with_the_others() -> None:
    writer = SimpleNamespace(write=lambda buffer, timeout_s: None, waits=None)
    spec = pattern_sweep(pattern="fan_in", peers=(2,)).pattern_trials("shm", 64, 64, 0)[0]
    offering = Offering(writer, 1, [bytes(64)], SimpleNamespace(trial=spec, stall_s=1.0))  # type: ignore[arg-type]
    begin_ns, late_ns = now_ns() - 1_000_000, now_ns()
    late = offering.offer(begin_ns, 5_000_000, 0.0, Phase.MEASURE)
    assert late.begin_ns >= late_ns
    assert (late.end_ns >= begin_ns + 5_000_000, late.first) == (True, 1)
    soon_ns = now_ns() + 5_000_000
    soon = offering.offer(soon_ns, 5_000_000, 0.0, Phase.MEASURE)
    assert soon.begin_ns >= soon_ns
    assert soon.first >= late.first + 2 * late.count


def test_who_waits_for_room_as_the_window_begins_is_there_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write takes 4 of the clock's ticks; the second one lasts from before the window into it."""

    def write(buffer: bytearray, timeout_s: float) -> None:
        phases.append(unpack_stamp(memoryview(buffer))[3])
        clock[0] += 4

    clock, phases = [100], []
    for module in ("patterns.parts", "loops"):
        monkeypatch.setattr(f"ipcbench.harness.{module}.now_ns", lambda: clock[0])
    spec = pattern_sweep(pattern="fan_in", peers=(2,)).pattern_trials("shm", 64, 64, 0)[0]
    plan: Any = SimpleNamespace(trial=spec, stall_s=1.0)
    offering = Offering(SimpleNamespace(write=write, waits=None), 0, [bytes(64)], plan)  # type: ignore[arg-type]
    offered = offering.offer(106, 10, 0.0, Phase.MEASURE)
    assert phases == [Phase.WARMUP] * 2 + [Phase.MEASURE] * 2
    assert offered == Offered(first=4, count=2, begin_ns=106, end_ns=116)


def test_the_slowest_writer_is_unknown_if_one_sent_too_little() -> None:
    times = np.concatenate([np.full(1000, 10), np.full(1000, 30)])
    writer = np.repeat([0, 1], 1000)
    assert slowest_p99_ns(times, writer, 2) == 30.0
    assert slowest_p99_ns(times[:-1], writer[:-1], 2) is None
    assert slowest_p99_ns(times, writer, 3) is None


@pytest.mark.parametrize(
    ("times", "held"),
    [
        ([10] * 100, True),
        ([10] * 50 + [9000] * 25 + [10] * 25, True),  # a stall that was caught up
        (list(range(0, 100_000, 1000)), False),  # a backlog that grows
        ([10] * 80 + [9000] * 20, True),  # a late stall: before it, there was none
        ([10] * 70 + [9000] * 30, False),
        ([], True),
    ],
)
def test_a_rate_is_held_unless_a_backlog_is_left(times: list[int], held: bool) -> None:
    column = np.array(times, dtype=np.int64)
    assert is_held(column, 100_000.0, 0.0, 1.0) is held
    assert is_held(column, 100_000.0, 1e6, 1.0), "less than a batch is no backlog"
    assert not is_held(column, 100_000.0, 1e6, 0.89), "a backlog that began in the last quarter"


def test_messages_are_counted_by_their_numbers() -> None:
    sound = Delivered.of(receipts([(0, 0, 0), (2, 0, 0)], [(1, 0, 0), (3, 0, 0)]), [4])
    assert sound.fault(0) == ""
    assert "1 torn" in sound.fault(1)
    wrong = Delivered.of(receipts([(2, 0, 0), (0, 0, 0)], [(2, 0, 0), (9, 0, 0)]), [4])
    assert (wrong.lost_count, wrong.repeated_count, wrong.unknown_count, wrong.reordered_count) == (2, 1, 1, 1)
    assert wrong.fault(0) == "of 4 messages, 2 lost, 1 duplicated, 1 reordered, 1 torn"
    two_writers = Delivered.of(receipts([(0, 0, 0), (3, 0, 0), (1, 0, 0), (2, 0, 0)]), [2, 2])
    assert (two_writers.lost_count, two_writers.reordered_count) == (0, 1)  # 3 before 1, both of writer 1


def test_what_a_killed_worker_had_begun_is_not_lost_and_may_be_begun_twice() -> None:
    survivors = receipts([(0, 0, 0), (1, 0, 0), (2, 0, 0)])
    recovery = Delivered.of(survivors, [5], began=[2, 3]).recovery(4)
    assert (recovery.lost_count, recovery.repeated_count, recovery.redelivered_count) == (1, 1, 4)


def test_the_file_of_a_killed_worker_has_what_it_began(tmp_path: Path) -> None:
    path = tmp_path / "began"
    make_began_file(path)
    assert list(began_numbers(path)) == []
    words = np.memmap(path, dtype=np.int64)
    words[:4] = (3, 7, 8, 9)
    words.flush()
    assert list(began_numbers(path)) == [7, 8, 9]


CLEAR = {"shm": (200e3, 201e3, 199e3), "zmq": (100e3, 101e3, 99e3)}


def test_cells_have_ranks_and_figures_of_all_rounds(tmp_path: Path) -> None:
    run = make_pattern_run(tmp_path / "run", CLEAR)
    assert (run.trials, len(run.pattern_trials)) == ((), 12)
    shm, zmq = pattern_cells(run)
    assert (shm.backend, shm.rank, zmq.rank) == ("shm", 1, 2)
    assert zmq.ratio is not None
    assert zmq.ratio.low > 1.5
    assert shm.rate_per_s is not None
    assert shm.rate_per_s.estimate == pytest.approx(200e3)
    assert (shm.largest_share_ratio, shm.jain_ratio) == (0.5, None)
    (load,) = shm.loads
    assert (load.held_count, load.rounds_count, load.offered_per_s) == (3, 3, 100e3)
    assert load.wait_p99_ns is not None
    assert load.wait_p99_ns.estimate == pytest.approx(50_000)
    assert shm.recovery is not None
    assert (shm.recovery.kills_count, shm.recovery.lost_count, shm.recovery.redelivered_count) == (3, 0, 21)


def test_too_few_rounds_claim_nothing(tmp_path: Path) -> None:
    run = make_pattern_run(tmp_path / "run", {name: rates[:2] for name, rates in CLEAR.items()})
    assert [cell.rank for cell in pattern_cells(run)] == [None, None]
    text = as_text(tables(run))
    assert "2 rounds are too few to tell" in text
    assert "ahead" not in text
    assert recommend_pattern(run, PatternQuestion("queue", 1024)).backend is None
    (row, _) = json.loads(as_json(tables(run)))["patterns"]
    assert row["messages_per_s"]
    assert row["messages_low_per_s"] is None
    assert row["ratio_to_best_low"] is None


def unheld(trial: TrialResult) -> TrialResult:
    """Return the trial without its rate held, in two rounds of three."""
    is_late = trial.spec.round_index > 0
    return replace(trial, windows=tuple(replace(each, is_held=not is_late) for each in trial.windows))


def test_times_that_say_nothing_are_not_shown(tmp_path: Path) -> None:
    late = tables(make_pattern_run(tmp_path / "late", CLEAR, change=unheld))
    assert as_text(late).count("not held") >= 2
    assert json.loads(as_json(late))["patterns"][0]["loads"][0]["wait_p50_us"] is None
    few = tables(make_pattern_run(tmp_path / "few", CLEAR, change=short))
    assert "/ n/a" in as_text(few)
    load = json.loads(as_json(few))["patterns"][0]["loads"][0]
    assert load["wait_p50_us"] == pytest.approx(5.0)
    assert load["wait_p99_us"] is None


def test_times_are_of_the_rounds_in_which_the_rate_was_held(tmp_path: Path) -> None:
    def first_late(trial: TrialResult) -> TrialResult:
        if trial.spec.round_index or trial.spec.kill:
            return trial
        flat_out, *loads = trial.windows
        return replace(
            trial, windows=(flat_out, *(replace(each, is_held=False, wait=quantiles(9e9)) for each in loads))
        )

    (load, *_), *_ = (
        cell.loads for cell in pattern_cells(make_pattern_run(tmp_path / "run", CLEAR, change=first_late))
    )
    assert (load.held_count, load.rounds_count) == (2, 3)
    assert load.wait_p50_ns is not None
    assert load.wait_p50_ns.high == pytest.approx(5_000, rel=1e-3)


def test_the_header_tells_processes_and_the_cpu_time_of_others(tmp_path: Path) -> None:
    def disturbed(trial: TrialResult) -> TrialResult:
        return replace(trial, conditions=replace(conditions(), others_cpu_ratio=0.3))

    header = tables(make_pattern_run(tmp_path / "run", CLEAR, change=disturbed)).header
    (load,) = (line for line in header if line.startswith("load"))
    assert load.startswith("load: 3 processes on ")
    assert load.endswith("other processes took 30 % of the CPU time")
    assert not any(line.startswith("noise") for line in header)


def test_failed_trials_are_named_and_their_cells_have_no_figures(tmp_path: Path) -> None:
    run = make_pattern_run(tmp_path / "run", {"shm": CLEAR["shm"], "zmq": (0, 0, 0)}, skipped={"mpi": "cannot"})
    shown = tables(run)
    text = as_text(shown)
    assert "worker-0 was killed by signal 9" in text
    assert "left out: mpi: cannot" in text
    cells = {cell.backend: cell for cell in shown.pattern_cells}
    assert (cells["zmq"].status, cells["zmq"].rate_per_s) == ("failed", None)
    assert (cells["shm"].status, cells["shm"].rank) == ("ok", None)
    answer = recommend_pattern(run, PatternQuestion("queue", 1024))
    assert (answer.outcome, answer.backend) == ("only candidate", "shm")


def test_a_run_of_several_peers_and_batches_is_shown_in_every_form(tmp_path: Path) -> None:
    sweep = pattern_sweep(pattern="fan_in", peers=(1, 4), batches=(1, 16), loads=(0.5, 0.8))
    run = make_pattern_run(tmp_path / "run", CLEAR, sweep)
    shown = tables(run)
    for text in (as_text(shown), as_markdown(shown), "\n".join(line for line, _ in screen(run, shown, "folder"))):
        assert "Fan-in: bytes of 1 KiB" in text
        assert "4 writers, batch 16: shm 200" in text
    assert "recommend folder --size 1024" in "\n".join(line for line, _ in screen(run, shown, "folder"))
    head, *rows = as_csv(shown).splitlines()
    assert len(rows) == 8
    assert {"peers", "batch", "jain_ratio", "load_80_slowest_writer_p99_us"} <= set(head.split(","))
    assert [row[:2] for row in so_far(run, 2).rows] == [("shm", "200"), ("zmq", "100")]
    assert all(cell.jain_ratio is not None and cell.recovery is None for cell in shown.pattern_cells)


@pytest.mark.parametrize(
    ("asked", "outcome", "words"),
    [
        ({}, "clear", "shm 200"),
        ({"payload_bytes": 1100}, "clear", "Take shm."),
        ({"payload_bytes": 4096}, "outside the measured range", "measured 1 KiB with 2 workers. Measure it: ipcbench"),
        ({"peers": 3}, "outside the measured range", "ipcbench run queue --payload bytes --codec raw --sizes 1024"),
        ({"pattern": "fan_in"}, "outside the measured range", "no trial of a fan-in"),
        ({"rate_per_s": 150e3}, "only candidate", "zmq: too slow for 150,000 messages/s"),
        ({"rate_per_s": 199.9e3}, "only candidate", "Beware: shm may not keep up with 200,000 messages/s"),
        ({"rate_per_s": 900e3}, "no candidate", "none"),
        ({"needs": ("no-deps",)}, "only candidate", "zmq: needs no-deps"),
        ({"needs": ("persistent",)}, "no candidate", "do not outlive"),
    ],
)
def test_answers(tmp_path: Path, asked: dict[str, Any], outcome: str, words: str) -> None:
    run = make_pattern_run(tmp_path / "run", CLEAR)
    question = PatternQuestion(**{"pattern": "queue", "payload_bytes": 1024, **asked})
    answer = recommend_pattern(run, question, registered_offers())
    assert answer.outcome == outcome
    assert words in answer.text() or words == "none"
    assert (answer.backend is None) == (outcome not in {"clear", "tie", "only candidate"})
    assert answer.as_dict()["verdict"] == answer.sentence()


def test_an_answer_names_its_batch_and_what_is_fastest_with_others(tmp_path: Path) -> None:
    def quicker(trial: TrialResult) -> TrialResult:
        first, *others = trial.windows or (None,)
        if first is None or trial.spec.batch == 1:
            return trial
        factor = trial.spec.batch if trial.spec.backend == "zmq" else 1
        return replace(trial, windows=(replace(first, rate_per_s=factor * first.rate_per_s), *others))

    run = make_pattern_run(tmp_path / "run", CLEAR, pattern_sweep(batches=(1, 4, 16)), quicker)
    answer = recommend_pattern(run, PatternQuestion("queue", 1024))
    assert (answer.backend, answer.batch) == ("shm", 1)
    assert answer.sentence().startswith("For a queue of 1 KiB with 2 workers, batch 1: shm 200")
    assert [(cell.setting.batch, cell.backend) for cell in answer.other_batches] == [(4, "zmq"), (16, "zmq")]
    assert "batch 4: zmq 400" in answer.text()
    assert "batch 16: zmq 1,600" in answer.text()
    fields = answer.as_dict()
    assert fields["batch"] == 1
    assert [each["batch"] for each in fields["other_batches"]] == [4, 16]
    assert recommend_pattern(run, PatternQuestion("queue", 4096)).as_dict()["batch"] is None


def test_a_tie_names_all_of_it(tmp_path: Path) -> None:
    run = make_pattern_run(tmp_path / "run", {"shm": (200e3, 150e3, 260e3), "zmq": (190e3, 200e3, 180e3)})
    answer = recommend_pattern(run, PatternQuestion("queue", 1024, peers=2))
    assert answer.outcome == "tie"
    assert "no clear difference" in answer.sentence()


def test_the_trials_of_a_round() -> None:
    trials = pattern_sweep(peers=(1, 2), batches=(1, 16)).pattern_trials("shm", 1024, 1024, 0)
    assert [(trial.readers, trial.writers, trial.batch, trial.kill) for trial in trials] == [
        (1, 1, 1, False),
        (1, 1, 16, False),
        (2, 1, 1, False),
        (2, 1, 16, False),
        (2, 1, 1, True),
    ]
    assert all(trial.turns == (1 if trial.kill else 2) for trial in trials)
    assert [trial.kill for trial in pattern_sweep(peers=(1,)).pattern_trials("shm", 1, 1, 0)] == [False]
    fan_in = pattern_sweep(pattern="fan_in", peers=(3,)).pattern_trials("shm", 1, 1, 0)
    assert [(trial.readers, trial.writers, trial.endpoints_count) for trial in fan_in] == [(1, 3, 4)]


@pytest.mark.parametrize(
    ("sweep", "options", "words"),
    [
        ("default", {"readers": "1,2"}, "one number"),
        ("default", {"batch": "4"}, "nothing beside pattern broadcast"),
        ("default", {"writers": "4"}, "nothing beside pattern broadcast"),
        ("queue", {"writers": "4"}, "--readers 1,4"),
        ("queue", {"mode": "paced"}, "nothing beside pattern queue"),
        ("queue", {"batch": "0"}, "1 to 4,096"),
        ("queue", {"load": "120%"}, "0.01 to 1"),
        ("queue", {"load": "50%,50%"}, "each once"),
        ("queue", {"readers": "1,1"}, "each once"),
        ("queue", {"readers": "65"}, "1 to 64"),
        ("queue", {"window": "6s"}, "0.01 to 5"),
        ("fan-in", {"readers": "2"}, "1 for a fan-in"),
        ("fan-in", {"pattern": "star"}, "broadcast"),
        ("fan-in", {"clients": "2"}, "nothing beside pattern fan-in"),
        ("queue", {"in-flight": "2"}, "nothing beside pattern queue"),
        ("rpc", {"readers": "2"}, "1 for a fan-in, and for rpc"),
        ("rpc", {"writers": "2"}, "nothing beside pattern rpc"),
        ("rpc", {"batch": "2"}, "nothing beside pattern rpc"),
        ("rpc", {"payload": "dict", "codec": "pickle", "sizes": "10"}, "bytes for rpc"),
        ("rpc", {"in-flight": "0"}, "1 to 1,024"),
        ("rpc", {"in-flight": "1,1"}, "each once"),
        ("rpc", {"service": "2s"}, "0 to 200ms"),
        ("rpc", {"reply": "2GiB"}, "0 to 1,073,741,824"),
    ],
)
def test_bad_input_of_a_sweep_gets_one_clear_line(sweep: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        load_sweep(sweep, options)
    assert "\n" not in str(refused.value)


def test_options_of_a_sweep() -> None:
    queue = load_sweep("queue", {"readers": "1,8", "batch": "1,256", "load": "80%"})
    assert (queue.pattern, queue.peers, queue.batches, queue.loads) == ("queue", (1, 8), (1, 256), (0.8,))
    assert (queue.most_readers, queue.most_writers) == (8, 1)
    fan_in = load_sweep("fan-in", {"writers": "3"})
    assert (fan_in.pattern, fan_in.peers, fan_in.most_readers, fan_in.most_writers) == ("fan_in", (3,), 1, 3)
    assert load_sweep("default", {"pattern": "queue"}).peers == (3,)
    rpc = load_sweep(
        "rpc", {"clients": "2,8", "in-flight": "1,4", "reply": "0,1KiB", "service": "0,5us", "p99-limit": "2ms"}
    )
    assert (rpc.peers, rpc.in_flight, rpc.reply_sizes) == ((2, 8), (1, 4), (0, 1024))
    assert (rpc.services_s, rpc.p99_limit_s, rpc.most_writers) == ((0.0, pytest.approx(5e-6)), 0.002, 8)
    trials = rpc.pattern_trials("shm", 1024, 1024, 0)
    assert len({trial.cell for trial in trials}) == len(trials) == 2 * 2 * 2 * 2
    assert {trial.turns for trial in trials} == {5}, "alone, flat out, and the loads"
    assert load_sweep("rpc").pattern_trials("shm", 1024, 1024, 0)[0].reply_bytes == 1024
    assert SweepSpec.from_dict(json.loads(json.dumps(queue.as_dict()))) == queue


def test_a_backend_that_cannot_has_one_row_with_the_reason(tmp_path: Path) -> None:
    run = make_pattern_run(tmp_path / "run", CLEAR, pattern_sweep(peers=(1, 4)), skipped={"mpi": "only broadcast"})
    (table, _) = tables(run).pattern_tables
    assert [row[0] for row in table.rows if "mpi" in row] == ["any"]
    assert [row[3] for row in table.rows if "mpi" in row] == ["cannot"]
    assert "only broadcast" in [text for _, text in table.footnotes]
    assert "cannot" in "\n".join(line for line, _ in screen(run, tables(run), "folder"))


def test_batches_stand_beside_the_smallest(tmp_path: Path) -> None:
    def quicker(trial: TrialResult) -> TrialResult:
        first, *others = trial.windows or (None,)
        if first is None or trial.spec.batch == 1:
            return trial
        return replace(trial, windows=(replace(first, rate_per_s=3 * first.rate_per_s), *others))

    run = make_pattern_run(tmp_path / "run", CLEAR, pattern_sweep(batches=(1, 16)), quicker)
    table = next(table for table in tables(run).pattern_tables if "batches" in table.title)
    found = {row[1:3]: row[3] for row in table.rows}
    assert found["shm", "1"] == "1"
    assert found["shm", "16"].startswith("3.0")
    assert all(row[4] != "–" for row in table.rows)
    shown = "\n".join(line for line, _ in screen(run, tables(run), "folder"))
    assert "µs at 50 %" in shown.partition("what batches bring and cost")[2], "the last column is no note"


def test_what_takes_broadcasts_says_so_of_a_queue(tmp_path: Path) -> None:
    """A gate would otherwise pass, having tested nothing."""
    run = make_pattern_run(tmp_path / "run", CLEAR)
    with pytest.raises(ConfigError, match="a run of broadcasts"):
        compare_runs(run, run)
    with pytest.raises(StoreError, match="queues, fan-in and rpc"):
        select(run, ("saturate",), "osu")


RPC = pattern_sweep(name="rpc", pattern="rpc", peers=(2,), loads=(0.5, 0.8), p99_limit_s=200e-6)


def test_calls_have_their_cost_and_the_load_that_keeps_a_limit(tmp_path: Path) -> None:
    """Times are 1e9 / rate ns, p99 ten times that: 50 µs of shm, 500 µs of tcp."""
    run = make_pattern_run(tmp_path / "run", {"shm": (200e3, 201e3, 199e3), "tcp": (20e3, 20.1e3, 19.9e3)}, RPC)
    shm, tcp = pattern_cells(run)
    assert (shm.backend, shm.rank, tcp.rank, shm.jain_ratio) == ("shm", 1, 2, 1.0)
    assert shm.calls is not None
    assert shm.calls.plain_p50_ns.estimate == pytest.approx(5000)
    assert shm.calls.call_p50_ns.estimate == pytest.approx(10_000)
    assert shm.calls.cost_ratio.estimate == pytest.approx(2.0)
    assert shm.calls.within_limit_per_s == pytest.approx(160e3), "the largest load"
    assert tcp.calls is not None
    assert tcp.calls.within_limit_per_s == 0, "none of the loads"
    text = as_text(tables(run))
    assert "p99 ≤ 200 µs" in text
    assert not [line for line, _ in screen(run, tables(run), "folder") if "recommend" in line], "which it refuses"
    rows = [line.split() for line in text.splitlines() if line.split()[-1:] and line.split()[:1] in (["shm"], ["tcp"])]
    assert [row[0] for row in rows][-2:] == ["shm", "tcp"]
    assert "2.00" in rows[-1], "a call takes twice a plain round trip"
    (row, _) = json.loads(as_json(tables(run)))["patterns"]
    assert (row["calls"]["call_ratio"], row["calls"]["within_limit_per_s"]) == (
        pytest.approx(2.0),
        pytest.approx(160e3),
    )


def test_a_limit_of_which_no_p99_tells_is_unknown(tmp_path: Path) -> None:
    run = make_pattern_run(tmp_path / "run", {"shm": CLEAR["shm"]}, RPC, change=short)
    (cell,) = pattern_cells(run)
    assert cell.calls is not None
    assert cell.calls.within_limit_per_s is None
    assert "n/a" in as_text(tables(run))


def test_each_setting_of_calls_has_a_table_of_its_own(tmp_path: Path) -> None:
    sweep = replace(RPC, peers=(1, 4), services_s=(0.0, 2e-4), reply_sizes=(64, 1024))
    made = tables(make_pattern_run(tmp_path / "run", CLEAR, sweep))
    titles = [table.title for table in made.pattern_tables]
    assert len(titles) == len(set(titles)) == 8, "rates and costs, by reply and service"
    first = [table for table in made.pattern_tables if table.remarks]
    for table in first:
        subject = table.title.partition(": ")[2]
        assert [remark.partition(": ")[0] for remark in table.remarks] == [
            f"1 client, {subject}",
            f"4 clients, {subject}",
        ]


def test_a_rate_of_few_rounds_beside_one_of_many_is_said_to_be_of_few(tmp_path: Path) -> None:
    made = tables(make_pattern_run(tmp_path / "run", {"shm": (200e3, 0.0, 201e3), "tcp": (20e3, 20.1e3, 19.9e3)}, RPC))
    text = as_text(made)
    assert "nothing to compare" not in text
