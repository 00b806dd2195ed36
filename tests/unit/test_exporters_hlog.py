"""The histogram log, read back by HdrHistogram's own package."""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.analysis.exporters.common import matched_rows
from ipcbench.analysis.exporters.hlog import encode
from ipcbench.results.store import Run
from ipcbench.stats.histogram import Histogram
from tests.unit.builders import CELLS, START_NS, make_run, paced, saturate, trial
from tests.unit.test_exporters import ALL_MODES, store, text_of


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", CELLS, ALL_MODES)


def read_log(path: Path) -> list[Any]:
    """Return the histograms of a log, each with its `tag`, as the reader of HdrHistogram's own package sees them."""
    from hdrh.histogram import HdrHistogram
    from hdrh.log import HistogramLogReader

    reader = HistogramLogReader(str(path), HdrHistogram(1, 3_600_000_000_000, 2))
    histograms = list(iter(reader.get_next_interval_histogram, None))
    reader.close()
    return histograms


def logged(run: Run, folder: Path) -> list[Any]:
    path = folder / "run.hlog"
    path.write_text(text_of(run, "hlog"), encoding="utf-8")
    return read_log(path)


def test_hlog_is_read_by_hdrhistogram_with_quantiles_within_one_percent(run: Run, tmp_path: Path) -> None:
    columns = run.samples(next(trial.trial_id for trial in run.trials if trial.spec.cell[:3] == ("zmq", "dict", 1000)))
    times = np.sort(columns["reader-1.latency_ns"])
    tag = "zmq.dict-1000-55039B.r2.reader-1.response"
    read = next(histogram for histogram in logged(run, tmp_path) if histogram.tag == tag)
    assert read.get_total_count() == times.size
    assert read.get_max_value() == pytest.approx(times[-1], rel=0.01)
    for percent in (1, 10, 50, 90, 99):
        exact = times[-(-percent * times.size // 100) - 1]
        assert read.get_value_at_percentile(percent) == pytest.approx(exact, rel=0.01)


def test_hlog_has_a_line_per_series_and_round_in_order_of_time(run: Run, tmp_path: Path) -> None:
    found = logged(run, tmp_path)
    tags = [histogram.tag for histogram in found]
    assert {tags.count(tag) for tag in tags} == {3}
    ends = {tag.partition(".r2.")[2] for tag in tags}
    assert ends == {
        "writer.delay", "writer.write", "writer.round-trip", "reader-0.response", "reader-0.service",
        "reader-1.response", "reader-1.service",
    }  # fmt: skip
    starts = [histogram.get_start_time_stamp() for histogram in found]
    assert starts == sorted(starts)
    assert starts[0] == 1.7e12
    assert found[0].get_end_time_stamp() - starts[0] == 1000


def test_hlog_service_counts_from_the_actual_send(run: Run, tmp_path: Path) -> None:
    columns = run.samples(0)
    delay = columns["writer.sent_ns"] - columns["writer.intended_ns"]
    service = next(histogram for histogram in logged(run, tmp_path) if histogram.tag.endswith("reader-0.service"))
    exact = np.sort(columns["reader-0.latency_ns"] - delay)[174]
    assert service.get_value_at_percentile(50) == pytest.approx(exact, rel=0.01)


def test_hlog_lines_have_the_grammar_of_the_format(run: Run) -> None:
    number = r"\d+\.\d{3}"
    line = re.compile(rf"Tag=[^, \n]+,{number},{number},{number},[A-Za-z0-9+/]+=*")
    header = re.compile(r'#\[.*\]|"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"')
    lines = text_of(run, "hlog").splitlines()
    assert all(line.fullmatch(text) or header.fullmatch(text) for text in lines)
    assert "#[Histogram log format version 1.3]" in lines
    assert "#[StartTime: 1700000000.000 (seconds since epoch), 2023-11-14T22:13:20Z]" in lines


def test_hlog_leaves_out_what_a_histogram_cannot_hold_and_says_what_is_thinned(tmp_path: Path) -> None:
    result, columns = paced(trial(ALL_MODES, "zmq", 10, "paced", 0, 0), 10_000.0, 0.2)
    columns["reader-0.latency_ns"][3] = -1
    thinned = replace(result, endpoints=tuple(replace(part, sample_stride=4) for part in result.endpoints))
    exported = EXPORTERS["hlog"](store(tmp_path / "run", (thinned, columns)))
    assert "reader-0.response" not in exported.text
    assert any("reader-0 response: a histogram holds no time below zero" in line for line in exported.left_out)
    assert "#[zmq.dict-10-521B.r2.reader-1.response: one value in up to 4 is kept]" in exported.text


def test_hlog_has_all_messages_of_a_window_that_kept_only_some(tmp_path: Path) -> None:
    result, columns = paced(trial(ALL_MODES, "zmq", 10, "paced", 0, 0), 10_000.0, 0.2)
    every = columns["reader-0.latency_ns"]
    some = {name: column[::4] for name, column in columns.items()}
    some["reader-0.latency_bins"] = Histogram(every).counts
    thinned = replace(result, endpoints=tuple(replace(part, sample_stride=4) for part in result.endpoints))
    without_bins = {key: some[key] for key in some if not key.endswith("_bins")}
    logs = [
        logged(store(tmp_path / name, (thinned, kept)), tmp_path)
        for name, kept in (("whole", some), ("part", without_bins))
    ]
    whole, part = (next(log for log in lines if log.tag.endswith("0.response")) for lines in logs)
    assert (whole.get_total_count(), part.get_total_count()) == (len(every), len(every[::4]))
    assert whole.get_value_at_percentile(99) == pytest.approx(np.quantile(every, 0.99), rel=0.02)
    assert "reader-0.response: up to" not in EXPORTERS["hlog"](store(tmp_path / "again", (thinned, some))).text


@pytest.mark.parametrize(
    "values",
    [[0], [1], [255, 256, 257], [1] * 63 + [2] * 64 + [4] * 8192, [7, 8, 3_600_000_000_000], [2**62], [2**63 - 1]],
    ids=lambda values: f"{len(values)} to {max(values)}",
)
def test_an_encoded_histogram_decodes_to_the_same_counts(values: list[int]) -> None:
    from hdrh.histogram import HdrHistogram

    decoded = HdrHistogram.decode(encode(Histogram(values)))
    assert decoded.get_total_count() == len(values)
    plain = HdrHistogram(1, max(3_600_000_000_000, *values, 2), 2)
    for value in values:
        plain.record_value(value)
    assert list(decoded.counts) == list(plain.counts)
    assert decoded.get_max_value() == plain.get_max_value()


def test_the_largest_counts_take_nine_bytes() -> None:
    histogram = Histogram([0])
    for exponent in (6, 7, 13, 14, 55, 56, 62):
        histogram.counts[0] = 2**exponent - 1
        packed = base64.b64decode(encode(histogram))
        counts = zlib.decompress(packed[8:])[40:]
        assert len(counts) == min(9, -(-(exponent + 1) // 7))


def test_saturated_calls_are_series_too(tmp_path: Path) -> None:
    result, columns = saturate(trial(ALL_MODES, "zmq", 10, "saturate", 0, 0), 1e5)
    columns |= {f"reader-{index}.read_ns": np.full(500, 7_000) for index in range(2)}
    columns["writer.write_ns"] = np.full(500, 3_000)
    exported = EXPORTERS["hlog"](store(tmp_path / "run", (result, columns)))
    assert re.findall(r"r2\.(\S+?),", exported.text) == [
        "writer.saturated-write",
        "reader-0.saturated-read",
        "reader-1.saturated-read",
    ]
    assert exported.left_out == ()


def test_thinned_columns_are_joined_by_the_intended_time() -> None:
    intended = START_NS + np.arange(60) * 1000
    columns = {
        "writer.intended_ns": intended[::3],
        "writer.sent_ns": intended[::3] + 5,
        "reader-0.received_ns": intended[::2] + 70,
        "reader-0.latency_ns": np.full(30, 70),
    }
    rows = matched_rows(columns, "reader-0")
    assert (rows.reader * 2).tolist() == (rows.writer * 3).tolist() == list(range(0, 60, 6))
    assert matched_rows(columns, "reader-1") is None
    assert matched_rows({**columns, "reader-0.latency_ns": np.full(29, 70)}, "reader-0") is None
