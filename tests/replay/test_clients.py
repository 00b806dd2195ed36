"""From traces and logs to traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipcbench import trace
from ipcbench.errors import StoreError
from ipcbench.replay.clients import read_traffic
from ipcbench.replay.traffic import Traffic
from ipcbench.trace.readers.batch import UNKNOWN
from ipcbench.trace.schema import SERVER
from tests.trace.logs import V1, V3, head, row, v1_row
from tests.trace.made import Made, record, rpc
from tests.trace.reading import in_threads

COLUMNS = ("gap_ns", "before_ns", "after_ns", "server_ns", "total_ns", "sent_bytes", "recv_bytes")


def write_calls(folder: Path, *calls: tuple[list[int], list[int]]) -> None:
    """Write calls of a client by begin and ends of their stages, and the same of the work of its server."""
    client, server = Made(folder, "client", 100), Made(folder, "server", 200)
    for span, (stamps, served) in enumerate(calls, 1):
        client.call("Do", stamps, sent=1000, recv=2000, span=span)
        server.call("Do", served, SERVER, span=span)
    client.segment.close()
    server.segment.close()


def test_a_trace_of_both_sides_has_gaps_and_the_servers_work(tmp_path):
    calls = []
    begin = 1_000_000
    for gap in (0, 7, 8):
        begin += gap
        sent = begin + 30
        calls.append(([begin, begin + 10, sent, sent + 100, sent + 105], [sent + 10, sent + 10, sent + 50, sent + 50]))
        begin += 135
    write_calls(tmp_path, *calls)
    traffic = read_traffic(tmp_path)
    (thread,) = traffic.threads
    assert traffic.methods == ("Do",)
    assert (traffic.gaps_known, traffic.server_known, traffic.remarks) == (True, True, ())
    columns = [getattr(thread, name).tolist() for name in COLUMNS]
    assert columns == [[0, 7, 8], *([value] * 3 for value in (10, 5, 40, 135, 1000, 2000))]
    assert traffic.recorded_ns == 3 * 135 + 15


@pytest.mark.parametrize(
    ("first", "second", "took_ns", "takes_turns"),
    [
        (range(0, 60, 2), range(1, 60, 2), 90, True),
        (range(0, 60, 2), range(1, 60, 2), 130, False),
        (range(30), range(30, 60), 90, False),
        (range(0, 60, 2), range(1, 60, 2), 5, False),
    ],
    ids=["in turns", "together", "one after another", "seldom"],
)
def test_clients_whose_calls_never_overlap_wait_for_one_another(
    tmp_path: Path, first: range, second: range, took_ns: int, takes_turns: bool
) -> None:
    for pid, begins in enumerate((first, second), 100):
        client = Made(tmp_path, "client", pid)
        for begin in begins:
            at = 1_000_000 + 100 * begin
            client.call("Do", [at, at, at, at + took_ns, at + took_ns], sent=1, recv=1)
        client.segment.close()
    traffic = read_traffic(tmp_path)
    assert traffic.takes_turns is takes_turns
    assert any("wait for one another" in each for each in traffic.remarks) is takes_turns


def test_without_the_servers_records_its_work_is_unknown(tmp_path):
    record(tmp_path, 1)
    traffic = read_traffic(tmp_path)
    assert not traffic.server_known
    assert traffic.threads[0].server_ns.tolist() == [UNKNOWN]


def test_a_server_that_begins_while_its_client_still_sends_is_not_cut(tmp_path):
    begin = 1_000_000
    client = [begin, begin, begin + 500, begin + 520, begin + 520]
    write_calls(tmp_path, (client, [begin, begin, begin + 500, begin + 500]))
    assert read_traffic(tmp_path).threads[0].server_ns.tolist() == [500]


def write_clients(folder: Path, *servers: list[tuple[int, int, int]]) -> Traffic:
    """Write the calls of two clients; each server has worked for a client from then to then."""
    clients = [Made(folder, "client", 100, tid) for tid in (100, 101)]
    for tid, served in enumerate(servers):
        server = Made(folder, "server", 200, tid)
        for client, begun, done in served:
            span = 1000 * client + 100 * tid + begun
            clients[client].call("Do", [begun - 5, begun - 5, begun - 2, done + 9, done + 9], sent=1, recv=1, span=span)
            server.call("Do", [begun - 1, begun, done, done], SERVER, span=span)
        server.segment.close()
    for client in clients:
        client.segment.close()
    return read_traffic(folder)


@pytest.mark.parametrize(("servers", "services"), [
    ([[(0, 10, 20), (1, 20, 30), (0, 40, 50), (1, 50, 60)]], [[0, 1]]),
    ([[(0, 10, 20), (1, 15, 25)]], [[0], [1]]),
    ([[(0, 10, 20)], [(1, 20, 30)]], [[0], [1]]),
    ([[(0, 10, 20), (1, 20, 30)], [(0, 40, 50)]], [[0], [1]]),
], ids=["one at a time", "works that overlap", "a thread for each client", "a client of two threads"])  # fmt: skip
def test_clients_share_a_server_if_one_thread_served_one_at_a_time(tmp_path, servers, services):
    assert write_clients(tmp_path, *servers).services == services


def test_clients_of_a_server_that_did_not_begin_together_are_remarked(tmp_path):
    remarks = write_clients(tmp_path, [(0, 10, 20), (1, 900, 910)]).remarks
    assert any("began up to 890 ns apart" in remark for remark in remarks)


def test_every_thread_is_a_client_and_failed_calls_are_left_out(tmp_path):
    recorder = trace.start(tmp_path)

    def work(_: int) -> None:
        rpc(recorder, "Do")
        with pytest.raises(ValueError, match="no"), recorder.call("Do"):
            raise ValueError("no")

    for _ in range(2):
        in_threads(1, work)
    trace.stop()
    traffic = read_traffic(tmp_path)
    assert [len(thread.method) for thread in traffic.threads] == [1, 1]
    assert any("2 calls failed" in remark for remark in traffic.remarks)


def test_calls_without_records_make_gaps_unknown(tmp_path):
    record(tmp_path, 40, 4)
    traffic = read_traffic(tmp_path)
    assert not traffic.gaps_known
    assert not traffic.threads[0].gap_ns.any()
    assert any("have no record" in remark for remark in traffic.remarks)


def of_log(folder: Path, text: str) -> Traffic:
    (folder / "zmq_performance.log").write_text(text, encoding="utf-8")
    return read_traffic(folder / "zmq_performance.log")


def test_a_log_has_no_gaps_and_its_segments_follow_one_another(tmp_path):
    traffic = of_log(tmp_path, head(V1) + v1_row(1) + v1_row(2) + v1_row(1))
    (thread,) = traffic.threads
    assert not traffic.gaps_known
    assert not traffic.server_known
    assert thread.before_ns.tolist() == [1_000_000] * 3
    assert thread.sent_bytes.tolist() == [2**20] * 3
    assert read_traffic(tmp_path).calls_count == len(thread.method) == 3


def test_the_servers_column_of_a_log_is_the_least_that_it_worked(tmp_path):
    traffic = of_log(tmp_path, head(V3) + row(1, "M", 1, 1, 6, 1, 9, 4, 9, 10, 10))
    (thread,) = traffic.threads
    assert not traffic.server_known
    assert (thread.server_ns.tolist(), thread.server_most_ns.tolist()) == ([4_000_000], [7_000_000])


@pytest.mark.parametrize("text", ["", "nothing of the kind\n", head(V1)])
def test_nothing_to_replay_is_one_clear_error(tmp_path: Path, text: str):
    with pytest.raises(StoreError, match="no calls to replay"):
        of_log(tmp_path, text)


def test_a_pipeline_has_no_requests_and_replies(tmp_path):
    recorder = trace.start(tmp_path)
    with recorder.call("step", trace.PIPELINE) as step:
        step.mark()
        step.mark()
    trace.stop()
    with pytest.raises(StoreError, match="none has a request and a reply"):
        read_traffic(tmp_path)


def test_of_calls_inside_others_the_outer_ones_are_replayed(tmp_path):
    recorder = trace.start(tmp_path)
    with recorder.call("Do") as call:
        call.serialized(10)
        with recorder.call("socket", trace.Schema("exchange", ("send", "wait"), 1)) as inner:
            inner.mark()
        call.sent()
        call.received(10)
        call.buffers("float32[5]")
        call.reply_buffers("float32[7]")
    trace.stop()
    traffic = read_traffic(tmp_path)
    assert traffic.methods == ("Do",)
    assert traffic.layouts == {"Do": "float32[5]>float32[7]"}
    assert traffic.remarks == ("1 call is the inside of another call, and is not replayed again.",)


def test_impossible_calls_are_left_out_and_counted(tmp_path):
    odd = row(2, "M", 1, 1, 1, 1, -4, 10, 10, 0) + row(3, "M", 1, 1, 1, 1, 4, 2e6, 10, 0)
    traffic = of_log(tmp_path, head(V1) + v1_row(1) + odd)
    assert traffic.calls_count == 1
    assert any(remark.startswith("2 calls have impossible times or sizes") for remark in traffic.remarks)
