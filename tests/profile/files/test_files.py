"""The files of a profile and of a sweep: which there are, what they say, and what is listed as missing."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipcbench.cli import main
from ipcbench.cli.profile_sweep import _finish
from ipcbench.errors import ConfigError, StoreError
from ipcbench.profile import files
from ipcbench.profile.files import register_metric, register_plot, write_files
from ipcbench.profile.files.plots import PLOTS
from ipcbench.profile.files.sweeps import grade, sweep_lines, write_report, write_sweep
from ipcbench.profile.files.tables import screen
from ipcbench.profile.files.timeline import perfetto
from ipcbench.profile.records import Profile, Setting, SweepPoint, Unavailable, read_profile, write_profile
from ipcbench.profile.summary import HOST, Summary, summarize
from ipcbench.profile.timing.buckets import register_bucket
from ipcbench.render.figures import new_figure, saved
from ipcbench.stats.estimates import Interval
from tests.profile.built import built, without_times

NAMES = {"profile.json", "detailed_timings.csv", "analysis_report.json", "comm_analysis.json", "comm_records.json",
         "trace.perfetto", "comprehensive_report.json", "README.md", "report.html"}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open() -> None:
    """Draw a text in each font, whose files matplotlib opens for good."""
    pytest.importorskip("matplotlib")
    figure, (axes,) = new_figure("bold")
    axes.set_xlabel("plain")
    saved(figure)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("jinja2")
    path = tmp_path_factory.mktemp("profile") / "out"
    written = write_files(built(slow=(1, 2, 5_000_000)), path)
    assert set(written.names) == {*NAMES, *(f"{name}.png" for name in PLOTS)} == {file.name for file in path.iterdir()}
    assert {missing.what for missing in written.unavailable} == {"GPU memory and kernels", "NVLink topology"}
    return path


def document(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_the_earlier_keys_hold_what_was_recorded(folder: Path) -> None:
    made, report = read_profile(folder), document(folder, "analysis_report.json")
    layer = report["layer_breakdown"]["layers.2"]
    spans = [span.duration_ns / 1e9 for span in made.spans if span.path == "layers.2"]
    assert (layer["count"], layer["total_time"]) == (len(spans), pytest.approx(sum(spans)))
    assert (layer["min_time"], layer["max_time"]) == (min(spans), max(spans))
    shares = sum(each["percentage"] for each in report["operation_breakdown"].values())
    phases = summarize(made).phases
    host, wall = (sum(ns * each.steps_count for each, ns in zip(phases, times, strict=True))
                  for times in ([each.ns(HOST) for each in phases], [each.wall_ns for each in phases]))  # fmt: skip
    sent = report["communication_analysis"]["comm_percentage"]
    assert sent > 10
    assert shares + sent == pytest.approx(100 * (1 - host / wall))  # nothing is counted twice
    took = [call.took_ns for call in made.calls]
    analysis = document(folder, "comm_analysis.json")
    found = analysis["by_operation_type"]["all_reduce"]
    assert (found["count"], found["total_data"]) == (len(took), sum(call.bytes for call in made.calls))
    assert found["total_time"] == pytest.approx(sum(ns for ns in took if ns) / 1e9)
    assert found["wait_ns"] + found["transfer_ns"] == sum(ns for ns in took if ns)
    assert 0 < analysis["summary"]["comm_percentage"] < 100
    assert set(analysis["bandwidth_analysis"]["by_size_range"]) == {"medium_1mb"}
    assert len(document(folder, "comm_records.json")) == len(took)


def test_the_timings_have_a_row_for_each_span_call_and_operator(folder: Path) -> None:
    made = read_profile(folder)
    rows = list(csv.DictReader((folder / "detailed_timings.csv").read_text().splitlines()))
    counts = Counter(row["op_type"] for row in rows if row["source"] != "operators")
    assert counts == {"compute": len(made.spans), "communication": len(made.calls)}
    assert sum(row["source"] == "operators" for row in rows) == len(made.operators)
    roots = sum(int(row["duration_ns"]) for row in rows if row["op_name"] == "root")
    measured = [row for row in rows if row["source"] == "spans"]
    own = sum(int(row["exclusive_ns"]) for row in measured if row["op_type"] == "compute")
    assert roots == own + sum(int(row["duration_ns"]) for row in measured if row["op_type"] == "communication")


def test_the_report_says_the_verdict_first_and_what_is_missing(folder: Path) -> None:
    readme, report = (folder / "README.md").read_text(), document(folder, "comprehensive_report.json")
    assert readme.splitlines()[2].startswith("A decoded token takes ")
    assert "Give rank 1 less to do" in " ".join(report["recommendations"][:2])
    assert {"what": "NVLink topology", "needs": "2 GPUs"} in report["unavailable"]
    page = (folder / "report.html").read_text()
    assert page.index("A decoded token takes") < page.index("Give rank 1 less") < page.index("Layers without")
    for text in (readme, page):
        assert "2 GPUs" in text
        assert "layers.2" in text


def test_calls_alone_show_what_there_is(tmp_path: Path) -> None:
    """Of imported calls there was no figure, but words of spans and modules, and that two ranks were needed."""
    calls = replace(built(repetitions=1), setting=None, steps=(), spans=(), operators=(), memory=(), unavailable=())
    calls = replace(calls, agreement=None, remarks=("These traces are odd.",))
    written = write_files(calls, tmp_path)
    assert "bandwidth_analysis.png" in written.names
    assert not any("two ranks" in each.needs and "steps" not in each.needs for each in written.unavailable)
    readme, shown = (tmp_path / "README.md").read_text().replace("\\", ""), " ".join(screen(summarize(calls)))
    assert "spans around" not in readme
    for text in (readme, " ".join(shown.split())):
        assert "all_reduce" in text
        assert "wait, µs" in text
    for name in ("analysis_report.json", "comm_analysis.json"):
        assert document(tmp_path, name)["remarks"] == ["These traces are odd."]
    (each,) = document(tmp_path, "comm_analysis.json")["by_size"]
    assert each["phase"] is None
    assert sum(op["count"] for op in each["totals"]["ops"]) == len(calls.calls) / 2


def test_pictures_are_the_same_for_the_same_profile(folder: Path) -> None:
    figure = PLOTS["performance_bottlenecks"].draw(summarize(read_profile(folder)), ())
    assert figure is not None
    data = saved(figure)
    assert data.startswith(b"\x89PNG")
    assert data == (folder / "performance_bottlenecks.png").read_bytes()


def test_perfetto_reads_slices_that_nest_and_arrows_that_meet(folder: Path) -> None:
    trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    made = read_profile(folder)
    packets = trace_pb2.Trace.FromString((folder / "trace.perfetto").read_bytes()).packet
    names = [each.track_descriptor.process.process_name for each in packets if each.HasField("track_descriptor")]
    assert [name for name in names if name] == ["rank 0", "rank 1"]
    open_slices: Counter[int] = Counter()
    last: dict[int, int] = {}
    leaving: dict[int, int] = {}
    for each in packets:
        if each.HasField("track_event"):
            event, track = each.track_event, each.track_event.track_uuid
            assert each.timestamp >= last.get(track, 0)
            last[track] = each.timestamp
            open_slices[track] += 1 if event.type == 1 else -1
            assert open_slices[track] >= 0
            leaving |= dict.fromkeys(event.flow_ids, each.timestamp)
    assert not +open_slices
    assert len(leaving) == len(made.calls) / 2
    for each in packets:
        for flow in each.track_event.terminating_flow_ids:
            assert leaving.pop(flow) < each.timestamp
    assert leaving == {}
    assert sum(each.track_event.type == 1 for each in packets) == len(made.steps) + len(made.spans) + 2 * len(
        made.calls
    )


@pytest.fixture
def few_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave only the plots that need two ranks."""
    for name in [*PLOTS]:
        if name not in {"compute_vs_communication", "bandwidth_analysis"}:
            monkeypatch.delitem(PLOTS, name)


