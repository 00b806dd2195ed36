"""The self-test on real processes, in a few seconds instead of a minute a run."""

from __future__ import annotations

import os
from dataclasses import replace

from ipcbench.cli import main
from ipcbench.processes.cleanup import survey
from ipcbench.selftest import METRICS, SLOWDOWNS_PERCENT, SelfTest, VerdictCounts, self_test, sweep_for
from ipcbench.util.files import temporary_folder


def test_it_gives_verdicts_on_every_slow_down(tmp_path, monkeypatch):
    def short(*arguments):
        return replace(sweep_for(*arguments), sizes=(64,), window_s=0.2, warmup_s=0.01)

    monkeypatch.setattr("ipcbench.selftest.sweep_for", short)
    results = self_test("pipe", 1, 1, keep=tmp_path)
    result = next(results)
    (folder,) = temporary_folder().glob(f"ipcb-selftest-{os.getpid()}-*")
    os.utime(folder, (0, 0))
    assert [found.kept_because for found in survey() if found.path == folder] == ["a process has it open"]
    assert list(results) == []
    assert not folder.exists()
    assert (result.backend, result.rounds) == ("pipe", 1)
    assert result.noise_ratio is None  # after one round
    assert [(counts.metric, counts.percent) for counts in result.counts] == [
        (metric, percent) for metric in METRICS for percent in (0, *SLOWDOWNS_PERCENT)
    ]
    assert all(counts.verdicts_count == 1 for counts in result.counts)
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupt_shows_the_finished_runs(monkeypatch, capsys):
    counted = VerdictCounts("latency", 3, percent=0, verdicts_count=5, slower_count=0, faster_count=0)

    def interrupted(*_arguments, **_options):
        yield SelfTest("shm", 3, 0.02, (counted,))
        raise KeyboardInterrupt

    monkeypatch.setattr("ipcbench.selftest.self_test", interrupted)
    assert main(["selftest", "--pairs", "10", "--rounds", "3"]) == 130
    shown = capsys.readouterr()
    assert "none (A/A)" in shown.out
    assert "interrupted; these are the verdicts of the finished runs" in shown.err
