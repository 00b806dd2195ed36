"""What a report must not say: nothing about what nobody noted, about single calls, about other work."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipcbench import trace
from ipcbench.cli import main
from ipcbench.trace.compare.check import check, parse_condition
from ipcbench.trace.compare.diff import diff
from ipcbench.trace.compare.methods import read_methods
from ipcbench.trace.exporters import EXPORTERS
from ipcbench.trace.format import ENDS, ENDS_LATE
from ipcbench.trace.page.page import trace_html
from ipcbench.trace.readers.batch import Bulk, Notes
from ipcbench.trace.readers.everything import find
from ipcbench.trace.readers.own import read_segment
from ipcbench.trace.report.gather import gather
from ipcbench.trace.report.render import Report, as_csv, as_json, as_text, make_report
from ipcbench.trace.report.shares import estimate_text, stage_shares
from ipcbench.trace.report.totals import TrafficTotals
from ipcbench.trace.report.weighted import Variance, WeightedSums
from ipcbench.trace.schema import PIPELINE, RPC, SEND, Schema
from ipcbench.util.clock import now_ns
from tests.trace.logs import V3, head, rows, tq_call
from tests.trace.made import Made, rpc

MS = 1_000_000


def of(path: Path, text: str = "") -> Report:
    if text:
        path.write_text(text)
    return make_report(gather([path]))


def found(report: Report, *rules: str) -> list[tuple[str, str]]:
    return [(finding.rule, finding.where) for finding in report.findings if finding.rule in rules]


def exchange(client: Made, server: Made, number: int, transit_ms: float, work_ms: float, sent: int = 1000) -> None:
    """Write a call of a client and its server's record, with the ways of equal length."""
    begin, way, work = 10**9 + number * 10**9, round(transit_ms * MS / 2), round(work_ms * MS)
    client.call("Matmul", [begin, begin, begin, begin + 2 * way + work, begin + 2 * way + work], sent=sent,
                recv=sent, span=number + 1)  # fmt: skip
    server.call("Matmul", [begin + way, begin + way, begin + way + work, begin + way + work], trace.SERVER,
                span=number + 1)  # fmt: skip


def both(folder: Path, transits_ms: list[float], work_ms: float) -> None:
    client, server = Made(folder, "client"), Made(folder, "server", 200, 200)
    for number, transit_ms in enumerate(transits_ms):
        exchange(client, server, number, transit_ms, work_ms)
    client.segment.close()
    server.segment.close()


def test_one_connection_does_not_make_the_calls_transit_bound(tmp_path: Path) -> None:
    both(tmp_path / "first", [270.0] + [0.3] * 99, 6.2)
    assert not found(of(tmp_path / "first"), "R3")
    both(tmp_path / "all", [4.0] * 100, 3.0)
    assert found(of(tmp_path / "all"), "R3") == [("R3", "client (client)")]


def test_one_call_that_found_the_server_starting_is_no_queue(tmp_path: Path) -> None:
    for name, queued_ms in (("first", [500.0] + [0.1] * 59), ("all", [5.0] * 60)):
        client, server = Made(tmp_path / name, "client"), Made(tmp_path / name, "server", 200, 200)
        begin = 10**9
        for number, queue_ms in enumerate(queued_ms):
            queue, work = round(queue_ms * MS), 6 * MS
            end = begin + queue + work
            client.call("Matmul", [begin, begin, begin, end, end], sent=10, recv=10, span=number + 1)
            server.call("Matmul", [begin, begin + queue, end, end], trace.SERVER, span=number + 1)
            begin = end + MS
        client.segment.close()
        server.segment.close()
        assert bool(found(of(tmp_path / name), "R7")) == (name == "all")


