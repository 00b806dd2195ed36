"""The page of a trace: what its plots are drawn from, and that nothing in a trace is executed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ipcbench import trace
from ipcbench.render.page_data import groups_json
from ipcbench.render.palette import series_style
from ipcbench.trace.page.charts import BusyTime, chart_groups
from ipcbench.trace.page.page import trace_html, verdict
from ipcbench.trace.page.sample import POINTS_COUNT, WINDOW_CALLS, draw
from ipcbench.trace.page.words import word
from ipcbench.trace.readers.everything import find
from ipcbench.trace.report.gather import gather
from ipcbench.trace.report.render import make_report
from ipcbench.util.units import format_duration_ns
from tests.trace.logs import V1, V3, head, rows, tq_call, v1_row
from tests.trace.made import HOSTILE, Made, both_sides


def test_every_call_counts_and_few_are_drawn(tmp_path: Path) -> None:
    made = Made(tmp_path / "t", "client")
    for number in range(3000):
        begin = 10**9 + number * 1000
        longer = 5_000_000 if number == 2000 else 0
        made.call("Matmul", [begin, begin + 100, begin + 200, begin + 300, begin + 400 + longer], sent=number + 1)
    made.segment.close()
    sample = draw(find([tmp_path / "t"]))
    (method,) = sample.methods
    assert method.sums.calls_count == 3000
    assert len(method.times_ns) == len(set(method.sizes_bytes.tolist())) == POINTS_COUNT
    assert 1000 < method.sizes_bytes.mean() < 2000, "from the whole trace"
    windows = {window.kind: sorted(row.sent_bytes for row, _ in window.calls) for window in sample.windows}
    assert windows["first"] == list(range(1, WINDOW_CALLS + 1))
    assert windows["last"][-1] == 3000
    assert 2001 in windows["slowest"]
    assert set(map(len, windows.values())) == {WINDOW_CALLS}


def test_plots_say_what_they_show(tmp_path: Path) -> None:
    both_sides(tmp_path / "t", 20)
    shares, sizes, timeline = chart_groups(draw(find([tmp_path / "t"])), "en")
    (chart,) = shares.charts
    work = next(one for one in chart.series if one.name == "server work")
    assert work.points[0].y == pytest.approx(100 * 800 / 1500)
    assert work.points[0].lines == ("Matmul", "53.3 %", "800 µs of 1.50 ms per call on average")
    first = {one.name: one.points[0].y for one in chart.series if one.points[0].x == 1}
    assert list(first) == ["serialize", "send", "request transit", "server queue", "server work", "reply transit",
                           "deserialize"]  # fmt: skip
    assert chart.notes == ("The wait is split as in the 19 of 20 calls whose server side is known.",)
    assert chart.y.title == "share of the call, %"
    for at in range(1, len(chart.x.ticks) + 1):
        assert sum(p.y for one in chart.series for p in one.points if p.x == at) == pytest.approx(100)
    assert {one.name for one in sizes.charts[0].series} >= {"Matmul"}
    assert [one.choice for one in timeline.charts] == ["all calls"]
    assert [text for _, text in timeline.charts[0].y.ticks] == ["client 101", "· 2", "server 201"]
    spans = [point for one in timeline.charts[0].series for point in one.points]
    assert len(spans) == 41
    assert min(point.x for point in spans) == 0


def test_a_log_that_knows_the_servers_part_has_the_rest_as_wait(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(head(V3, tag=" (Ours)") + rows(range(1, 30), "A", 1, 2, 6, 1, 10, 5, 10.5, 4, 8))
    (chart,) = chart_groups(draw(find([tmp_path / "a.log"])), "en")[0].charts
    shares = {series.name: series.points[0].y for series in chart.series}
    for name, ms in (("server work", 5), ("wait", 1), ("in no stage", 0.5)):
        assert shares[name] == pytest.approx(100 * ms / 10.5)


def test_a_table_of_calls_has_no_timeline_and_a_pipeline_log_has_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(head(V1) + "".join(v1_row(number) for number in range(1, 30)))
    (tmp_path / "b.log").write_text("".join(tq_call(1.0)))
    for name, keys in (("a.log", ["shares", "sizes"]), ("b.log", ["shares", "timeline"])):
        assert [group.key for group in chart_groups(draw(find([tmp_path / name])), "en")] == keys


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_begins_with_a_verdict_that_counts_a_call_of_two_sides_once(tmp_path: Path, language: str) -> None:
    both_sides(tmp_path / "t", 25)
    paths, chosen = [tmp_path / "t"], "zh" if language == "zh" else "en"
    report, sample = make_report(gather(paths)), draw(find(paths))
    said = verdict(report, sample, chosen)
    total_ns = 25 * 1_500_000 + 5_000
    assert report.total_ns == total_ns, "the server's work is a part of its callers' time"
    assert said.lead == word(
        "verdict", chosen, calls="26", total=format_duration_ns(total_ns), share="100.0 %", method="Matmul"
    )
    assert word("wait server", chosen) in said.rest
    assert report.findings[0].rule in said.rest
    page = trace_html(report, paths, chosen)
    assert page.index("<h1") < page.index(word("calls", chosen, count="26")) < page.index("<h2")


def test_a_trace_of_the_far_side_alone_is_counted_by_it(tmp_path: Path) -> None:
    both_sides(tmp_path / "t", 25)
    (client,) = (path for path in (tmp_path / "t").iterdir() if b"client" in path.read_bytes()[:4096])
    client.unlink()
    paths = [tmp_path / "t"]
    report = make_report(gather(paths))
    assert report.total_ns == 25 * 900_000
    assert verdict(report, draw(find(paths)), "en").lead.startswith("25 calls took ")


def test_a_colour_stands_for_one_thing(tmp_path: Path) -> None:
    both_sides(tmp_path / "t", 25)
    groups = {group.key: group.charts[0].series for group in chart_groups(draw(find([tmp_path / "t"])), "en")}
    styles: dict[str, set[str]] = {}
    for key in ("shares", "sizes", "timeline"):
        for series in groups[key]:
            styles.setdefault(series_style(series.color).light, set()).add(series.name)
    assert all(len(names) == 1 for names in styles.values()), styles
    assert {series.name: series.color for series in groups["sizes"]}.items() <= {
        series.name: series.color for series in groups["timeline"]
    }.items()


def test_idle_time_is_cut_out_of_the_timeline_and_said(tmp_path: Path) -> None:
    made = Made(tmp_path / "t", "client")
    begins = [1_000_000, 3_000_000, 5_000_000_000, 5_002_000_000]
    for begin in begins:
        made.call("Matmul", [begin, begin + 1_000_000], trace.FUNCTION)
    made.segment.close()
    (chart,) = next(
        group.charts for group in chart_groups(draw(find([tmp_path / "t"])), "en") if group.key == "timeline"
    )
    points = [point for series in chart.series for point in series.points]
    busy = sum((point.x_high or 0.0) - point.x for point in points)
    assert busy == pytest.approx(4.0)
    assert max(point.x_high or 0.0 for point in points) <= 1.5 * busy
    assert [point.x for point in points] == sorted(point.x for point in points)
    assert any(line.startswith("+ 4,999 ms") for line in points[2].lines), "the label keeps the true time"
    assert any("without any call" in note for note in chart.notes)
    assert "cut out" in chart.x.label


def test_a_timeline_without_idle_time_is_left_as_it_is() -> None:
    axis = BusyTime.of([(0, 10), (5, 20), (20, 30), (31, 40)])
    assert (axis.cut_ns, axis.place(31)) == (0, 31)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_in_a_trace_is_markup(tmp_path: Path, language: str) -> None:
    both_sides(tmp_path / "t", 25)
    paths = [tmp_path / "t"]
    page = trace_html(make_report(gather(paths)), paths, "zh" if language == "zh" else "en")
    assert "<script>document.title" not in page
    assert page.count("<script") == 4
    assert f'<html lang="{language}">' in page
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page)
    assert data is not None
    assert [one["key"] for one in json.loads(data[1])] == ["shares", "sizes", "timeline"]
    assert "<" not in groups_json(chart_groups(draw(find(paths)), "en"))


def test_hostile_numbers_do_not_break_it(tmp_path: Path) -> None:
    made = Made(tmp_path / "t", "")
    made.call(HOSTILE, [2**61, 2**61 + 1], trace.FUNCTION, sent=2**61)
    made.call("", [0, 0], trace.FUNCTION)
    made.call("back", [1000, 10], trace.FUNCTION)
    made.segment.close()
    assert [one.key for one in chart_groups(draw(find([tmp_path / "t"])), "en")] == ["sizes", "timeline"]
