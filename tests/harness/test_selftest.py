"""The self-test on real processes, in a few seconds instead of a minute a run."""

from __future__ import annotations

from dataclasses import replace

from ipcbench.selftest import METRICS, SLOWDOWNS_PERCENT, self_test, sweep_for


def test_it_gives_verdicts_on_every_slow_down(tmp_path, monkeypatch):
    def short(*arguments):
        return replace(sweep_for(*arguments), sizes=(64,), window_s=0.03, warmup_s=0.01)

    monkeypatch.setattr("ipcbench.selftest.sweep_for", short)
    result = self_test("pipe", 1, 1, keep=tmp_path)
    assert (result.backend, result.rounds) == ("pipe", 1)
    assert result.noise_ratio >= 0.0
    assert [(counts.metric, counts.percent) for counts in result.counts] == [
        (metric, percent) for metric in METRICS for percent in (0, *SLOWDOWNS_PERCENT)
    ]
    assert all(counts.verdicts_count == 1 for counts in result.counts)
    assert len(list(tmp_path.iterdir())) == 1