def test_a_few_joined_calls_are_no_bound_for_the_rest(tmp_path: Path) -> None:
    both(tmp_path, [20.0] * 20, work_ms=30.0)
    (finding,) = (each for each in of(tmp_path).findings if each.rule == "R2")
    assert finding.gain_ns == pytest.approx(20 * 20 * MS, rel=0.01)
    alone, begin = Made(tmp_path, "client", 300, 300), 10**12
    for _ in range(20):
        alone.call("Matmul", [begin, begin + 1, begin + 2, begin + 200 * MS, begin + 200 * MS], sent=1000)
        begin += 10**9
    alone.segment.close()
    (finding,) = (each for each in of(tmp_path).findings if each.rule == "R2")
    assert finding.gain_ns is None, "nobody knows what these waited for"


def test_a_server_s_own_column_does_not_tell_transit(tmp_path: Path) -> None:
    """GPU(ms) is what a kernel took: the rest of the wait may be the server's other work."""
    kernel = head(V3) + rows(range(1, 60), "M", 0.01, 0.01, 8.9, 0.01, 8.9, 0.2, 8.93, 0.1, 0.1)
    report = of(tmp_path / "x.log", kernel)
    assert found(report, "R2", "R3", "R2b") == [("R2b", "segment 1")]
    text = as_text(report)
    assert "both sides known" not in text
    assert "the server's own column 2.2 %" in text
    (segment,) = json.loads(as_json(report))["segments"]
    assert (segment["split"]["transport_share_ratio"], segment["split"]["transport_ns"]) == (None, None)


def test_a_server_that_never_took_time_was_not_timed(tmp_path: Path) -> None:
    report = of(tmp_path / "x.log", head(V3) + rows(range(1, 60), "M", 0.01, 0.01, 8.9, 0.01, 8.9, 0.0, 8.93, 0.1, 0.1))
    (segment,) = json.loads(as_json(report))["segments"]
    assert segment["split"] is None
    assert "of which server" not in as_text(report)


def test_methods_are_judged_by_themselves(tmp_path: Path) -> None:
    """A function that only moves data does not hide behind one that computes, nor the other way round."""
    lines = [line for n in range(50) for line in tq_call(10.0 * n, (0.001, 9.0, 0.001), "train")]
    lines += [line for n in range(50) for line in tq_call(10.0 * n + 9.5, (0.20, 0.06, 0.01), "load")]
    report = of(tmp_path / "x.log", "".join(lines))
    assert found(report, "R9") == [("R9", "functions, load")]
    methods = {method["method"]: method for method in json.loads(as_json(report))["segments"][0]["methods"]}
    shares = {stage["stage"]: stage["share_ratio"] for stage in methods["load"]["stages"]}
    assert shares["get"] + shares["put"] == pytest.approx(0.21 / 0.27)
    assert "stage_get_ns" in as_csv(report).splitlines()[0]
    assert "Stages by method" in as_text(report)
    both_move = [line.replace("func=train", "func=load") for line in lines]
    assert found(of(tmp_path / "y.log", "".join(both_move)), "R9") == []
    every = "".join(line for n in range(60) for line in tq_call(float(n), (0.2, 0.1, 0.1), "fg"[n % 2]))
    assert found(of(tmp_path / "z.log", every), "R9") == [("R9", "functions")]


def test_a_parent_is_not_compared_with_its_workers(tmp_path: Path) -> None:
    for worker in range(4):
        made = Made(tmp_path, "job", 100 + worker, 100 + worker)
        name, took = ("whole", 100 * MS) if worker == 3 else ("part", MS)
        for number in range(30):
            begin = 10**9 + number * 10**9
            made.call(name, [begin, begin + took], trace.FUNCTION)
        made.segment.close()
    assert not found(of(tmp_path), "R13")


