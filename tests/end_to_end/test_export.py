"""`ipcbench export` on a run that was really measured, and the tools that read what it writes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.results.store import load_run
from tests.end_to_end.shell import Shell
from tests.unit.builders import Cell, make_run, sweep_of
from tests.unit.test_exporters import GITHUB_SCHEMA
from tests.unit.test_exporters_chrome import TRACE_SCHEMA, check_trace
from tests.unit.test_exporters_hlog import read_log


def exported(shell: Shell, run: Path, form: str) -> str:
    """Export to stdout, require that nothing is missing, and return the text."""
    done = shell("export", str(run), "--to", form)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def pyperf(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pyperf", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pyperf_reads_what_was_measured(shell: Shell, finished_run: Path) -> None:
    (shell.folder / "run.json").write_text(exported(shell, finished_run, "pyperf"), encoding="utf-8")
    stats = pyperf(shell.folder, "stats", "run.json")
    for backend in ("shm", "zmq"):
        for metric in ("one-way-p50", "message-time"):
            assert f"{backend}/dict-10-521B/r1/{metric}\n" in stats


def test_pyperf_compares_two_runs(shell: Shell) -> None:
    """Rounds that differ by 2 %: twice as slow is significant, half a percent is not."""
    rounds = (1.0, 1.02, 0.98)
    for name, factor in (("a", 1.0), ("same", 1.005), ("slow", 2.0)):
        cell = Cell(10_000.0 * factor, 1e5 / factor, spread=0.01, factors=rounds)
        run = make_run(shell.folder / name, {("shm", 10): cell}, sweep_of(backends=("shm",), sizes=(10,)))
        (shell.folder / f"{name}.json").write_text(exported(shell, run.path, "pyperf"), encoding="utf-8")
    slow = pyperf(shell.folder, "compare_to", "a.json", "slow.json")
    assert re.findall(r"[\d.]+x slower", slow)[:2] == ["2.00x slower"] * 2
    same = pyperf(shell.folder, "compare_to", "a.json", "same.json")
    assert "Benchmark hidden because not significant (3)" in same
    assert "ERROR" not in slow + same


@pytest.mark.parametrize(("form", "unit"), [("github-latency", "us"), ("github-throughput", "messages/s")])
def test_github_action_benchmark(shell: Shell, finished_run: Path, form: str, unit: str) -> None:
    points = json.loads(exported(shell, finished_run, form))
    jsonschema.validate(points, GITHUB_SCHEMA)
    assert {(point["name"].partition("/")[0], point["unit"]) for point in points} == {("shm", unit), ("zmq", unit)}


def test_hdrhistogram_reads_every_series_of_every_trial(shell: Shell, finished_run: Path) -> None:
    assert shell("export", str(finished_run), "--to", "hlog", "--out", "run.hlog").returncode == 0
    histograms = read_log(shell.folder / "run.hlog")
    medians = {histogram.tag: histogram.get_value_at_percentile(50) for histogram in histograms}
    series = {
        "writer.delay", "writer.write", "reader-0.response", "reader-0.service",
        "writer.saturated-write", "reader-0.saturated-read",
    }  # fmt: skip
    series |= {f"tail.{name}" for name in series if "saturated" not in name}
    assert medians.keys() == {f"{backend}.dict-10-521B.r1.{name}" for backend in ("shm", "zmq") for name in series}
    run = load_run(finished_run)
    for trial in run.trials:
        if trial.spec.mode == "paced":
            latencies = sorted(run.samples(trial.trial_id)["reader-0.latency_ns"].tolist())
            exact = latencies[-(-len(latencies) // 2) - 1]
            kind = "tail." * trial.spec.tail
            found = medians[f"{trial.spec.backend}.dict-10-521B.r1.{kind}reader-0.response"]
            assert found == pytest.approx(exact, rel=0.01)


def test_osu_text(shell: Shell, finished_run: Path) -> None:
    text = exported(shell, finished_run, "osu")
    assert text.count("Latency (us)") == text.count("Bandwidth (MB/s)") == 2
    assert sum(line.startswith("521 ") for line in text.splitlines()) == 4


def test_a_trace_of_real_traffic_nests_and_its_arrows_bind(shell: Shell, finished_run: Path) -> None:
    document = json.loads(exported(shell, finished_run, "perfetto"))
    jsonschema.validate(document, TRACE_SCHEMA)
    check_trace(document["traceEvents"])


def test_a_file_is_replaced_as_a_whole_and_the_latest_run_is_found(shell: Shell, finished_run: Path) -> None:
    shutil.copytree(finished_run, shell.folder / "results" / "20260102T030405Z-0a1b2c")
    (shell.folder / "out.txt").write_text("something longer than nothing\n" * 1000, encoding="utf-8")
    done = shell("export", "--to", "osu", "--out", "out.txt")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (shell.folder / "out.txt").read_text(encoding="utf-8") == exported(shell, finished_run, "osu")
    assert sorted(path.name for path in shell.folder.iterdir()) == ["out.txt", "results"]


def test_what_failed_is_named_on_stderr_and_not_written(
    shell: Shell, finished_run: Path, refused: Callable[..., str]
) -> None:
    shutil.copytree(finished_run, shell.folder / "run")
    fail_trials(shell.folder / "run", "zmq", "reader-0 ended with exit code 1")
    for form in EXPORTERS:
        done = shell("export", "run", "--to", form)
        assert done.returncode == 0, done.stderr
        assert "shm" in done.stdout
        assert not re.search(r"\bzmq[/.,:]", done.stdout)
        for words in ("left out: trial", "(zmq, dict of 10 entries", "failed: reader-0 ended with exit code 1"):
            assert words in done.stderr
    fail_trials(shell.folder / "run", "", "writer ended with exit code 1")
    line = refused("export", "run", "--to", "pyperf", "--out", "never.json")
    assert "run: holds no trial for pyperf" in line
    assert "writer ended with exit code 1" in line


def fail_trials(run: Path, backend: str, reason: str) -> None:
    """Let the trials of that backend have failed, or all."""
    trials = [json.loads(line) for line in (run / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    for trial in trials:
        if backend in trial["spec"]["backend"]:
            trial.update(status="failed", reason=reason)
    (run / "trials.jsonl").write_text("".join(json.dumps(trial) + "\n" for trial in trials), encoding="utf-8")


def test_help_lists_the_formats(shell: Shell) -> None:
    shown = shell("export", "--help").stdout
    assert all(f"  {name} " in shown for name in EXPORTERS)
