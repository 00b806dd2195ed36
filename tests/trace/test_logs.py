"""The readers of zmq_performance.log and of [TQ-…] lines: every figure is read, and damage is counted."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from ipcbench.errors import StoreError
from ipcbench.trace.readers.batch import Batch, Notes
from ipcbench.trace.readers.logs.text import grouped, read_log
from ipcbench.trace.readers.logs.zmq_log import HEADLESS
from ipcbench.trace.report.audit import audit
from ipcbench.trace.report.gather import gather
from tests.trace.logs import V1, V2, V3, V4, head, pipeline, row, tq_call, v1_row


def read(path: Path, text: str | bytes) -> tuple[list[Batch], Notes]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    notes = Notes()
    return list(read_log([path], notes)), notes


def calls(batches: list[Batch]) -> list[tuple[str, int, str, int]]:
    return [
        (batch.segment.name, number, batch.methods[method], total)
        for batch in batches
        for number, method, total in zip(
            batch.ids.tolist(), batch.method.tolist(), batch.total_ns.tolist(), strict=True
        )
    ]


@pytest.mark.parametrize("rule", [116, 120, 130, 140])
def test_every_set_of_columns_is_read_by_its_names(tmp_path: Path, rule: int) -> None:
    text = head(V1, rule=rule) + v1_row(1)
    text += head(V2, rule=rule) + row(1, "A", 1, 2, 6, 1, 10, 10.5, 4, 8)
    text += head(V3, "IPC+SHM+OURS", " (Ours)", rule) + row(1, "A", 1, 2, 6, 1, 10, 5, 10.5, 4, 8)
    text += head(V4, "IPC+SHM", " (OTP)", rule) + row(1, "A", 3, 1, 2, 6, 1, 5, 10.5, 4, 8)
    batches, notes = read(tmp_path / "x.log", text)
    assert [batch.total_ns.tolist() for batch in batches] == [[10_000_000], [10_500_000], [10_500_000], [10_500_000]]
    for batch in batches:
        assert batch.stage_ns.tolist() == [[1_000_000, 2_000_000, 6_000_000, 1_000_000]]
    assert [None if batch.server_ns is None else batch.server_ns.tolist() for batch in batches] == [
        None, None, [5_000_000], [5_000_000],
    ]  # fmt: skip
    assert batches[3].outside_ns is not None
    assert batches[3].outside_ns.tolist() == [3_000_000]
    assert [batch.sent_bytes.tolist() for batch in batches] == [[1024 * 1024], [4096], [4096], [4096]]
    assert [batch.segment.bytes_are_partial for batch in batches] == [False, False, True, True]
    assert notes.damaged_count == 0


def test_segments_restarts_gaps_and_odd_rows(tmp_path: Path) -> None:
    text = head(V1) + v1_row(1, "Init") + v1_row(2, "a method") + v1_row(3, "x" * 30) + "...\n" + v1_row(7)
    text += "\n" + "=" * 120 + "\nSUMMARY\n" + "=" * 120 + "\nTotal RPC Calls: 98\nAverage Total Time: 1.0 ms\n"
    text += v1_row(1) + v1_row(2) + v1_row(3)[:40] + "\n" + v1_row(123456) + "junk here\r\n" + "4     Mat"
    batches, notes = read(tmp_path / "x.log", b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert [call[:3] for call in calls(batches)] == [
        ("segment 1", 1, "Init"), ("segment 1", 2, "a method"), ("segment 1", 3, "x" * 30), ("segment 1", 7, "Matmul"),
        ("segment 2", 1, "Matmul"), ("segment 2", 2, "Matmul"), ("segment 2", 123456, "Matmul"),
    ]  # fmt: skip
    assert notes.damaged_count == 3
    assert notes.counts["left out by an ellipsis"] == 1
    assert notes.claims[0].values == {"Total RPC Calls": 98.0, "Average Total Time": 1.0}


def test_two_clients_in_one_log_are_kept_apart(tmp_path: Path) -> None:
    order = [("A", 1), ("A", 2), ("B", 1), ("A", 3), ("B", 2), ("B", 3), ("A", 4), ("B", 4)]
    batches, _ = read(tmp_path / "x.log", head(V1) + "".join(v1_row(number, name) for name, number in order))
    assert {(segment, name) for segment, _, name, _ in calls(batches)} == {("segment 1", "A"), ("segment 2", "B")}


def test_a_restart_that_lives_longer_keeps_its_own_calls(tmp_path: Path) -> None:
    text = head(V1) + "".join(v1_row(number, "first") for number in range(1, 4))
    text += "".join(v1_row(number, "second") for number in range(1, 9))
    batches, _ = read(tmp_path / "x.log", text)
    assert {(segment, name) for segment, _, name, _ in calls(batches)} == {
        ("segment 1", "first"), ("segment 2", "second"),
    }  # fmt: skip


@pytest.mark.parametrize("shared", ["N/A", "0af7651916cd43dd"])
def test_ten_calls_of_one_trace_id_are_ten_calls(tmp_path: Path, shared: str) -> None:
    lines = [line for number in range(10) for line in tq_call(100.0 + number, (0.1, 0.5, 0.2), "f", shared)]
    batches, notes = read(tmp_path / "x.log", "".join(lines))
    assert len(calls(batches)) == 10
    assert {call[3] for call in calls(batches)} == {800_000_000}
    assert not notes.counts["ends without a start"]


def test_sixty_four_interleaved_calls_pair_exactly(tmp_path: Path) -> None:
    chosen = random.Random(1)
    wanted, lines = set(), []
    for _ in range(64 * 20):
        begin = round(1000 + chosen.uniform(0, 20), 6)
        parts = tuple(round(chosen.uniform(0.01, 0.5), 6) for _ in range(3))
        lines += tq_call(begin, parts)
        wanted.add((round(begin * 1e6), *(round(part * 1e6) for part in parts)))
    lines.sort(key=lambda line: float(line.rpartition("=")[2]))
    batches, notes = read(tmp_path / "x.log", "".join(lines))
    found = {
        (round(begin / 1000), *(round(part / 1000) for part in parts))
        for batch in batches
        for begin, parts in zip(batch.begin_ns.tolist(), batch.stage_ns.tolist(), strict=True)
    }
    assert len(calls(batches)) == 64 * 20
    assert found == wanted
    assert sum(notes.counts[what] for what in ("ends without a start", "functions without an end")) == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("width", "broken", "put"), [(1, 0, 1), (1, 0.3, 0.5), (1, 0.3, 0), (64, 0, 0), (64, 0.2, 0.5)]
)
def test_each_call_is_read_as_it_was(tmp_path: Path, seed: int, width: int, broken: float, put: float) -> None:
    """Calls that break off, are tried again, overlap, put nothing, and all have the trace id N/A."""
    workers = [
        pipeline(random.Random(1000 * seed + worker), 400, width=width, broken_share=broken, put_share=put,
                 prefix=f"\x1b[36m(Worker pid={worker})\x1b[0m ")
        for worker in range(3)
    ]  # fmt: skip
    chosen = random.Random(seed)
    for lines, _ in workers:  # several threads of a worker may write a little out of order
        for place in range(1, len(lines)):
            a, b = (float(line.rpartition("=")[2]) for line in lines[place - 1 : place + 1])
            if chosen.random() < 0.2 and b - a < 0.0005:
                lines[place - 1 : place + 1] = lines[place], lines[place - 1]
    mixed, queues = [], [list(reversed(lines)) for lines, _ in workers]
    while any(queues):
        mixed.append(chosen.choice([queue for queue in queues if queue]).pop())
    batches, notes = read(tmp_path / "x.log", "".join(mixed))
    for worker, (_, truth) in enumerate(workers):
        for func, wanted in truth.calls_us.items():
            found = [
                (total // 1000, *(part // 1000 for part in parts))
                for batch in batches
                if batch.segment.worker == f"Worker pid={worker}" and batch.methods[0] == func
                for total, parts in zip(batch.total_ns.tolist(), batch.stage_ns.tolist(), strict=True)
            ]
            assert sorted(found) == sorted(wanted)
    assert notes.counts["functions without an end"] == sum(truth.broken_count for _, truth in workers)
    assert not notes.counts["ends without a start"]
    assert not notes.counts["stages without a function"]


def test_tq_lines_in_a_noisy_log(tmp_path: Path) -> None:
    ray = "\x1b[36m(WorkerDict pid=12, ip=10.0.0.2)\x1b[0m INFO pid=99 "
    no_times = [line.rpartition(" | timestamp")[0] + "\n" for line in tq_call(9.0, func="late")]
    no_put, opened = tq_call(7.0, func="quiet")[:5], tq_call(8.0, func="open")[:2]
    glued = "50%|### [TQ-LOG] op=TQ_GET | func=f | stage=START[TQ-LOG] op=TQ_GET | func=f | stage=END | duration=0.5s\n"
    detail = (
        "[TQ-DETAIL] trace_id=N/A | func=None | pid=1 | stage=TQ_CLIENT_PUT_START | batch_size=torch.Size([32, 4]) | "
        "data_size_mb=2.00 | timestamp=1.0\n"
        "[TQ-DETAIL] trace_id=N/A | func=None | pid=1 | stage=TQ_CLIENT_PUT_END | duration=0.500000s | "
        "throughput_mbps=4.00 | timestamp=1.5 [repeated 3x across cluster]\n"
        "[TQ-DETAIL] trace_id=N/A | stage=TQ_CLIENT_GET_END | data_size_mb=1.00 | duration=250ms | timestamp=1.5\n"
    )
    broken = "[TQ-TRACE] trace_id=N/A | func=f | stage=GET_END | duration=soon\n[TQ-TRACE] nothing\n[TQ-OTHER] x=1\n"
    text = "".join([*tq_call(5.0, prefix=ray), "loss=0.1\n", *no_times, *no_put, *opened]) + glued + detail + broken
    batches, notes = read(tmp_path / "x.log", text)
    times_ms = {(batch.methods[0], batch.segment.worker): (batch.total_ns / 10**6).tolist() for batch in batches}
    assert times_ms == {
        ("f", "WorkerDict pid=12 ip=10.0.0.2"): [600], ("late", ""): [600], ("quiet", ""): [300],
        ("TQ_GET", ""): [500], ("TQ_CLIENT_PUT", ""): [500], ("TQ_CLIENT_GET", ""): [250],
    }  # fmt: skip
    sizes = {batch.methods[0]: (batch.sent_bytes.tolist(), batch.recv_bytes.tolist()) for batch in batches}
    assert sizes["TQ_CLIENT_PUT"] == ([2 * 2**20], [0])
    assert sizes["TQ_CLIENT_GET"] == ([0], [2**20])
    counts = [notes.counts[what] for what in
              ("functions without an end", "functions that put nothing", "repeated lines not in the log")]  # fmt: skip
    assert (notes.damaged_count, *counts) == (3, 1, 1, 2)


def test_rotated_and_compressed_parts_are_one_log(tmp_path: Path) -> None:
    old = tmp_path / "x.log.2.gz"
    old.write_bytes(gzip.compress((head(V1) + v1_row(1) + v1_row(2)).encode()))
    (tmp_path / "x.log.1").write_text(v1_row(3))
    (tmp_path / "x.log").write_text(v1_row(4))
    gathered = gather([tmp_path])
    assert grouped([tmp_path / "x.log", tmp_path / "x.log.1", old]) == [[old, tmp_path / "x.log.1", tmp_path / "x.log"]]
    assert [group.calls_count for group in gathered.sums.groups] == [4]
    old.write_bytes(old.read_bytes()[:-12])
    assert gather([tmp_path]).notes.damaged_count == 1


@pytest.mark.parametrize("older", [
    ("x.log.2025-12-31", "x.log.2026-01-01"), ("x.log.2026-01-01_09", "x.log.2026-01-01_10.gz"),
    ("x.log.2026-01-01_09-05", "x.log.2026-01-01_10-00"), ("x.log.2026-01-01_09-05-00", "x.log.2026-01-01_09-05-59"),
    ("x.log-20251231.gz", "x.log-20260101"), ("x.log-2026010109", "x.log-2026010110"),
    ("x.log-1767225599", "x.log-1767225600.gz"), ("x.log-20260101", "x.log-2026010201"),
])  # fmt: skip
def test_parts_that_are_named_by_dates_are_one_log(tmp_path: Path, older: tuple[str, str]) -> None:
    first, second = (tmp_path / name for name in older)
    for path, text in (first, head(V1) + v1_row(1) + v1_row(2)), (second, v1_row(3)), (tmp_path / "x.log", v1_row(4)):
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    assert grouped([tmp_path / "x.log", second, first]) == [[first, second, tmp_path / "x.log"]]
    gathered = gather([tmp_path])
    assert [group.calls_count for group in gathered.sums.groups] == [4]
    assert not audit(gathered.sums.groups, gathered.notes)


@pytest.mark.parametrize("name", ["x.log.2026", "x.log.99", "run-12345678", "x-1.log", "x.log-20261", "x.log-99999999"])
def test_other_names_with_numbers_are_no_dates(tmp_path: Path, name: str) -> None:
    dated = tmp_path / "x.log-20260101"
    assert grouped([dated, tmp_path / name])[0][-1] == dated


def test_rows_without_a_header_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(head(V1) + v1_row(1))
    foreign = "12 apples 1.0 2.0\n2026-01-01 10:00:00 1.0 1.0 1.0 1.0 1.0\n7 x 1 2 3 4 5 6\n"
    (tmp_path / "b.log").write_text(v1_row(7, "a method") + foreign + v1_row(8))
    (tmp_path / "c.log").write_text(v1_row(9) + head(V1) + v1_row(1))
    gathered = gather([tmp_path])
    assert [(each.what, each.said) for each in audit(gathered.sums.groups, gathered.notes)] == [(HEADLESS, 3)]
    with pytest.raises(StoreError, match=f"{HEADLESS}: 2"):
        gather([tmp_path / "b.log"])


def test_a_compressed_log_is_damaged_only_if_it_is(tmp_path: Path) -> None:
    text = (head(V1) + v1_row(1) + v1_row(2)).encode()
    whole, other = gzip.compress(text), gzip.compress(v1_row(3).encode())
    padding = b"\0" * 600_000
    for data, calls_count in (whole, 2), (whole + other, 3), (whole + padding + other, 3), (whole + padding[:512], 2):
        batches, notes = read(tmp_path / "x.log.gz", data)
        assert (len(calls(batches)), notes.damaged_count, list(notes.examples)) == (calls_count, 0, [])
    for cut in range(2, len(whole)):
        examples = read(tmp_path / "x.log.gz", whole[:cut])[1].examples
        assert examples[0].endswith("the compressed file breaks off"), (cut, examples)
    assert read(tmp_path / "x.log.gz", whole + b"rest")[1].damaged_count == 1


def test_damage_in_a_mixed_log_is_named_by_its_line(tmp_path: Path) -> None:
    text = head(V1) + v1_row(1) + "".join(tq_call(5.0)) + "junk\n" + v1_row(2) + "3     Matmul   1.0 x 1 1 1 1 1 1\n"
    batches, notes = read(tmp_path / "x.log", text)
    assert len(calls(batches)) == 3
    assert [example.removeprefix(f"{tmp_path}/").split(":")[1] for example in notes.examples] == ["14", "16"]


def test_every_form_of_tq_line_counts_once(tmp_path: Path) -> None:
    """Ordinary lines, lines with other units, and lines with seconds since 1970, which have ten digits."""
    for begin in (5.0, 1_700_000_000.0):
        lines = tq_call(begin)
        batches, notes = read(tmp_path / "x.log", "".join([*lines, lines[2].replace("0.100000s", "100 ms")]))
        assert [batch.stage_ns.tolist() for batch in batches] == [[[100_000_000, 200_000_000, 300_000_000]]]
        assert (notes.counts["TQ lines"], notes.damaged_count) == (9, 0)


def test_a_transfer_larger_than_any_is_damaged(tmp_path: Path) -> None:
    text = "[TQ-DETAIL] stage=TQ_CLIENT_PUT_END | duration=1000000000s | throughput_mbps=1000000000.00\n"
    assert read(tmp_path / "x.log", text)[1].damaged_count == 1