def test_bytes_that_nobody_noted_are_unknown_everywhere(tmp_path: Path) -> None:
    made = Made(tmp_path, "job")
    for number in range(30):
        begin = 10**9 + number * 10**9
        made.call("step", [begin, begin + MS, begin + 3 * MS, begin + 4 * MS], PIPELINE)
        made.call("empty", [begin, begin + MS], SEND)
    made.segment.close()
    report = of(tmp_path)
    methods = {m["method"]: m for s in json.loads(as_json(report))["segments"] for m in s["methods"]}
    assert (methods["step"]["sent_bytes"], methods["step"]["throughput_mib_per_s"]) == (None, None)
    assert methods["empty"]["sent_bytes"] == 0, "a message of a socket is known to be empty"
    row_of = {
        line.split()[0]: line.split()[-3:] for line in as_text(report).splitlines() if line[:4] in {"  st", "  em"}
    }
    assert row_of["step"] == ["–"] * 3
    metrics = tmp_path / "metrics"
    with metrics.open("wb") as file:
        EXPORTERS["prometheus"](find([tmp_path]), file)
    sent = [line for line in metrics.read_text().splitlines() if line.startswith("ipcbench_sent_bytes_total{")]
    assert [("empty" in line, line.rpartition(" ")[2]) for line in sent] == [(True, "0")]


def test_transfers_of_unknown_size_are_not_empty(tmp_path: Path) -> None:
    line = "[TQ-DETAIL] trace_id=N/A | stage=TQ_CLIENT_GET_END | {}duration=0.5s | timestamp={}\n"
    text = line.format("", 1.5) + line.format("data_size_mb=0.00 | ", 2.5)
    (method,) = json.loads(as_json(of(tmp_path / "x.log", text)))["segments"][0]["methods"]
    assert (method["calls_count"], method["sized_count"], method["recv_bytes"]) == (2, 0, None)


def test_shares_of_one_way_messages_are_of_nothing(tmp_path: Path) -> None:
    """What a message takes after it was sent is no part of its sending."""
    sender, receiver = Made(tmp_path, "a"), Made(tmp_path, "b", 200, 200)
    for number in range(30):
        begin = 10**9 + number * 10**9
        sender.call("PUSH", [begin, begin + 1000], SEND, sent=10, span=number + 1)
        receiver.call("PULL", [begin + 5 * MS, begin + 6 * MS], trace.schema.RECEIVE, recv=10, span=number + 1)
    for made in (sender, receiver):
        made.segment.close()
    text = as_text(of(tmp_path))
    (transit,) = (line for line in text.splitlines() if "request transit" in line)
    assert transit.split()[-1] == "–"


def of_budgeted(folder: Path, count: int) -> Report:
    """Return the report of so many calls of a method, of which a budget has most only counted."""
    recorder = trace.start(folder, budget=0.0005)
    for _ in range(count):
        rpc(recorder, sent=100, recv=100)
    trace.stop()
    return of(folder)


def test_calls_that_were_only_counted_are_in_the_totals(tmp_path: Path) -> None:
    """With a budget, totals are of all calls, and say how far they may be off."""
    report = of_budgeted(tmp_path, 200_000)
    (group,) = report.gathered.sums.groups
    sums = group.methods["Matmul"]
    assert sums.calls_count == 200_000 > sums.timed_count
    assert sums.sent_bytes == pytest.approx(20_000_000, rel=1e-6)
    assert sums.total_ns == pytest.approx(sums.mean_ns * 200_000)
    seen_count = 3 / sums.unseen_ratio
    assert 10 <= seen_count <= sums.timed_count
    unseen_ns = sums.untimed_count / seen_count * 3 * sums.histogram.max
    assert sums.total_error_ratio * sums.total_ns >= 0.99 * unseen_ns, (
        "as many as may be missed, as long as the longest"
    )
    page = trace_html(report, [tmp_path])
    assert f"the {sums.timed_count:,} timed calls of 200,000" in page
    if sums.total_error_ratio <= 0.5:  # unless one call was long, on a busy machine
        assert re.search("200,000 calls took ≈ [0-9.]+ ms ± ", page)
        assert f"(a kind of call rarer than 1 in {seen_count / 3:,.0f} may be missing" in as_text(report)


