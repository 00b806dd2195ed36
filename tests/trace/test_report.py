"""Reports on logs and traces: nothing is lost, nothing is invented, nothing ends in a traceback."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipcbench import trace
from ipcbench.cli import main
from ipcbench.errors import StoreError
from ipcbench.trace.format import HEADER_BYTES
from ipcbench.trace.report.findings import _RULES, _SEED_RULES
from ipcbench.trace.report.gather import gather
from ipcbench.trace.report.render import Report, as_csv, as_json, as_markdown, as_text, make_report
from ipcbench.trace.report.words import WORDS
from tests.trace.logs import V1, V3, V4, head, row, tq_call, v1_row
from tests.trace.made import both_sides


@pytest.fixture(autouse=True)
def no_recorder() -> Iterator[None]:
    yield
    trace.stop()


def report(path: Path, text: str, rules: str = "default") -> Report:
    path.write_text(text)
    return make_report(gather([path]), rules)


def test_the_audit_says_what_does_not_agree(tmp_path: Path) -> None:
    text = head(V1) + v1_row(1) + row(2, "Odd", 1, 2, 6, 1, 5, 1, 1, 99) + row(3, "Bad", -1, 2, 6, 1, 10, 0, 0, 0)
    text += "=" * 120 + "\nSUMMARY\n" + "=" * 120 + "\nTotal RPC Calls: 98\nAverage Send Time: 7.000 ms\n"
    text += "Effective Time (excl. offline & comm): -0.6291 s\n"
    made = report(tmp_path / "x.log", text)
    kinds = {one.kind: (one.said, one.found) for one in made.objections if one.kind != "claim"}
    assert kinds["negative claim"] == (-0.6291, None)
    assert kinds["negative"][0] == kinds["impossible"][0] == 1
    assert {one.said: one.found for one in made.objections if one.kind == "claim"} == {98.0: 3, 7.0: 2.0}
    assert "R15 1 printed throughputs differ" in as_text(made)


def rules_of(made: Report) -> set[str]:
    return {one.rule for one in made.findings}


def test_waiting_is_not_called_transport(tmp_path: Path) -> None:
    """Of a call that a server works on for 5 ms, transport has 2 %; the older rule says all of it."""
    rows = "".join(row(n, "Small", 0.001, 0.006, 5.104, 0.003, 5.114, 1, 1, 0.38) for n in range(1, 60))
    unknown = report(tmp_path / "x.log", head(V1) + rows)
    assert "R2b" in rules_of(unknown)
    assert "R3" not in rules_of(unknown)
    assert "S2" in rules_of(report(tmp_path / "x.log", head(V1) + rows, "seed"))
    rows = "".join(row(n, "Small", 0.001, 0.006, 5.104, 0.003, 5.1, 5.005, 5.114, 1, 1) for n in range(1, 60))
    made = report(tmp_path / "x.log", head(V3) + rows)
    found = next(one for one in made.findings if one.rule == "R2")
    assert found.values["transit_share"] <= 0.03
    assert "R3" not in rules_of(made)


def test_rules(tmp_path: Path) -> None:
    def zmq(*values: float, transport: str = "IPC", count: int = 200) -> set[str]:
        text = head(V1, transport) + "".join(row(n, "M", *values) for n in range(1, count + 1))
        return rules_of(report(tmp_path / "x.log", text))

    assert "R1" in zmq(40, 1, 50, 5, 96, 1024, 1024, 20)
    assert "R1" not in zmq(40, 1, 50, 5, 96, 1024 * 200, 1024, 2000)
    assert "R4" in zmq(1, 1, 50, 5, 57, 1, 1, 0.03, transport="TCP")
    assert "R5" in zmq(0.01, 0.01, 0.05, 0.01, 0.08, 0.1, 0.1, 2.4)
    assert "R8" in zmq(1, 1, 50, 5, 57, 2048, 10, 35)
    assert "R10" in zmq(1, 1, 50, 5, 80, 1, 1, 0.02)
    assert zmq(1, 1, 50, 5, 80, 1, 1, 0.02, count=19) == set()
    tail = "".join(row(n, "M", 1, 1, 1, 1, 4 if n > 3 else 4000, 1, 1, 0.5) for n in range(1, 201))
    found = [one for one in report(tmp_path / "x.log", head(V1) + tail).findings if one.rule == "R6"]
    assert found[0].values["cause"] == "warm-up"
    lines = [line for n in range(100) for _, line in tq_call(float(n), (0.3, 0.2, 0.1), "f")]
    lines += [line for n in range(100, 105) for _, line in tq_call(float(n), (0.3, 0.2, 0.1), "f")][::8]
    assert rules_of(report(tmp_path / "x.log", "".join(lines))) == {"R9", "R12"}
    slow = [
        line
        for worker in range(4)
        for n in range(30)
        for _, line in tq_call(n + 0.0, (0.01, 0.2 + worker // 3, 0.01), prefix=f"(W pid={worker}) ")
    ]
    straggler = next(one for one in report(tmp_path / "x.log", "".join(slow)).findings if one.rule == "R13")
    assert straggler.values["worker"] == "W pid=3"


def test_every_rule_has_words_in_both_languages() -> None:
    assert len(_RULES) + len(_SEED_RULES) > 10
    for english, chinese in WORDS.values():
        assert english
        assert chinese


@pytest.fixture
def traced_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "trace"
    recorder = trace.start(folder, sample=4, service="client")
    for number in range(4000):
        with recorder.call(f"m{number % 4}") as call:
            call.serialized(1000)
            call.sent()
            call.received(500)
    trace.stop()
    return folder


def test_own_traces_count_every_call(traced_folder: Path) -> None:
    made = make_report(gather([traced_folder]))
    group = made.gathered.sums.groups[0]
    assert group.segment.name == "client (client)"
    assert [one.calls_count for one in group.methods.values()] == [1000] * 4
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


def damage(data: bytes, chosen: st.DataObject) -> bytes:
    out = bytearray(data)
    for _ in range(chosen.draw(st.integers(1, 6))):
        at = chosen.draw(st.integers(0, max(0, len(out) - 1)))
        piece = chosen.draw(
            st.sampled_from([b"", b"\0", b"\n", b"-", b"nan", b"1e999", b"9" * 25, b"[TQ-", b" | ", b"\xff"])
        )
        out[at : at + chosen.draw(st.integers(0, 30))] = piece
    return bytes(out[: chosen.draw(st.integers(0, len(out)))]) if chosen.draw(st.booleans()) else bytes(out)


_LOG = "".join([
    head(V1), *(v1_row(n) for n in range(1, 6)), "=" * 120, "\nSUMMARY\nTotal RPC Calls: 5\n", head(V4, "IPC+SHM"),
    row(1, "A", 3, 1, 2, 6, 1, 5, 10.5, 4, 8), *(line for _, line in tq_call(5.0, (0.1, 0.2, 0.3))),
]).encode()  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_logs_end_in_a_report_or_one_error(tmp_path: Path, chosen: st.DataObject) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(damage(_LOG, chosen))
    check(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_segments_end_in_a_report_or_one_error(
    tmp_path: Path, traced_folder: Path, chosen: st.DataObject
) -> None:
    suffix = chosen.draw(st.sampled_from([".ipct", ".ipch"]))
    source = next(traced_folder.glob(f"*{suffix}"))
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(damage(source.read_bytes()[:60_000], chosen))
    check(path)


def check(path: Path) -> None:
    try:
        made = make_report(gather([path]))
    except StoreError:
        pass
    else:
        assert as_text(made)
        assert as_json(made)
        assert as_csv(made)


@pytest.mark.parametrize("cost", ["9" * 400, "-1", "1e300", "NaN", "null", '"x"'])
def test_a_cost_in_a_header_that_cannot_be_is_not_believed(tmp_path: Path, cost: str) -> None:
    both_sides(tmp_path)
    for path in tmp_path.glob("*.ipct"):
        data = path.read_bytes()
        header = data[:HEADER_BYTES].rstrip(b"\0").replace(b'"ids"', f'"costs_ns": [{cost}], "ids"'.encode())
        path.write_bytes(header.ljust(HEADER_BYTES, b"\0") + data[HEADER_BYTES:])
    report = make_report(gather([tmp_path]))
    assert report.gathered.sums.groups
    assert "R11" not in {one.rule for one in report.findings}
