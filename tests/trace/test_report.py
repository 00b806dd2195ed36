"""Reports on logs and traces: nothing is lost, nothing is invented, nothing ends in a traceback."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ipcbench import trace
from ipcbench.cli import main
from ipcbench.trace.format import HEADER_BYTES
from ipcbench.trace.record import files
from ipcbench.trace.report.gather import gather
from ipcbench.trace.report.render import Report, as_csv, as_json, as_markdown, as_text, make_report
from tests.trace.logs import V1, V3, a_straggler, head, open_calls, row, rows, v1_row
from tests.trace.made import both_sides, record, rpc


def report(path: Path, text: str, rules: str = "default") -> Report:
    path.write_text(text)
    return make_report(gather([path]), rules)


def test_the_audit_says_what_does_not_agree(tmp_path: Path) -> None:
    text = head(V1) + v1_row(1) + row(2, "Odd", 1, 2, 6, 1, 5, 1, 1, 99) + row(3, "Bad", -1, 2, 6, 1, 10, 0, 0, 0)
    text += "=" * 120 + "\nSUMMARY\n" + "=" * 120 + "\nTotal RPC Calls: 98\nAverage Send Time: 7.000 ms\n"
    text += "Effective Time (excl. offline & comm): -0.6291 s\n"
    made = report(tmp_path / "x.log", text)
    objections = {(objection.kind, objection.said): objection.found for objection in made.objections}
    assert objections["negative claim", -0.6291] is None
    assert {("negative", 1), ("impossible", 1)} < objections.keys()
    assert {said: found for (kind, said), found in objections.items() if kind == "claim"} == {98.0: 3, 7.0: 2.0}
    assert "R15 1 printed throughputs differ" in as_text(made)


def test_only_messages_of_no_bytes_have_size_0(tmp_path: Path) -> None:
    record(tmp_path, 1, sent=2**22 + 64, recv=72)
    text = as_text(make_report(gather([tmp_path])))
    assert ["4,096.1", "0.070"] in [line.split()[-2:] for line in text.splitlines()]


def rules_of(made: Report) -> set[str]:
    return {finding.rule for finding in made.findings}


def test_waiting_is_not_called_transport(tmp_path: Path) -> None:
    """Of a call that a server works on for 5 ms, transport has 2 %; the older rule says all of it."""
    text = head(V1) + rows(range(1, 60), "Small", 0.001, 0.006, 5.104, 0.003, 5.114, 1, 1, 0.38)
    assert {"R2b", "R3"} & rules_of(report(tmp_path / "x.log", text)) == {"R2b"}
    assert "S2" in rules_of(report(tmp_path / "x.log", text, "seed"))
    text = head(V3) + rows(range(1, 60), "Small", 0.001, 0.006, 5.104, 0.003, 5.1, 5.005, 5.114, 1, 1)
    made = report(tmp_path / "x.log", text)
    assert next(finding for finding in made.findings if finding.rule == "R2").values["transit_share"] <= 0.03
    assert "R3" not in rules_of(made)


def test_rules(tmp_path: Path) -> None:
    def zmq(*values: float, transport: str = "IPC", count: int = 200) -> set[str]:
        return rules_of(report(tmp_path / "x.log", head(V1, transport) + rows(range(1, count + 1), "M", *values)))

    assert "R1" in zmq(40, 1, 50, 5, 96, 1024, 1024, 20)
    assert "R1" not in zmq(40, 1, 50, 5, 96, 1024 * 200, 1024, 2000)
    assert "R4" in zmq(1, 1, 50, 5, 57, 1, 1, 0.03, transport="TCP")
    assert "R5" in zmq(0.01, 0.01, 0.05, 0.01, 0.08, 0.1, 0.1, 2.4)
    assert "R8" in zmq(1, 1, 50, 5, 57, 2048, 10, 35)
    assert "R10" in zmq(1, 1, 50, 5, 80, 1, 1, 0.02)
    assert zmq(1, 1, 50, 5, 80, 1, 1, 0.02, count=19) == set()
    warming = head(V1) + rows(range(1, 4), "M", 1, 1, 1, 1, 4000, 1, 1, 0.5)
    warming += rows(range(4, 201), "M", 1, 1, 1, 1, 4, 1, 1, 0.5)
    findings = {finding.rule: finding for finding in report(tmp_path / "x.log", warming).findings}
    assert findings["R6"].values["cause"] == "warm-up"
    assert rules_of(report(tmp_path / "x.log", "".join(open_calls()))) == {"R9", "R12"}
    findings = {finding.rule: finding for finding in report(tmp_path / "x.log", "".join(a_straggler())).findings}
    assert findings["R13"].values["worker"] == "W pid=3"


@pytest.fixture
def traced_folder(tmp_path: Path) -> Path:
    record(tmp_path / "trace", 4000, 4, ("m0", "m1", "m2", "m3"))
    return tmp_path / "trace"


def test_own_traces_count_every_call(traced_folder: Path) -> None:
    made = make_report(gather([traced_folder]))
    group = made.gathered.sums.groups[0]
    assert group.segment.name == "client (client)"
    assert [method.calls_count for method in group.methods.values()] == [1000] * 4
    assert group.moved_bytes == 4000 * 1500
    assert sum(group.stage_ns) == pytest.approx(group.total_ns)
    assert made.objections == []


def test_every_form_in_both_languages(traced_folder: Path) -> None:
    made = make_report(gather([traced_folder]))
    for language in ("en", "zh"):
        assert "m3" in as_text(made, language)
        assert "| m3 | 1,000 |" in as_markdown(made, language)
        values: dict[str, Any] = json.loads(as_json(made, language))
        assert values["segments"][0]["methods"][0]["calls_count"] == 1000
        assert len(list(csv.DictReader(io.StringIO(as_csv(made, language))))) == 4
    assert "发现与建议" in as_text(made, "zh")


def test_the_command(traced_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "report", str(traced_folder), "--format", "markdown"]) == 0
    assert "## client (client)" in capsys.readouterr().out
    (tmp_path / "x.txt").write_text("nothing of the kind\n")
    for bad in (tmp_path / "missing", tmp_path / "x.txt"):
        assert main(["trace", "report", str(bad)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("cost", ["9" * 400, "-1", "1e300", "NaN", "null", '"x"'])
def test_a_cost_in_a_header_that_cannot_be_is_not_believed(tmp_path: Path, cost: str) -> None:
    both_sides(tmp_path)
    for path in tmp_path.glob("*.ipct"):
        data = path.read_bytes()
        facts, lengths = data[: HEADER_BYTES - 16].rstrip(b"\0"), data[HEADER_BYTES - 16 : HEADER_BYTES]
        facts = facts.replace(b'"ids"', f'"costs_ns": [{cost}, 1, 1], "ids"'.encode())
        path.write_bytes(facts.ljust(HEADER_BYTES - 16, b"\0") + lengths + data[HEADER_BYTES:])
    report = make_report(gather([tmp_path]))
    assert report.gathered.sums.groups
    assert "R11" not in rules_of(report)


def test_files_of_a_trace_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FIRST_SEGMENT_BYTES", 2**14)
    monkeypatch.setattr(files, "_LARGEST_SEGMENT_BYTES", 2**14)
    record(tmp_path, 600)
    paths = sorted(tmp_path.glob("*.ipct"), key=lambda path: int(path.stem.rpartition("-")[2]))
    assert len(paths) > 5
    assert missing(tmp_path) == []
    for path in (paths[0], paths[2], paths[3]):
        path.unlink()
    thread = paths[0].stem[2:].rpartition("-")[0]
    assert missing(tmp_path) == [f"?-{thread}-0", f"?-{thread}-2 to 3"]
    assert main(["trace", "report", str(paths[1])]) == 0, "a file that is named is asked for by itself"


@pytest.mark.parametrize("options", [{"sample": 16}, {"sample": 2}, {"budget": 0.01}])
def test_histograms_that_are_missing_are_told(tmp_path: Path, options: dict[str, Any]) -> None:
    tracer = trace.start(tmp_path, **options)
    for _ in range(20_000):
        rpc(tracer)
    trace.stop()
    assert missing(tmp_path) == []
    (path,) = tmp_path.glob("*.ipch")
    path.unlink()
    assert f"h-{path.stem[2:].rpartition('-')[0]}-?.ipch" in missing(tmp_path)


@pytest.mark.parametrize("failing", [False, True])
def test_a_sampled_trace_without_histograms_may_be_whole(tmp_path: Path, failing: bool) -> None:
    """What fails always has a record, and so has the first call of a method."""
    tracer = trace.start(tmp_path, sample=4)
    for number in range(400 if failing else 1):
        with suppress(OSError), tracer.call("method" if failing else f"method {number}"):
            if failing:
                raise OSError
    trace.stop()
    assert not list(tmp_path.glob("*.ipch"))
    assert missing(tmp_path) == []


def missing(folder: Path) -> list[str]:
    """Return which files the report misses."""
    return [place for example in gather([folder]).notes.examples for place, _, what in [example.partition(": missing")]
            if what]  # fmt: skip