def test_records_stand_for_the_calls_of_their_own_time(tmp_path: Path) -> None:
    """A budget takes a larger share of the calls in some phases than in others: here a fifth of the fast, less of the
    slow ones, and two of other methods.
    """
    made, begin = Made(tmp_path, "client"), 10**9

    def calls(method: str, count: int, took_ns: int) -> None:
        nonlocal begin
        for _ in range(count):
            begin += MS
            made.call(method, [begin, begin + 1, begin + 2, begin + took_ns - 1, begin + took_ns], sent=10)

    calls("Matmul", 20, 100_000)
    made.sampled("Matmul", 50)  # another method's record may come between
    calls("Add", 1, 5 * MS)
    made.sampled("Matmul", 30)  # and none of this one's: the next ones stand for them
    calls("Matmul", 2, MS)
    made.sampled("Matmul", 98)
    calls("Matmul", 1, MS)
    made.segment.close()
    totals, no_bins = TrafficTotals(), np.zeros(4, np.int64)
    (path,) = tmp_path.iterdir()
    for batch in read_segment(path, Notes()):
        totals.add(batch)
    segment = totals.groups[0].segment
    totals.add_bulk(Bulk(segment, RPC.stages, "Matmul", no_bins, 0, 178, 0, -1, -1, 0, 0, np.zeros(4, np.int64)))
    sums = totals.groups[0].methods["Matmul"]
    assert sums.calls_count == 23 + 178
    # half of the calls behind each record, and of those before it, are its share
    fast, slow = 1.25 + 19 * 2.5, (2.5 + 64) / 2 + 64 + 64 / 2
    assert fast + slow == 178
    assert sums.total_ns == pytest.approx((20 + fast) * 100_000 + (3 + slow) * MS)
    assert sums.mean_ns == pytest.approx(sums.total_ns / sums.calls_count)
    assert sum(sums.stage_ns) == pytest.approx(sums.total_ns)
    assert sums.sent_bytes == pytest.approx(10 * sums.calls_count)
    assert sums.total_error_ratio > 1, "23 calls tell too little of 178 others"
    assert 0.1 < sums.weighted.time.error / sums.total_ns < 2, "there is one step, from the fast phase to the slow one"
    assert sums.unseen_ratio > 0.5, "three of the 23 stand for most"
    assert totals.groups[0].methods["Add"].total_ns == 5 * MS


def test_nobody_knows_how_long_calls_took_that_were_only_counted_if_the_timed_ones_took_nothing(tmp_path: Path) -> None:
    """A damaged file of such calls ended `trace report --format json` with a traceback."""
    made, totals = Made(tmp_path, "client"), TrafficTotals()
    for _ in range(30):
        made.call("Matmul", [10**9] * 5)
    made.segment.close()
    (path,) = tmp_path.iterdir()
    for batch in read_segment(path, Notes()):
        totals.add(batch)
    group, no_bins = totals.groups[0], np.zeros(4, np.int64)
    totals.add_bulk(Bulk(group.segment, RPC.stages, "Matmul", no_bins, 0, 178, 0, -1, -1, 0, 0, np.zeros(4, np.int64)))
    assert (group.total_ns, group.total_error_ratio) == (0.0, math.inf)
    assert {share.error_ns for share in stage_shares(group)} == {None}


@pytest.mark.parametrize("stamps", [[2**62, 2**62 + 1], [10, 9], [-5, 3], [10, 2**61]])
def test_calls_with_impossible_times_are_damage_and_no_figures(tmp_path: Path, stamps: list[int]) -> None:
    made = Made(tmp_path, "client")
    for number in range(10):
        made.call("PUSH", [10**9 + number, 10**9 + number + 500], SEND, sent=10)
    made.call("PUSH", stamps, SEND, sent=10)
    made.segment.close()
    report = json.loads(as_json(of(tmp_path)))
    (method,) = report["segments"][0]["methods"]
    assert (method["calls_count"], method["total_ns"], method["max_ns"]) == (10, 5000, 500)
    assert report["damaged_count"] == 1