@pytest.mark.usefixtures("few_plots")
def test_what_there_is_no_data_for_is_listed_with_what_it_needs(tmp_path: Path) -> None:
    alone = write_files(built(ranks=1, repetitions=1), tmp_path / "alone")
    assert Unavailable("compute_vs_communication.png", "steps with spans of two ranks") in alone.unavailable
    assert not (tmp_path / "alone" / "compute_vs_communication.png").exists()
    plan = write_files(without_times(built(repetitions=1)), tmp_path / "plan")
    assert "compute_vs_communication.png" in {missing.what for missing in plan.unavailable}
    assert document(tmp_path / "plan", "comm_analysis.json")["summary"]["comm_percentage"] is None
    empty = write_files(Profile(Setting(model="x<script>|`")), tmp_path / "empty")
    assert set(empty.names) == NAMES
    assert "<script>|" not in (tmp_path / "empty" / "report.html").read_text()
    assert len(perfetto(Profile(Setting(model="x")))) > 0


@pytest.mark.usefixtures("few_plots")
def test_an_own_metric_and_an_own_plot_are_written(tmp_path: Path) -> None:
    def draw(summary: Summary, points: object) -> Any:
        figure, (axes,) = new_figure("Steps, ms")
        axes.plot([each.wall.value / 1e6 for each in summary.phases])
        return figure

    register_metric("slowest_ms", lambda summary: max(each.wall.value for each in summary.phases) / 1e6)
    register_plot("steps", draw, "steps")
    try:
        written = write_files(built(ranks=1, repetitions=1), tmp_path)
        assert "steps.png" in written.names
        assert document(tmp_path, "analysis_report.json")["metrics"]["slowest_ms"] > 10
        with pytest.raises(ConfigError, match="a name that no metric has"):
            register_metric("slowest_ms", len)
        with pytest.raises(ConfigError, match="a name that no plot has"):
            register_plot("steps", draw, "")
    finally:
        del PLOTS["steps"], files._METRICS["slowest_ms"]


