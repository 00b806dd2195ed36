"""`ipcbench profile`: what it prints, writes and refuses. Those that run a model need torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.cli import main
from ipcbench.profile import run
from ipcbench.profile.files import sweeps
from ipcbench.profile.files.sweeps import sweep_lines, write_sweep
from ipcbench.profile.records import Setting, SweepPoint, read_profile, write_profile
from ipcbench.profile.sweep.cases import Budget, figure, measure
from ipcbench.profile.sweep.models import _compared, _of_output, _Turns, sweep_parallel
from tests.profile.built import built

EXAMPLE = Path(__file__).parents[3] / "examples" / "profile_own"
SHORT = ("--steps", "1", "--warmup", "0", "--no-progress")


def test_a_plan_is_made_replayed_and_exported_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    plan = str(tmp_path / "plan")
    assert main(["profile", "synth", "--parallel", "tp2", "--seq", "16", "--tokens", "1", "--out", plan]) == 0
    assert len(read_profile(tmp_path / "plan").calls) == 2 * 2 * 2 * 4  # ranks, steps, calls a layer, layers
    assert main(["profile", "replay", plan, "--transports", "shm", "--rounds", "1", "-q"]) == 0
    assert "Too few rounds" in capsys.readouterr().out
    traces = tmp_path / "chakra"
    assert main(["profile", "export", plan, "--format", "chakra", "--out", str(traces)]) == 0
    back = str(tmp_path / "back")
    assert main(["profile", "import", str(traces), "--format", "chakra", "--out", back]) == 0
    sizes = [[(call.rank, call.op, call.bytes) for call in read_profile(Path(path)).calls] for path in (plan, back)]
    assert sorted(sizes[0]) == sorted(sizes[1])


def test_without_torch_a_run_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    assert main(["profile", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'ipcbench[profile]'" in line


def test_an_export_has_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_profile(tmp_path, built())
    assert main(["profile", "export", str(tmp_path), "--format", "chrome", "--out", ""]) == 2
    assert "--out: '' is not valid" in capsys.readouterr().err


def test_a_plan_of_more_calls_than_memory_holds_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--model", "qwen3-tiny", "--parallel", "tp2", "--tokens", "1000000", "--out", str(tmp_path / "plan"))
    assert main(["profile", "synth", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "at most 2,000,000 in all: fewer tokens" in line
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--parallel", "tp3"), "tp3"),
        (("--parallel", "tp2", "--transport", "null"), "a transport between processes"),
        (("--parallel", "tp2", "--transport", "smh"), "shm"),
        (("--transport", "shm"), "--parallel none"),
        (("--phase", "predecode"), "prefill"),
        (("--seq", "0"), "--seq"),
        (("--model", "qwen3-tny"), "qwen3-tiny"),
        (("--parallel", "tp2", "--batch", "2", "--micro-batches", "2"), "1 without a pipeline"),
        (("--model", "own:model", "--fused"), "without --parallel, --phase decode alone, --fused"),
        (("--model", "own:model", "--attn", "eager"), "--fused and --attn"),
    ],
)
def test_bad_input_gets_one_line(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "require_torch", lambda: None)
    assert main(["profile", "run", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize("command", [("replay", "none"), ("sweep", "parallel")])
@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_at_least_one_round_is_asked_for(
    command: tuple[str, ...], rounds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *command, "--rounds", rounds]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--rounds: {rounds} is not valid" in line


def test_what_has_no_size_is_named_without_one() -> None:
    values = {"what": "peer to peer", "transport": "cuda"}
    lines = sweep_lines([SweepPoint("bandwidth", values, status="unavailable", reason="2 GPUs")])
    assert "unavailable: 2 GPUs: cuda: peer to peer." in "\n".join(lines)


@pytest.mark.parametrize("command", [("run",), ("sweep", "bandwidth")])
@pytest.mark.parametrize(("place", "words"), [
    ("mine", "something else"), ("mine/file", "Not a directory"), ("mine/file/below", "Not a directory"),
    ("/proc/none", "/proc/none"), ("", "--out: '' is not valid"),
])  # fmt: skip
def test_a_folder_that_cannot_be_written_is_refused_at_once(
    command: tuple[str, ...], place: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    assert main(["profile", *command, "--out", str(tmp_path / place) if place else ""]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


def test_a_bandwidth_sweep_measures_what_fits_and_names_the_rest(tmp_path: Path) -> None:
    options = ["--sizes", "64KiB", "--transport", "shm,mpi", "--out", str(tmp_path), "-q"]
    _ipcbench(["profile", "sweep", "bandwidth", *options], cwd=tmp_path)
    (file,) = tmp_path.glob("bandwidth_test_*.json")
    stored = json.loads(file.read_text())
    assert {"ipcbench", "numpy"} <= {*stored["versions"]}
    assert stored["machine"]["usable_cores"] > 0
    cases = stored["cases"]
    over_shm = [case for case in cases if case["values"].get("transport") == "shm"]
    assert {case["values"]["what"] for case in over_shm} == {
        "send", "all_reduce", "all_gather", "reduce_scatter", "broadcast"
    }  # fmt: skip
    assert all(case["figures"]["bytes_per_s"]["estimate"] > 0 for case in over_shm)
    assert {case["status"] for case in cases if case["values"]["transport"] == "cuda"} <= {"measured", "unavailable"}


def test_a_case_that_does_not_fit_the_budget_is_named() -> None:
    point, budget = SweepPoint("seq", {"seq": 1}), Budget(1.0)
    budget.spent("none", 1.0, 0.4)
    assert measure(point, "none", 2.0, budget, lambda: {"a": [1.0, 2.0]}).rounds_count == 2
    budget.spent("none", 1.0, 0.6)
    found = measure(point, "none", 2.0, budget, lambda: pytest.fail("it does not fit"))
    assert (found.status, "--full" in found.reason) == ("not measured", True)
    spent = measure(point, "tp2", 1.0, Budget(0.0), lambda: pytest.fail("there is no time"))
    assert spent.reason.startswith("not estimated: the budget was spent")


def test_too_few_rounds_compare_nothing_and_cases_left_out_are_named(tmp_path: Path) -> None:
    values = {"parallel": "tp2", "transport": "shm", "batch": 1, "tokens": 8, "rounds_asked": 3}
    few = SweepPoint("parallel", {**values, "seq": 128}, {"communication_ratio": figure([0.4])}, rounds_count=1)
    left = [replace(few, status="not measured", reason=f"no time (about {seq} s)", figures={}, rounds_count=0,
                    values={**values, "seq": seq}) for seq in (256, 512)]  # fmt: skip
    said = " ".join("\n".join(sweep_lines([few, *left])).split())
    assert "1 of 3" in said
    assert "no time: tp2 over shm: prompt 256, 512: batch 1: output 8." in said
    write_sweep([few], tmp_path, "now")
    (case,) = json.loads((tmp_path / "parallelism_overhead_now.json").read_text())["cases"]
    assert case["figures"]["communication_ratio"] == {"low": None, "estimate": 0.4, "high": None}
    for name in ("speedup_ratio", "efficiency_all_threads_ratio"):
        assert case["figures"][name] == {"low": None, "estimate": None, "high": None}
    assert (case["speedup"], case["efficiency"]) == (None, None)
    enough = replace(few, figures={**few.figures, "efficiency_ratio": figure([1.2])}, rounds_count=3)
    assert "Efficiency above 100 % (tp2 over shm): the one process was slower" in " ".join(sweep_lines([enough]))
    assert (drawn := sweeps._parallelism([few, enough])) is not None
    assert [bar.get_fill() for bar in drawn.axes[0].patches] == [True]
    assert [bar.get_fill() for bar in drawn.axes[1].patches] == [False, True]


def test_in_the_midst_of_a_round_cases_are_compared_by_rounds_that_both_have() -> None:
    alone, divided = (Setting(model="qwen3-tiny", parallel=parallel) for parallel in ("none", "tp2"))
    cases = {alone: _Turns({"whole_ns": [2e9] * 2}), divided: _Turns()}
    waiting = _compared(divided, cases, [alone], 4)
    assert (waiting.status, waiting.reason) == ("not measured", "its turn had not come")
    for turns, rounds, known in ((3, 2, False), (3, 3, True), (4, 3, True)):
        cases = {alone: _Turns({"whole_ns": [2e9] * rounds}), divided: _Turns({"whole_ns": [1e9] * turns})}
        found = _compared(divided, cases, [alone], 4)
        assert (found.rounds_count, "speedup_ratio" in found.figures) == (turns, known)


def test_the_name_of_a_case_is_whole() -> None:
    values: dict[str, str | int] = {"seq": 8, "batch": 1, "tokens": 8}
    divided = {"parallel": "tp2pp2", "transport": "zmq-tcp-insecure", "threads": 2, **values}
    moved = {"what": "reduce_scatter", "transport": "zmq-tcp-insecure", "direction": "both ways", "bytes": 2**20}
    points = [SweepPoint("parallel", divided, {"ttft_ns": figure([1e6])}, rounds_count=1),
              SweepPoint("bandwidth", moved, {"bytes_per_s": figure([1e9])}, rounds_count=1)]  # fmt: skip
    said = "\n".join(sweep_lines(points))
    assert "tp2pp2 over zmq-tcp-insecure, 2 threads" in said
    assert "reduce_scatter zmq-tcp-insecure both ways" in said


@pytest.mark.parametrize("rounds", [2, 4])
def test_tokens_per_second_follow_from_the_time_per_token(rounds: int) -> None:
    setting = Setting(model="qwen3-tiny", batch=2)
    taken = {"whole_ns": [9e7, 2e8, 9e7, 2e8][:rounds], "time_per_token_ns": [1e7, 2e7, 1e7, 3e7][:rounds]}
    case = _compared(setting, {setting: _Turns(taken)}, [setting], rounds)
    point = SweepPoint("seq", {"batch": 2}, {"time_per_token_ns@8": figure(taken["time_per_token_ns"])})
    for each in (case.figures, _of_output(point, 8).figures):
        assert each["tokens_per_s"].estimate == pytest.approx(2e9 / each["time_per_token_ns"].estimate)
        assert each["tokens_per_s"].low == pytest.approx(2e9 / each["time_per_token_ns"].high)


def test_a_figure_of_few_rounds_has_no_interval() -> None:
    assert figure([1.0, 3.0]).low == figure([1.0, 3.0]).high == 2.0
    assert figure([1.0, 2.0, 3.0]).low < 2.0


def test_the_example_adds_a_bucket_a_metric_and_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    command = ["profile", "run", "--model", "own:model", "--import", "own", *SHORT]
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    _ipcbench([*command, "--out", str(tmp_path / "out")], cwd=EXAMPLE)
    assert list((tmp_path / "t").iterdir()) == []
    tmp_path /= "out"
    assert json.loads((tmp_path / "analysis_report.json").read_text())["metrics"]["forward_ms"]["prefill"] > 0
    assert (tmp_path / "every_step.png").stat().st_size > 0
    assert "gelu" in {operator.bucket for operator in read_profile(tmp_path).operators}


def _ipcbench(arguments: list[str], cwd: Path) -> None:
    subprocess.run([sys.executable, "-m", "ipcbench", *arguments], cwd=cwd, check=True, timeout=200)


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    ranks = ["--nproc-per-node=2", "--standalone", f"--log-dir={tmp_path / 'logs'}"]
    command = [sys.executable, "-m", "torch.distributed.run", *ranks, "-m", "ipcbench"]
    options = ["--parallel", "tp2", "--seq", "16", "--tokens", "1", "--detail", "block", *SHORT]
    out, temporary = tmp_path / "out", tmp_path / "t"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    subprocess.run([*command, "profile", "run", *options, "--out", str(out)], check=True, timeout=250, env=environment)
    assert list(temporary.iterdir()) == []
    made = read_profile(out)
    assert made.ranks == (0, 1)
    assert made.agreement is not None
    assert made.agreement.holds


def test_sweeps_of_models_have_a_case_for_every_setting(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    seq = ["--seq", "8,16", "--batch", "1", "--tokens", "1,2", "--parallel", "none,tp2", "--full"]
    _ipcbench(["profile", "sweep", "seq", *seq, *SHORT, "--out", str(tmp_path)], cwd=tmp_path)
    parallel = ["--seq", "8", "--tokens", "1", "--parallel", "tp2", "--transport", "shm", "--rounds", "3"]
    _ipcbench(["profile", "sweep", "parallel", *parallel, *SHORT, "--out", str(tmp_path)], cwd=tmp_path)
    cases = [
        case
        for name in ("latency_analysis", "parallelism_overhead")
        for file in tmp_path.glob(f"{name}_*.json")
        for case in json.loads(file.read_text())["cases"]
    ]
    for file in tmp_path.glob("*.json"):
        assert json.loads(file.read_text())["setting"]["model"] == "qwen3-tiny"
        assert file.name in (tmp_path / "performance_report.md").read_text()
    assert {case["status"] for case in cases} == {"measured"}
    ways = {(case["values"]["parallel"], case["values"]["transport"]) for case in cases}
    assert ways == {("none", "none"), ("tp2", "shm")}
    assert len(cases) == 2 * 2 * 2 + 2 + (os.cpu_count() != 1)
    (divided,) = (case for case in cases if case.get("speedup"))
    gain, efficiency = (divided["figures"][name]["estimate"] for name in ("speedup_ratio", "efficiency_ratio"))
    assert efficiency == pytest.approx(gain / 2)


def test_a_sweep_of_divisions_gives_its_cases_after_each_turn() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    base = Setting(model="qwen3-tiny", seq=8, tokens=1, steps=1, warmup=0)
    given: list[list[str]] = []
    found = sweep_parallel(base, ["tp2"], ["shm"], 1, done=lambda points: given.append([p.status for p in points]))
    assert [each.count("measured") for each in given] == [*range(1, len(found) + 1)]
    assert {status for each in given for status in each} == {"measured", "not measured"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seq", -5),
        ("--seq", 0),
        ("--seq", 10**13),
        ("--batch", 0),
        ("--tokens", -3),
        ("--tokens", 10**9),
        ("--steps", 0),
    ],
)
def test_a_plan_of_impossible_numbers_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, value: int
) -> None:
    options = ("--parallel", "tp2", option, str(value), "--out", str(tmp_path / "plan"))
    assert main(["profile", "synth", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert option in line
    assert not (tmp_path / "plan").exists()
