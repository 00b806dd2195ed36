"""A trace while it grows: nothing is missed, nothing is counted twice, and old readers read the lines of `tail`."""

from __future__ import annotations

import io
import json
import random
import re
from itertools import accumulate
from pathlib import Path

import pytest
from rich.console import Console

from ipcbench import trace
from ipcbench.errors import StoreError
from ipcbench.trace.format import CALL, MARKER, PACK_HEAD, PACKERS
from ipcbench.trace.live.lines import JsonLines, Lines, TqLines, ZmqLines
from ipcbench.trace.live.meter import Meter
from ipcbench.trace.live.screen import bar_cells, draw
from ipcbench.trace.live.watch import Watch
from ipcbench.trace.readers.batch import Batch, Notes
from ipcbench.trace.readers.calls import rows_of
from ipcbench.trace.readers.everything import find
from ipcbench.trace.readers.logs.text import read_log
from ipcbench.trace.report.audit import audit
from ipcbench.trace.report.gather import gather
from tests.trace.logs import V1, head, v1_row
from tests.trace.made import HOSTILE, Made, both_sides, rpc


def printed(folder: Path, lines: Lines, target: Path) -> str:
    text = [*(line for row in find([folder]).in_order() for line in lines.call(row)), *lines.end()]
    target.write_text("\n".join(text) + "\n")
    return target.read_text()


def parsed(path: Path) -> tuple[list[Batch], Notes]:
    notes = Notes()
    return list(read_log([path], notes)), notes


def make_calls(recorder: trace.Recorder, count: int, name: str = "Matmul") -> None:
    for number in range(count):
        rpc(recorder, name, number * 1000)


NAMES = ("Matmul", "a method", "x" * 40, "7", "get 5 6.0", HOSTILE, "ZeroMQ Performance Log - Transport: x",
         "ID Method")  # fmt: skip


def test_zmq_lines_are_read_back_with_the_same_figures(tmp_path: Path) -> None:
    chosen, made = random.Random(1), Made(tmp_path / "t", "client")
    wanted = []
    for number in range(300):
        begin = 10**9 + number * 10**8
        stages = [chosen.randrange(0, 20_000_000) for _ in range(4)]
        stamps = [begin + sum(stages[:index]) for index in range(5)]
        sent, recv = chosen.randrange(2**24), chosen.randrange(2**24)
        made.call(NAMES[number % len(NAMES)], stamps, sent=sent, recv=recv)
        wanted.append((stages, stamps[-1] - begin, sent, recv))
    made.call("step", [1, 2, 3, 4], trace.PIPELINE)
    made.segment.close()
    lines = ZmqLines()
    text = printed(tmp_path / "t", lines, tmp_path / "x.log")
    batches, notes = parsed(tmp_path / "x.log")
    assert lines.left_out_count == 1
    assert (notes.damaged_count, notes.foreign_count) == (0, 0)
    assert notes.counts["throughputs that differ by more than 2 %"] == 0
    assert len({batch.segment.name for batch in batches}) == 1
    calls = [call for batch in batches for call in zip(batch.stage_ns.tolist(), batch.total_ns.tolist(),
             batch.sent_bytes.tolist(), batch.recv_bytes.tolist(), strict=True)]  # fmt: skip
    for (stages, total, sent, recv), (read_stages, read_total, read_sent, read_recv) in zip(wanted, calls, strict=True):
        assert read_stages == pytest.approx(stages, abs=501)
        assert read_total == pytest.approx(total, abs=501)
        assert (read_sent, read_recv) == pytest.approx((sent, recv), abs=6)
    rows = [line for line in text.splitlines() if re.match("^[0-9]", line)]
    assert len(rows) == 300
    assert len(rows[0].split()) == 10


def test_zmq_lines_tell_the_transport_that_was_used(tmp_path: Path) -> None:
    """A header, ids from 1 and a summary for each transport in turn."""
    made, begin = Made(tmp_path / "t", "client"), 10**9
    for peer, count in (("tcp://127.0.0.1:5555", 3), ("ipc:///tmp/x", 2), ("", 1)):
        for _ in range(count):
            begin += 10**9
            stamps = [begin + part * 1_000_000 for part in (0, 1, 2, 7, 8)]
            made.call("Matmul", stamps, sent=2**20, recv=2**20, peer=peer)
    made.segment.close()
    text = printed(tmp_path / "t", ZmqLines(), tmp_path / "x.log")
    assert re.findall(r"Transport: (.*)", text) == ["TCP", "IPC", "unknown"]
    assert re.findall(r"^(\d+) ", text, re.MULTILINE) == ["1", "2", "3", "1", "2", "1"]
    assert re.findall(r"Total RPC Calls: (\d+)", text) == ["3", "2", "1"]
    gathered = gather([tmp_path / "x.log"])
    assert [(group.segment.transport, group.calls_count) for group in gathered.sums.groups] == [
        ("TCP", 3), ("IPC", 2), ("unknown", 1),
    ]  # fmt: skip
    assert not audit(gathered.sums.groups, gathered.notes)


