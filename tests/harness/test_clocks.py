"""Clocks: one that all share is exact; others are corrected within the stated error, or there is no one-way latency; a
clock set during the run fails the trial."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ipcbench.analysis.summary.figures import counted_in_turns
from ipcbench.harness import group
from ipcbench.harness.digest import Digest
from ipcbench.harness.group import Group
from ipcbench.processes.launch import launch
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from tests.harness.small_runs import failure, raw, single, sound, tiny
from tests.selection import one_in

OFFSETS_NS = [sign * size for size in (10_000, 20_000, 30_000, 500_000) for sign in (1, -1)]
WRITER, READER = 0, 1
_LAUNCHER = Path(__file__).with_name("in_time_namespace.py")


@pytest.fixture
def offset_clock(monkeypatch, tmp_path):
    """Return a function that makes one worker's clock differ: it starts in a time namespace of its own."""
    python = sys.executable
    probe = [python, str(_LAUNCHER), "0", "1000", python, "-c", "", "--index", "0"]
    if subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("the kernel, or this user's rights, allow no time namespace")

    def offset(worker: int, offset_ns: int) -> None:
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\nexec "{python}" "{_LAUNCHER}" {worker} {offset_ns} "{python}" "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(wrapper))
        monkeypatch.setattr(group, "launch", lambda *each, **named: launch(*each, **{**named, "forked": False}))

    return offset


@pytest.fixture
def raw_columns(monkeypatch) -> list[dict[int, dict[str, np.ndarray]]]:
    """Return what the endpoints of each trial will have measured, each by its own clock."""
    kept: list[dict[int, dict[str, np.ndarray]]] = []

    def digest(trial, answers, *arguments, **options) -> Digest:
        kept.append(
            {
                index: {name: np.frombuffer(data, dtype=np.int64) for name, data in answer["columns"].items()}
                for index, answer in answers.items()
            }
        )
        return Digest(trial, answers, *arguments, **options)

    monkeypatch.setattr("ipcbench.harness.trial.Digest", digest)
    return kept


@dataclass(frozen=True)
class Shown:
    """A trial's median one-way latency, as shown and as it was; `shown_ns` is None if it is refused."""

    trial: TrialResult
    shown_ns: float | None
    true_ns: float


def shown(run: Run, raw_columns, worker: int, offset_ns: int) -> list[Shown]:
    """Return the latencies of a run with one reader in which a worker's clock had a known offset."""
    results = []
    for trial, columns in zip(run.trials, raw_columns, strict=True):
        sent_ns = columns[WRITER]["intended_ns" if trial.spec.mode == "paced" else "sent_ns"]
        latency_ns = columns[READER]["received_ns"] - sent_ns + (offset_ns if worker == WRITER else -offset_ns)
        (reader,) = trial.readers
        stored_ns = run.samples(trial.trial_id).get("reader-0.latency_ns")
        assert (stored_ns is None) == (reader.latency is None)
        p50_ns = None if reader.latency is None else reader.latency.p50_ns
        counted = counted_in_turns(trial, len(latency_ns))
        results.append(Shown(trial, p50_ns, float(np.median(latency_ns[counted]))))
    return results


@pytest.mark.parametrize(
    ("worker", "offset_ns"),
    one_in(3, [*((READER, offset_ns) for offset_ns in OFFSETS_NS), (WRITER, 20_000), (WRITER, -500_000)]),
)
def test_the_offset_of_a_clock_is_corrected_or_latency_is_refused(
    worker, offset_ns, offset_clock, raw_columns, tmp_path
):
    """Small messages are faster than the error of the clocks, large ones are not."""
    offset_clock(worker, offset_ns)
    run = sound(raw(64, 2**22, backends=("pipe",), readers=1, modes=("paced", "pingpong")), tmp_path)
    results = shown(run, raw_columns, worker, offset_ns)
    assert len(results) == 5, "of a large message there is no window for the tail"
    for result in results:
        conditions = result.trial.conditions
        assert conditions.clock_error_ns > 0
        assert abs(conditions.clock_offset_ns - abs(offset_ns)) <= conditions.clock_error_ns
        notes = " ".join(result.trial.notes)
        if result.shown_ns is None:
            assert not conditions.clocks_agree
            assert "no one-way latency: " in notes
        else:
            assert abs(result.shown_ns - result.true_ns) <= conditions.clock_error_ns + 1
            assert conditions.clock_error_ns <= 0.1 * result.shown_ns
            assert "clocks corrected: one-way times ± " in notes
    assert all(result.trial.writer.round_trip for result in results if result.trial.spec.mode == "pingpong")