def test_a_few_calls_that_stand_for_others_tell_hardly_anything() -> None:
    few = WeightedSums(count=190.0, squares=19 * 10.0**2, total_ns=1e6, time=Variance(1.0))
    assert few.weighing_count == 19
    assert few.error_ns(10) == pytest.approx(math.hypot(1.96, 190 * 10), rel=1e-3), "all may be as long as the longest"
    some = replace(few, count=200.0, squares=20 * 10.0**2)
    assert some.error_ns(0) == pytest.approx(1.96, rel=1e-3)
    assert some.error_ns(10) == pytest.approx(math.hypot(1.96, 3 / 20 * 2000), rel=1e-3)
    assert replace(some, time=Variance(1.0, 1.0)).error_ns(0) > 12, "one makes all of the variance"
    unequal = replace(some, count=1000.0 + 2 * 5000.0, squares=1000.0 + 2 * 5000.0**2)
    assert unequal.weighing_count < 3, "two of a thousand and two stand for nearly all"
    assert unequal.error_ns(10) > 10_000 * 10


def test_bytes_that_differ_are_estimated_with_an_error(tmp_path: Path) -> None:
    made = Made(tmp_path, "client")
    for number in range(400):
        begin, size = 10**9 + number * MS, 2**20 if number % 50 == 25 else 10
        made.call("Put", [begin, begin + 1, begin + 2, begin + 3, begin + 1000], sent=size)
        made.sampled("Put", 99)
    made.segment.close()
    totals = TrafficTotals()
    (path,) = tmp_path.iterdir()
    for batch in read_segment(path, Notes()):
        totals.add(batch)
    bulk = Bulk(
        totals.groups[0].segment,
        RPC.stages,
        "Put",
        np.zeros(4, np.int64),
        0,
        39_600,
        0,
        -1,
        -1,
        0,
        0,
        np.zeros(4, np.int64),
    )
    totals.add_bulk(bulk)
    sums = totals.groups[0].methods["Put"]
    assert sums.moved_bytes == pytest.approx(100 * (8 * 2**20 + 392 * 10), rel=1e-3)
    assert 0.5 < sums.moved_error_bytes / sums.moved_bytes < 1.5, "eight large ones tell their number within a factor"


def test_records_that_stand_for_none_stand_for_none_of_a_later_interval(tmp_path: Path) -> None:
    made, begin = Made(tmp_path, "client"), 10**9
    for took_ns, count, others in ((MS, 50, 0), (1000, 4, 8000)):
        for _ in range(count):
            begin += 2 * MS
            made.call("Matmul", [begin, begin + 1, begin + 2, begin + took_ns - 1, begin + took_ns], sent=10)
        made.sampled("Matmul", others)
    made.segment.close()
    (path,) = tmp_path.iterdir()
    (batch,) = read_segment(path, Notes())
    assert batch.weights is not None
    assert batch.weights[:50].sum() == 0
    assert batch.weights[50:].sum() == pytest.approx(8000)


def test_calls_for_which_no_record_stands_are_as_the_latest_ones() -> None:
    sums = WeightedSums(count=10.0, squares=10.0, total_ns=1e6, stage_ns=[1e6], sent_bytes=5.0, recv_bytes=0.0)
    assert sums.with_more(3) is sums, "nothing is known of the latest"
    sums.latest = {"a": [100.0, 10.0, 0.0, 100.0, 20.0, 4.0], "b": [300.0, 30.0, 0.0, 300.0, 40.0, 6.0]}
    more = sums.with_more(5)
    assert (more.count, more.total_ns, more.stage_ns, more.sent_bytes) == (15.0, 1e6 + 1000, [1e6 + 1000], 105.0)
    assert (more.more_ns, more.more_bytes) == (150.0, 25.0)
    assert more.weighing_count == pytest.approx(10), "which tell nothing more"
    assert sums.with_more(-1) is sums