@pytest.mark.parametrize("name", ["", "a\nb", "../evil", "sub/evil", ".hidden", "é", "a" * 101])
def test_a_name_that_not_every_file_and_table_can_hold_says_which_may(name: str) -> None:
    for register in (
        lambda: register_metric(name, len), lambda: register_plot(name, lambda *_: None, ""),
        lambda: register_bucket(name, lambda _: True),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="A-Z"):
            register()


@pytest.mark.usefixtures("few_plots")
def test_an_own_function_that_fails_is_named_and_all_other_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profile(tmp_path / "out", built(ranks=1, repetitions=1))
    (tmp_path / "own_fails.py").write_text("""from ipcbench.errors import ConfigError
from ipcbench.profile.files import register_metric, register_plot
def fail(*_): raise ValueError("two\\nlines")
def leave(_): raise SystemExit(3)
def refuse(_): raise ConfigError("a", 1, ["b", "c"])
register_metric("raises", fail)
register_metric("leaves", leave)
register_metric("no argument", lambda: 1)
register_metric("no function", 3)
register_metric("object", lambda _: object())
register_metric("refuses", refuse)
register_metric("good", lambda _: 5)
register_plot("fails", fail, needs="")
register_plot("text", lambda *_: "text", needs="")
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(files, "_METRICS", {})
    monkeypatch.setattr(files, "PLOTS", before := {**PLOTS})
    assert main(["profile", "report", str(tmp_path / "out"), "--import", "own_fails", "--format", "json"]) == 1
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if "error" in line]
    places = {"raises": 3, "leaves": 4, "no argument": 8, "no function": 9, "object": 10, "refuses": 5, "fails": 3,
              "text": 14}  # fmt: skip
    for line, (name, number) in zip(errors, places.items(), strict=True):
        assert f" {name!r}: needs a function that does not fail (" in line
        assert line.endswith(f", own_fails.py:{number})")
    assert "ValueError: two lines" in errors[0]
    assert json.loads(said.out)["metrics"] == {"good": 5}
    assert before.keys() > {file.stem for file in (tmp_path / "out").glob("*.png")}
    assert {file.name for file in (tmp_path / "out").iterdir()} >= NAMES
    assert "ValueError: two lines" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("text", "words"), [("raise OSError('no')", "OSError: no, own_bad.py:1"), ("def (", "own_bad.py, line 1))")]
)
def test_a_module_that_cannot_be_imported_is_one_line(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_bad.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["profile", "run", "--import", "own_bad", "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def points() -> list[SweepPoint]:
    def near(value: float) -> Interval:
        return Interval(0.98 * value, value, 1.02 * value)

    found = []
    for seq in (128, 256):
        for parallel, ns in (("none", 4e6), ("tp2", 3e6)):
            values = {"parallel": parallel, "transport": "shm", "seq": seq, "batch": 1, "tokens": 50}
            figures = {"ttft_ns": near(seq * ns / 50), "time_per_token_ns": near(ns), "tokens_per_s": near(1e9 / ns)}
            found.append(SweepPoint("seq", values, figures, rounds_count=5))
    far: dict[str, str | int] = {"parallel": "pp2", "transport": "shm", "seq": 8192, "batch": 8, "tokens": 200}
    found.append(SweepPoint("seq", far, status="not measured", reason="does not fit the budget of 60 s"))
    for parallel, efficiency in (("tp2", 0.77), ("pp2", 0.5), ("tp4", 0.2)):
        figures = {"speedup_ratio": near(2 * efficiency), "efficiency_ratio": near(efficiency)}
        found.append(SweepPoint("parallel", {"parallel": parallel, "transport": "gloo"}, figures, rounds_count=5))
    for size in (1 << 20, 1 << 24):
        moved: dict[str, str | int] = {"what": "send", "transport": "shm", "direction": "one way", "bytes": size}
        found.append(SweepPoint("bandwidth", moved, {"bytes_per_s": near(4e9), "time_ns": near(size / 4)}))
    return found


def test_a_sweep_is_saved_and_reported(tmp_path: Path) -> None:
    for count in range(1, len(points()) + 1):
        write_sweep(points()[:count], tmp_path / "sweep", "20260102-030405")
        assert len(document(tmp_path / "sweep", "latency_analysis_20260102-030405.json")["cases"]) == min(count, 5)
    cases = document(tmp_path / "sweep", "parallelism_overhead_20260102-030405.json")["cases"]
    assert [(case["speedup"], case["grade"]) for case in cases] == [(1.54, "good"), (1.0, "fair"), (0.4, "poor")]
    (case, *_) = document(tmp_path / "sweep", "bandwidth_test_20260102-030405.json")["cases"]
    assert case["bandwidth_gbps"] == 4.0
    names = write_report(tmp_path / "sweep")
    plots = {"plots/latency_analysis.png", "plots/parallelism_analysis.png", "plots/bandwidth_analysis.png"}
    assert set(names) == {*plots, "performance_report.md"}
    report = (tmp_path / "sweep" / "performance_report.md").read_text()
    assert "does not fit the budget of 60 s" in report
    assert "![plots/latency_analysis.png](plots/latency_analysis.png)" in report
    lines = sweep_lines(points())
    assert max(map(len, lines)) <= 110
    assert any(line.startswith("not measured: does not fit the budget of 60 s: ") for line in lines)


def test_bandwidth_says_what_is_a_sum_and_has_its_intervals_in_the_report(tmp_path: Path) -> None:
    found, rate = [], Interval(2.9e9, 3e9, 3.1e9)
    for what, names in (("memcpy", ("bytes_per_s",)), ("send", ("bytes_per_s",)), ("all_reduce", ("bus_bytes_per_s",))):
        values = {"what": what, "transport": "shm", "direction": "one way" if what == "memcpy" else "both ways"}
        found.append(SweepPoint("bandwidth", {**values, "bytes": 2**20}, dict.fromkeys(names, rate), rounds_count=5))
    write_sweep(found, tmp_path, "1")
    write_report(tmp_path)
    report = (tmp_path / "performance_report.md").read_text()
    assert "### Bandwidth, GB/s (collective operations: bus bandwidth)" in report
    for name in ("memcpy shm", "send shm both ways (sum)", r"all\_reduce shm"):
        assert f"| {name} | 3.00 \\[2.90, 3.10\\] |" in report
    assert "2.90" not in "\n".join(sweep_lines(found))


def test_a_report_is_of_all_sweeps_in_the_folder_and_says_what_was_measured(tmp_path: Path) -> None:
    facts = {"started_unix_s": 1e9, "setting": {"model": "qwen3-tiny", "dtype": "float32"},
             "machine": {"cpu_model": "a *processor*", "kernel": None}, "versions": {"ipcbench": "1.2"}}  # fmt: skip
    few = replace(points()[0], rounds_count=1)
    for stamp, cases, about in (("1", [few], facts), ("2", points(), facts), ("3", points()[:1], None)):
        write_sweep(cases, tmp_path, stamp, about)
        names = write_report(tmp_path)
    assert {f"plots/latency_analysis{suffix}.png" for suffix in ("", "_2", "_3")} <= {*names}
    report = (tmp_path / "performance_report.md").read_text()
    assert {name for name in names[:-1] if f"![{name}]({name})" in report and (tmp_path / name).exists()} == {
        *names[:-1]
    }
    assert report.count("## latency_analysis_") == 3
    assert "model qwen3-tiny, dtype float32" in report
    assert "2001-09-09 01:46 UTC" in report
    assert r"cpu\_model a \*processor\*" in report
    assert "Latency by length: prompt 128, batch 1, output 50" in report
    (tmp_path / "latency_analysis_4.json").write_text('{"cases": [{"figures": 1}]}')
    with pytest.raises(StoreError, match=r"latency_analysis_4\.json: no sweep"):
        write_report(tmp_path)


def test_the_table_and_the_report_of_a_sweep_come_before_its_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plots").write_text("in the way")
    write_sweep(points(), tmp_path, "1")
    with pytest.raises(StoreError, match="plots"):
        _finish(points(), tmp_path)
    assert "does not fit the budget of 60 s" in capsys.readouterr().out
    assert "does not fit the budget of 60 s" in (tmp_path / "performance_report.md").read_text()


def test_a_grade_whose_interval_reaches_across_a_limit_is_two() -> None:
    def graded(low: float, high: float, parallel: str = "tp2", rounds: int = 3) -> str | None:
        figures = {"efficiency_ratio": Interval(low, low, high)}
        return grade(SweepPoint("parallel", {"parallel": parallel}, figures, rounds_count=rounds))

    assert (graded(0.7, 0.8), graded(0.4, 0.9), graded(0.61, 0.7, "pp2")) == ("fair to good", "poor to good", "good")
    assert graded(0.5, 0.6, "none") is None
    assert graded(0.9, 0.9, rounds=2) is None