def test_a_long_window_is_corrected_from_the_messages_that_it_kept(offset_clock, raw_columns, tmp_path, monkeypatch):
    """The reader's histogram is of times between two clocks, so it is neither used nor stored."""
    monkeypatch.setattr("ipcbench.harness.plan.MAX_COLUMN", 20)
    monkeypatch.setattr("ipcbench.harness.plan._LONG_COLUMN", 15)
    monkeypatch.setattr("ipcbench.harness.clocks.MAX_ERROR_RATIO", 100.0)
    offset_clock(READER, -500_000)
    run = sound(tiny(modes=("paced",), readers=1, rate_per_s=1000.0), tmp_path)
    (result,) = shown(run, raw_columns, READER, -500_000)
    assert abs(result.shown_ns - result.true_ns) <= result.trial.conditions.clock_error_ns + 1
    assert "reader-0.latency_bins" not in run.samples(result.trial.trial_id)


def test_processes_on_one_clock_are_asked_nothing_even_if_the_coordinator_has_another(tmp_path, monkeypatch):
    """As where the writer and the readers run together on another host."""
    monkeypatch.setattr("ipcbench.harness.group.clock_identity", lambda: "another")
    monkeypatch.setattr(Group, "_offset", lambda *_: pytest.fail("there is nothing to ask"))
    run = sound(tiny(modes=("paced", "pingpong")), tmp_path)
    for trial in run.trials:
        assert trial.conditions.clocks_agree
        assert (trial.conditions.clock_error_ns, trial.conditions.clock_offsets_ns) == (0.0, ())
        assert all(reader.latency is not None for reader in trial.readers)


def test_workers_that_cannot_tell_their_clocks_are_asked(tmp_path, monkeypatch):
    ask_all = Group.ask_all

    def ignorant(group: Group, question: dict, timeout_s: float) -> dict:
        answers = ask_all(group, question, timeout_s)
        return {index: {**answer, "clock": ""} if "clock" in answer else answer for index, answer in answers.items()}

    monkeypatch.setattr(Group, "ask_all", ignorant)
    _, trial = single(tiny(modes=("paced",), readers=1), tmp_path)
    assert len(trial.conditions.clock_offsets_ns) == 2
    assert 0 < trial.conditions.clock_offset_ns <= trial.conditions.clock_error_ns


def impossible(reason: str, what: str = "message") -> bool:
    """Return whether a trial failed since something was received before it was sent, by about half a millisecond."""
    pattern = rf"reader-0: {what} \d+ was received [\d.]+ µs before it was sent: the clock of a process is wrong, .*"
    return re.fullmatch(pattern, reason) is not None


@pytest.mark.usefixtures("broken_on_path")
@pytest.mark.parametrize(
    "changes",
    [{}, {"rate_per_s": 1000.0}, {"delivery": "latest_value"}, {"modes": ("pingpong",)}],
    ids=["turns", "one piece", "latest value", "round trips"],
)
def test_a_clock_set_back_in_the_window_fails_the_trial(changes, tmp_path):
    plain = {"backends": ("broken:ClockSetBack",), "modes": ("paced",), "readers": 1, "window_s": 0.3}
    sweep = tiny(**{**plain, **changes})
    trial = failure(sweep, tmp_path)
    assert impossible(trial.reason), trial.reason
    assert trial.endpoints, "the record keeps what was measured"


@pytest.mark.usefixtures("broken_on_path")
def test_a_clock_set_back_in_a_long_window_fails_it_too(tmp_path, monkeypatch):
    monkeypatch.setattr("ipcbench.harness.plan.MAX_COLUMN", 100)
    monkeypatch.setattr("ipcbench.harness.plan._LONG_COLUMN", 90)
    sweep = tiny(backends=("broken:ClockSetBack",), modes=("paced",), readers=1, rate_per_s=2000.0, window_s=0.5)
    trial = failure(sweep, tmp_path)
    assert impossible(trial.reason), trial.reason


@pytest.mark.usefixtures("broken_on_path")
def test_a_clock_set_ahead_shows_in_round_trips(tmp_path):
    """One way, it cannot be told from latency; but then a reply comes before it was sent."""
    sweep = tiny(backends=("broken:ClockSetAhead",), modes=("pingpong",), readers=1, window_s=0.3)
    trial = failure(sweep, tmp_path)
    assert impossible(trial.reason, "its reply to message"), trial.reason