def test_no_record_stands_for_calls_before_a_change(tmp_path: Path) -> None:
    made, begin = Made(tmp_path, "client"), 10**9

    def calls(count: int, took_ns: int) -> None:
        nonlocal begin
        for _ in range(count):
            begin += MS
            made.call("Matmul", [begin, begin + 1, begin + 2, begin + took_ns - 1, begin + took_ns], sent=10)

    calls(10, 1000)
    made.sampled("Matmul", 5000)
    made.sampled("Matmul", 700, ending=ENDS)
    calls(3, MS)
    made.sampled("Matmul", 6)
    made.segment.close()
    (path,) = tmp_path.iterdir()
    (batch,) = read_segment(path, Notes())
    assert batch.weights is not None
    assert batch.weights[:10].sum() == pytest.approx(5700)
    assert batch.weights[10:].sum() == pytest.approx(6)


@pytest.mark.parametrize(("size", "comparable"), [(1000, True), (1200, True), (150_000, False)])
def test_other_work_is_not_faster(tmp_path: Path, size: int, comparable: bool) -> None:
    for name, sent, took in (("a", 1000, 2 * MS), ("b", size, MS)):
        made = Made(tmp_path / name, "client")
        for number in range(200):
            begin = 10**9 + number * 10**9
            made.call("Matmul", [begin, begin + 1, begin + 2, begin + took, begin + took + number], sent=sent)
        made.segment.close()
    (method,) = diff(*(read_methods([tmp_path / name], keep_times=True) for name in "ab")).methods
    expected = "faster" if comparable else "not comparable"
    assert {change.verdict for change in method.changes[:2]} == {expected}
    assert comparable or "1,000 B a call in A, 150,000 B in B" in method.changes[0].why


def test_sections_have_titles_of_their_own(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path, service="job")
    for peer in ("tcp://127.0.0.1:1", "ipc://x"):
        with recorder.call("a", peer=peer), recorder.call("b", SEND, peer):
            pass
    trace.stop()
    titles = [line for line in as_text(of(tmp_path)).splitlines() if line.startswith("job (client)")]
    assert len(titles) == len(set(titles)) == 4
    assert {title.split(", ")[0].rpartition(" ")[2] for title in titles} == {"TCP", "IPC"}


SUMMING = """
from ipcbench import trace
from ipcbench.cli import main
for _ in range(7):
    with trace.call("Matmul", peer="tcp://127.0.0.1:5555") as call:
        call.serialized(10); call.sent(); call.received(5)
"""


def test_a_program_tells_its_summary_at_its_end(tmp_path: Path) -> None:
    environment = {**os.environ, "IPCBENCH_TRACE": f"{tmp_path}/t,summary"}
    text = subprocess.run(
        [sys.executable, "-c", SUMMING], env=environment, capture_output=True, text=True, check=True
    ).stderr
    assert "recorded 7 calls" in text
    assert "transport TCP" in text
    assert {"serialize", "send", "wait", "deserialize"} <= set(text.split())


def test_a_stage_that_varies_with_the_size_alone_does_not_vary(tmp_path: Path) -> None:
    """What a line over the size explains is no disturbance; what comes and goes is."""
    chosen = random.Random(1)
    for name, steady in (("steady", True), ("moody", False)):
        made = Made(tmp_path / name, "client")
        for number in range(200):
            begin, size = 10**9 + number * 10**9, chosen.choice((1000, 10_000, 100_000, 5_000_000))
            send = size if steady else chosen.choice((1000, 10_000, 100_000, 5_000_000))
            stamps = [begin, begin + 1000, begin + 1000 + send, begin + 2000 + send, begin + 3000 + send]
            made.call("Matmul", stamps, sent=size)
        made.segment.close()
    assert not found(of(tmp_path / "steady"), "R16")
    report = of(tmp_path / "moody")
    assert found(report, "R16") == [("R16", "client (client), Matmul")]
    assert "The time of send varies" in as_text(report)
    ((group),) = report.gathered.sums.groups
    whole, left = group.methods["Matmul"].stage_variation(1)
    assert left is not None
    assert 0.95 * whole < left <= whole