def test_zmq_lines_of_a_log_tell_its_transport(tmp_path: Path) -> None:
    (tmp_path / "old.log").write_text(head(V1, "IPC+SHM") + v1_row(1) + head(V1, "TCP") + v1_row(1) + v1_row(2))
    text = printed(tmp_path / "old.log", ZmqLines(), tmp_path / "new.log")
    assert re.findall(r"Transport: (.*)", text) == ["IPC+SHM", "TCP"]
    assert re.findall(r"^(\d+) ", text, re.MULTILINE) == ["1", "1", "2"]


def test_tq_lines_are_read_back_with_the_same_figures(tmp_path: Path) -> None:
    chosen, wanted = random.Random(2), set()
    workers = [Made(tmp_path / "t", f"worker {number}", 100 + number, number + 1) for number in range(4)]
    for number in range(400):
        begin = 10**9 + chosen.randrange(10**9)
        stages = [chosen.randrange(1, 50_000) * 1000 for _ in range(3)]
        stamps = [begin + sum(stages[:index]) for index in range(4)]
        workers[number % 4].call(f"f {number % 3}", stamps, trace.PIPELINE, span=1 if number % 2 else 0)
        wanted.add((begin // 1000, *(ns // 1000 for ns in stages)))
    workers[0].call("Matmul", [1, 2, 3, 4, 5])
    for worker in workers:
        worker.segment.close()
    lines = TqLines()
    printed(tmp_path / "t", lines, tmp_path / "x.log")
    batches, notes = parsed(tmp_path / "x.log")
    assert lines.left_out_count == 1
    assert notes.damaged_count == notes.counts["ends without a start"] == notes.counts["functions without an end"] == 0
    assert wanted == {
        (round(begin / 1000), *(round(stage / 1000) for stage in stages))
        for batch in batches
        for begin, stages in zip(batch.begin_ns.tolist(), batch.stage_ns.tolist(), strict=True)
    }


def test_tq_lines_of_times_in_ns_are_whole_calls(tmp_path: Path) -> None:
    made, chosen = Made(tmp_path / "t", "worker"), random.Random(7)
    for number in range(500):
        stages_ns = [chosen.randrange(1, 5_000) for _ in range(3)]
        begin_ns = 10**9 + number * 10**6 + chosen.randrange(1_000)
        made.call("f", list(accumulate(stages_ns, initial=begin_ns)), trace.PIPELINE)
    made.segment.close()
    printed(tmp_path / "t", TqLines(), tmp_path / "x.log")
    batches, notes = parsed(tmp_path / "x.log")
    assert sum(len(batch.begin_ns) for batch in batches) == 500
    assert not {key: count for key, count in notes.counts.items() if count and key != "TQ lines"}


def test_tq_lines_hold_bytes_as_transfers(tmp_path: Path) -> None:
    made = Made(tmp_path / "t", "worker")
    made.call(HOSTILE, [10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9], trace.PIPELINE, sent=2**21, recv=2**20)
    made.segment.close()
    printed(tmp_path / "t", TqLines(), tmp_path / "x.log")
    batches, notes = parsed(tmp_path / "x.log")
    assert notes.damaged_count == 0
    sizes = {batch.methods[0]: batch.sent_bytes.tolist() + batch.recv_bytes.tolist() for batch in batches}
    assert sizes["TQ_CLIENT_GET"] == [0, 2**20]
    assert sizes["TQ_CLIENT_PUT"] == [2**21, 0]


def test_json_lines_hold_everything(tmp_path: Path) -> None:
    both_sides(tmp_path / "t", 3)
    calls = [json.loads(line) for line in printed(tmp_path / "t", JsonLines(), tmp_path / "x").splitlines()]
    assert [call["role"] for call in calls] == [*["server", "client"] * 3, "client"]
    assert calls[-1]["method"] == HOSTILE
    assert calls[1]["stages_ns"] == {"serialize": 100_000, "send": 50_000, "wait": 1_250_000, "deserialize": 100_000}
    assert calls[0]["span_id"] == calls[1]["span_id"] == f"{1:016x}"


def test_a_watch_meets_every_call_once_across_files_and_processes(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    watch = Watch(folder)
    assert list(watch.new_calls()) == list(watch.growths()) == []
    recorder = trace.start(folder, service="client")
    seen: list[int] = []
    for _ in range(3):
        make_calls(recorder, 6000)
        seen += [row.sent_bytes for calls in watch.new_calls() for row in rows_of(calls)]
    assert len(list(folder.glob("*.ipct"))) > 1, "segments were rotated"
    Made(folder, "late", 7).call("Late", [1, 2, 3, 4, 5])
    trace.stop()
    assert [row.method for calls in watch.new_calls() for row in rows_of(calls)] == ["Late"]
    assert seen == [number * 1000 for number in range(6000)] * 3
    for path in folder.iterdir():
        path.unlink()
    assert list(watch.new_calls()) == []
    (folder / "t-x.ipct").write_bytes(b"nothing of the kind" * 1000)
    assert list(watch.new_calls()) == []
    assert "not a file of a trace" in watch.problems["t-x.ipct"]


def test_a_call_that_completes_late_is_met_late(tmp_path: Path) -> None:
    made, watch = Made(tmp_path / "t", "client"), Watch(tmp_path / "t")
    made.call("first", [1, 2, 3, 4, 5])
    hole = made.segment.take()
    made.call("second", [1, 2, 3, 4, 5])
    assert [row.method for calls in watch.new_calls() for row in rows_of(calls)] == ["first", "second"]
    ids = [made.name(name) for name in ("first", trace.RPC.text)]
    head = PACK_HEAD(CALL, 0, 4, trace.RPC.role, *ids, 0, 0, 0)
    PACKERS[4](made.segment.buffer, hole, head, 0, 0, 0, 1, 2, 3, 4, 5, 77, 0, hole ^ MARKER)
    assert [row.sent_bytes for calls in watch.new_calls() for row in rows_of(calls)] == [77]
    assert list(watch.new_calls()) == []
    made.segment.close()


def test_a_meter_counts_what_is_new_with_and_without_records(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    recorder = trace.start(folder, sample=50, service="client")
    make_calls(recorder, 500)
    meter = Meter(Watch(folder), 2.0)
    meter.look(100.0)
    assert meter.reading(100.0).methods == ()
    make_calls(recorder, 300)
    make_calls(recorder, 100, HOSTILE)
    meter.look(101.0)
    reading = meter.reading(101.0)
    assert {name: sums.calls_count for name, _, sums in reading.methods} == {"Matmul": 300, HOSTILE: 100}
    assert reading.seconds == pytest.approx(1.0)
    for _, _, sums in reading.methods:
        assert 0 < (sums.quantile_ns(0.5) or 0) <= (sums.quantile_ns(0.99) or 0)
        assert sums.total_ns > 0
        assert sums.stage_ns.keys() == set(trace.RPC.stages)
    meter.look(104.0)
    assert meter.reading(104.0).methods == (), "the window is over"
    assert meter.reading(104.0).seen_count == 900


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_screen_shows_figures_and_commands_nothing(tmp_path: Path, width: int) -> None:
    folder = tmp_path / "t"
    meter = Meter(Watch(folder), 2.0)
    meter.look(1.0)

    def shown(at_s: float) -> str:
        console = Console(file=io.StringIO(), width=width, highlight=False)
        console.print(draw(meter.reading(at_s), "t", width, ["bad\x1b[2J"]))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "waiting" in shown(1.0)
    both_sides(folder, 10)
    meter.look(2.0)
    text = shown(2.0)
    assert "\x1b" not in text
    assert all(len(line) <= width for line in text.splitlines())
    if width >= 80:
        assert re.search(r"Matmul +10\.0 +1\.50 ms +1\.50 ms +28\.6 +0\.0150 +" + "1 +█+▓?▒" * (width > 80), text)
        assert "Matmul (" in text


def test_bars_are_full_and_in_proportion() -> None:
    assert bar_cells([1, 1, 2], 8) == [2, 2, 4]
    assert bar_cells([0, 0], 8) == [0, 0]
    assert sum(bar_cells([0.1, 5, 3, 0.01], 24)) == 24


def test_files_of_another_kind_are_an_error_for_those_who_name_them(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        find([tmp_path / "absent"])
