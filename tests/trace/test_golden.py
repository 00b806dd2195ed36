"""Logs with known figures: the report gives these figures, by formulas that are written out here a second time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipcbench.cli import main
from ipcbench.trace.report.gather import gather
from ipcbench.trace.report.render import as_text, make_report
from tests.trace.logs import V1, V2, V3, V4, head, row, rows, tq_call
from tests.trace.reading import run_program

Reported = Callable[[str], dict[str, Any]]


@pytest.fixture
def reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Reported:
    """Return what is reported on a log."""

    def report(text: str) -> Any:
        (tmp_path / "zmq_performance.log").write_bytes(text.encode())
        assert main(["trace", "report", str(tmp_path / "zmq_performance.log"), "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return report


def rows_of(count: int, first_method: str) -> list[tuple[int, str, tuple[float, ...]]]:
    """Return rows as a client writes them: times to a microsecond, sizes to ten bytes, throughput from both."""
    made = []
    for number in range(1, count + 1):
        method = first_method if number == 1 else ("BatchLinear", "Matmul", "BatchLinear")[number % 3]
        big = 4.0 if method == "Matmul" else 1.0
        stages = [round(part * big * (1 + number % 7), 3) for part in (13.117, 5.931, 75.432, 6.814)]
        total = round(sum(stages) + 0.121, 3)
        sent, recv = round(8192.11 * big, 2), round(big * 16384.05 + number, 2)
        made.append((number, method, (*stages, total, sent, recv, round((sent + recv) / 1024 / total * 1e3, 2))))
    return made


def test_two_segments_with_their_figures(reported: Reported) -> None:
    segments = [rows_of(99, "Init"), rows_of(98, "Embedding")]
    report = reported(
        head(V1) + "".join(row(n, method, *values) for written in segments for n, method, values in written)
    )
    assert [segment["calls_count"] for segment in report["segments"]] == [99, 98]
    assert (report["lines_count"], report["damaged_count"], report["audit"]) == (201, 0, [])
    for written, segment in zip(segments, report["segments"], strict=True):
        columns = list(zip(*(values for _, _, values in written), strict=True))
        total_ms, moved_kib = sum(columns[4]), sum(columns[5]) + sum(columns[6])
        assert segment["total_ns"] / 1e6 == pytest.approx(total_ms, abs=1e-3)
        assert segment["moved_bytes"] / 1024 == pytest.approx(moved_kib, abs=1)
        assert segment["throughput_mib_per_s"] == pytest.approx(moved_kib / 1024 / total_ms * 1e3, rel=1e-5)
        shares = {stage["stage"]: stage["share_ratio"] for stage in segment["stages"]}
        assert list(shares) == ["serialize", "send", "wait", "deserialize", "unaccounted"]
        for column, share in zip(columns[:4], shares.values(), strict=False):
            assert share == pytest.approx(sum(column) / total_ms, abs=1e-6)
        assert shares["unaccounted"] == pytest.approx(0.121 * len(written) / total_ms, abs=1e-6)
        for method in segment["methods"]:
            totals_ms = [values[4] for _, name, values in written if name == method["method"]]
            assert method["calls_count"] == len(totals_ms)
            assert method["mean_ns"] / 1e6 == pytest.approx(sum(totals_ms) / len(totals_ms), abs=1e-5)
            assert method["max_ns"] / 1e6 == pytest.approx(max(totals_ms), abs=1e-5)
        slowest_ns = sorted((round(total_ms * 1e6) for total_ms in columns[4]), reverse=True)[:5]
        assert [call["total_ns"] for call in segment["slowest"]] == slowest_ns
        assert len(segment["largest"]) == 5


def test_a_summary_with_a_negative_time_is_called_out(reported: Reported) -> None:
    calls = rows(range(1, 99), "BatchLinear", 6.638, 1, 1, 3, 0.5, 5.6, 4, 5.842, 0.1, 0.1)
    summary = "\nSUMMARY (OTP Encryption)\n" + "=" * 140 + "\nTotal RPC Calls: 98\n\nCommunication Overhead:\n"
    summary += "  Serialize: 0.0010 s\n  Total: 0.2993 s\n\nEffective Time (excl. offline & comm): -0.6291 s\n"
    report = reported(head(V4, "IPC+SHM+OTP", " (OTP)", 140) + calls + "=" * 140 + summary)
    texts = [objection["text"] for objection in report["audit"]]
    assert any("negative" in text and "-0.6291" in text for text in texts)
    assert any("lower bound" in text for text in texts)
    assert (report["damaged_count"], report["segments"][0]["calls_count"]) == (0, 98)


def test_the_older_tools_own_sample(reported: Reported) -> None:
    """Two rows, an ellipsis, and a summary of 98 calls: a warning, no error; the printed throughput is 2.3 % off."""
    text = head(V1) + row(1, "Init", 0.085, 0.030, 2.057, 0.091, 2.268, 0.02, 266.33, 114.68)
    text += row(2, "Matmul", 0.5, 0.5, 10, 0.5, 12.02, 1024, 2048, 255.23) + "...\n\n" + "=" * 116 + "\nSUMMARY\n"
    text += "=" * 116 + "\nTotal RPC Calls: 98\nAverage Total Time: 3.393 ms\n"
    texts = [objection["text"] for objection in reported(text)["audit"]]
    assert any("Total RPC Calls 98" in text and "give 2" in text for text in texts)
    assert any("throughputs that differ" in text for text in texts)
    assert any("ellipsis" in text for text in texts)


@pytest.mark.parametrize("columns", [V1, V2, V3, V4], ids=["V1", "V2", "V3", "V4"])
def test_rows_as_different_as_they_can_be(reported: Reported, columns: list[str]) -> None:
    """Long names, names with blanks, large ids, exponents: read as the ordinary rows around them."""
    values = [1.0] * (len(columns) - 1)
    names = ["M" * 30, "a method", "Layer.forward", "Matmul", "b"]
    text = head(columns) + "".join(row(99_990 + n, names[n % 5], *values, 2.5) for n in range(100))
    text += row(100_090, "exp", *values, 2.5).replace("1.000 ", "1e0   ", 1)
    for end in ("\n", "\r\n"):
        methods = reported(text.replace("\n", end))["segments"][0]["methods"]
        counts = {method["method"]: method["calls_count"] for method in methods}
        assert counts == dict.fromkeys(names, 20) | {"exp": 1}
        assert {method["max_ns"] for method in methods} == {1_000_000}


def test_rows_among_lines_of_something_else(reported: Reported) -> None:
    lines = [row(n, "Matmul", *[1.0] * 7, 2.5) for n in range(1, 301)]
    lines[::7] = [f"2026-01-02 03:04:05 INFO step {n}\n{line}" for n, line in enumerate(lines[::7])]
    lines[5] = lines[5].replace(" ", "\t", 1)
    report = reported(head(V1) + "".join(lines))
    assert [segment["calls_count"] for segment in report["segments"]] == [300]
    assert report["damaged_count"] == 43


def test_quick_and_slow_reading_agree(reported: Reported) -> None:
    """The same [TQ-…] lines with their fields in another order are the same calls."""
    lines = []
    for n in range(30):
        prefix = f"\x1b[36m(W pid={n % 3}, ip=10.0.0.2)\x1b[0m 2026-01-02 03:04:{n:02} " if n % 2 else "INFO:"
        lines += tq_call(n / 10, (0.1, 0.25, 0.05), f"f{n % 2}", f"id{n // 4}", prefix)
        lines += [f"{prefix}[TQ-DETAIL] trace_id=N/A | {rest}\n" for rest in (
            "stage=TQ_CLIENT_GET_START | batch_size=4 | timestamp=9.000000",
            "stage=TQ_CLIENT_GET_END | duration=0.200000s | data_size_mb=1.50 | timestamp=9.200000",
            "func=g | pid=1 | stage=TQ_CLIENT_PUT_START | batch_size=torch.Size([32, 4]) | data_size_mb=3.25 | "
            "timestamp=9.200000",
            "func=g | pid=1 | stage=TQ_CLIENT_PUT_END | duration=0.100000s | throughput_mbps=32.50 | "
            "timestamp=9.300000",
        )]  # fmt: skip
    turned = []
    for line in lines:
        start, marker, body = line.rstrip("\n").partition("] trace_id=")
        first, *fields = body.split(" | ")
        turned.append(" | ".join([f"{start}] {fields[-1]}", *fields[:-1], f"trace_id={first}"]) + "\n")
        assert marker
    figures = []
    for log in (lines, turned):
        report = reported("".join(log))
        assert report["damaged_count"] == 0
        keys = ("segment", "calls_count", "total_ns", "moved_bytes", "stages")
        figures.append([[segment[key] for key in keys] for segment in report["segments"]])
    assert figures[0] == figures[1]
    assert [calls_count for _, calls_count, *_ in figures[0]] == [60, 30]
    assert figures[0][0][3] == 30 * round(4.75 * 2**20)


def test_sizes_of_puts_and_ratios_that_lie(reported: Reported) -> None:
    """A put without a size has that of its speed and duration; ratios that do not agree with durations are said."""
    put = "[TQ-DETAIL] trace_id=N/A | func=f | pid=1 | stage=TQ_CLIENT_PUT_END | duration=0.500000s | "
    lines = [put + "throughput_mbps=4.00 | timestamp=1.500000\n", put + "throughput_mbps=0.00 | timestamp=2.500000\n"]
    lines += [line.replace("get_ratio=50.00", "get_ratio=80.00") for line in tq_call(9.0, (0.3, 0.2, 0.1))]
    report = reported("".join(lines))
    segments = {segment["segment"]: (segment["calls_count"], segment["moved_bytes"]) for segment in report["segments"]}
    assert segments["transfers"] == (2, 2 * 2**20)
    assert any("ratios that do not agree" in objection["text"] for objection in report["audit"])


def test_rows_without_a_header_are_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the columns are is not guessed from their number: two sets of them have ten."""
    path = tmp_path / "x.csv"
    path.write_text(row(1, "Matmul", *[1.0] * 8) * 3)
    assert main(["trace", "report", str(path)]) == 2
    assert "no calls found" in capsys.readouterr().err


def test_processes_of_one_service_are_one_segment(tmp_path: Path) -> None:
    """Own traces: one segment per service and role, and in it all its processes."""
    program = """
import sys; from ipcbench import trace; from tests.trace.made import rpc
recorder = trace.start(sys.argv[1], service=sys.argv[2])
for _ in range(30): rpc(recorder)
"""
    for service in ("worker", "worker", "worker", "driver"):
        run_program(program, tmp_path, service)
    gathered = gather([tmp_path])
    segments = [(group.segment.name, group.calls_count) for group in gathered.sums.groups]
    assert sorted(segments) == [("driver (client)", 30), ("worker (client)", 90)]
    assert "processes 3" in as_text(make_report(gathered))


def test_a_summary_whose_numbers_are_none(reported: Reported) -> None:
    summary = "SUMMARY\nTotal RPC Calls: .\nAverage Total Time: inf ms\n"
    assert reported(head(V1) + row(1, "A", *[1.0] * 7, 2.5) + summary)["damaged_count"] == 2