def test_a_datum_is_followed_through_functions_and_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "x.log"
    log.write_text("".join(
        line
        for n in range(6)
        for place, func in enumerate(("load", "rollout", "train"))
        for line in tq_call(100.0 + n + 0.3 * place, (0.01 * (n + 1), 0.1, 0.05), func, f"id-{n}", f"(W pid={place}) ")
    ))  # fmt: skip
    report = of(log)
    assert [path.trace_id for path in report.gathered.flows.slowest()] == ["id-5", "id-4", "id-3", "id-2", "id-1"]
    assert "Slowest paths" in as_text(report)
    assert main(["trace", "report", str(log), "--trace-id", "ID-3", "--format", "json"]) == 0
    calls = json.loads(capsys.readouterr().out)["calls"]
    assert [(call["method"], call["process"]["host"]) for call in calls] == [
        ("load", "W pid=0"), ("rollout", "W pid=1"), ("train", "W pid=2"),
    ]  # fmt: skip
    assert main(["trace", "report", str(log), "--trace-id", "nothing"]) == 2
    assert "no call has the trace id 'nothing'" in capsys.readouterr().err

    recorder = trace.start(tmp_path / "own", service="job")
    for number in (7, 8):
        for method in "abc":
            with recorder.call(method, trace_id=number):
                pass
    trace.stop()
    assert {path.calls_count for path in of(tmp_path / "own").gathered.flows.slowest()} == {3}
    assert main(["trace", "report", str(tmp_path / "own"), "--trace-id", f"{7:032x}"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines() if " job " in line]


def test_before_and_after_are_what_diff_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        (tmp_path / name).write_text(
            head(V3) + rows(range(1, 60), "M", 0.01, 0.01, 8.9, 0.01, 8.9, 0.2, 8.93, 0.1, 0.1)
        )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert main(["trace", "diff", a, b]) == 0
    told = capsys.readouterr().out
    assert main(["trace", "report", "--before", a, "--after", b]) == 0
    assert capsys.readouterr().out == told
    assert main(["trace", "report", "--before", a]) == 2
    assert main(["trace", "report"]) == 2


@pytest.mark.parametrize("sample", [1, 8])
def test_variation_is_that_of_all_calls(tmp_path: Path, sample: int) -> None:
    """Of a sample, records are no fair part: the slowest call has one always."""
    recorder = trace.start(tmp_path, sample=sample)
    for number in range(400):
        with recorder.call("f", schema=trace.PIPELINE) as call:
            call.mark()
            if number == 300:
                deadline = now_ns() + 20_000_000
                while now_ns() < deadline:
                    pass
            call.mark()
    trace.stop()
    report = make_report(gather([tmp_path]))
    (group,) = report.gathered.sums.groups
    (sums,) = group.methods.values()
    assert sums.timed_count == 400
    assert sums.has_all_records == (sample == 1)
    assert sums.variation_ratio == pytest.approx(sums.histogram.variation_ratio(), rel=0.01)
    assert any(finding.rule == "R16" for finding in report.findings) <= (sample == 1)
    text = as_text(report)
    assert ("with a record (400 in all)" in text) == (sample > 1)


def test_nothing_is_estimated_from_a_few_calls(tmp_path: Path) -> None:
    """Where no total is known, no mean, no share and no stage is, either: only what the timed calls took."""
    report = of_budgeted(tmp_path, 60)
    (segment,) = json.loads(as_json(report))["segments"]
    (method,) = segment["methods"]
    assert 0 < method["timed_count"] < 60
    for figures in (segment, method):
        assert (figures["total_ns"], figures["total_error_ns"]) == (None, None)
        assert figures["total_least_ns"] > 0
        assert {(stage["total_ns"], stage["total_error_ns"], stage["share_ratio"]) for stage in figures["stages"]} == {
            (None, None, None)
        }
    assert (method["mean_ns"], method["failed_count"], method["failed_least_count"]) == (None, None, 0)
    assert method["moved_error_bytes"] is None or method["moved_error_bytes"] > 0.5 * 12_000
    (row,) = (line.split() for line in as_text(report).splitlines() if line.startswith("  Matmul"))
    assert (row[2], row[7], row[9]) == ("–", "≥", "–")
    assert "mean" not in as_text(report).splitlines()[4]
    assert not report.findings


def test_stages_are_estimated_with_their_errors(tmp_path: Path) -> None:
    """A stage that varies is known less well than one that does not."""
    made, begin, schema = Made(tmp_path, "client"), 10**9, Schema("two", ("even", "uneven"))
    for number in range(200):
        begin += 10 * MS
        made.call("step", [begin, begin + MS, begin + MS + (1 + number % 3) * MS], schema)
        made.sampled("step", 4, schema)
    made.segment.close()
    totals, no_bins = TrafficTotals(), np.zeros(4, np.int64)
    (path,) = tmp_path.iterdir()
    for batch in read_segment(path, Notes()):
        totals.add(batch)
    bulk = Bulk(
        totals.groups[0].segment, schema.stages, "step", no_bins, 0, 800, 0, -1, -1, 0, 0, np.zeros(4, np.int64)
    )
    totals.add_bulk(bulk)
    (group,) = totals.groups
    even, uneven, rest = stage_shares(group)
    assert even.ns == pytest.approx(1000 * MS)
    assert uneven.ns == pytest.approx(2000 * MS, rel=0.02)
    assert (rest.ns, rest.error_ns) == (0.0, 0.0)
    assert even.error_ns is not None
    assert uneven.error_ns is not None
    unseen = 3 / 200 * 800
    assert even.error_ns == pytest.approx(unseen * MS, rel=0.01), "only what may have been missed"
    assert uneven.error_ns > math.hypot(unseen * 3 * MS, 800**0.5 * MS / 2)
    assert uneven.text.startswith("≈ ")


def test_a_late_call_stands_only_for_those_it_was_chosen_from(tmp_path: Path) -> None:
    """Slow calls that come after pauses are timed more often than others, and tell nothing of those."""
    made, begin = Made(tmp_path, "client"), 10**9

    def call(took_ns: int) -> None:
        nonlocal begin
        begin += 10 * MS
        made.call("Matmul", [begin, begin + 1, begin + 2, begin + took_ns - 1, begin + took_ns], sent=10)

    for _ in range(10):
        call(1000)
        made.sampled("Matmul", 300)
        made.sampled("Matmul", 100, ending=ENDS_LATE)
        call(MS)
        made.sampled("Matmul", 3)
    made.segment.close()
    (path,) = tmp_path.iterdir()
    (batch,) = read_segment(path, Notes())
    assert batch.weights is not None
    assert batch.weights[1::2].tolist() == [3.0] * 10
    assert batch.weights[::2].sum() == pytest.approx(10 * 400)


def test_a_gate_on_errors_is_sure_or_says_that_it_cannot_tell(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path, budget=0.0005)
    for number in range(3000):
        with suppress(OSError), recorder.call("Matmul"):
            if number:
                raise OSError
    trace.stop()
    methods = read_methods([tmp_path], keep_times=False)
    known = methods.methods["Matmul"].sums.failed_count
    assert known < 2999
    (cannot,) = check(methods, parse_condition(f"Matmul.errors>{known}"))
    assert (cannot.value, cannot.holds) == (None, True)
    assert "may have failed" in cannot.remark
    (sure,) = check(methods, parse_condition("Matmul.errors>=0"))
    assert sure.holds
    (other,) = check(methods, parse_condition("Matmul.mean_us>1e9"))
    assert "timed calls only" in other.remark
    metrics = tmp_path / "metrics"
    with metrics.open("wb") as file:
        EXPORTERS["prometheus"](find([tmp_path]), file)
    assert "ipcbench_failed_calls_total{" not in metrics.read_text()
    assert "≥ " in trace_html(of(tmp_path), [tmp_path])


def test_a_small_error_has_a_digit() -> None:
    assert estimate_text(3513.0, 264.0, 0.0) == "≈ 0.00351 ± 0.0003"
    assert estimate_text(3.5e9, 2e6, 0.0) == "≈ 3,500.000 ± 2.000"
    assert estimate_text(3.5e9, math.inf, 1e6) == "≥ 1.000"
