"""Both sides of a call: its context, its server's record, and the parts of the wait that follow from the two."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from ipcbench import trace
from ipcbench.trace.buffers import describe, wide_bytes
from ipcbench.trace.readers.batch import UNKNOWN, Batch, Notes, Segment
from ipcbench.trace.readers.join import find_servers
from ipcbench.trace.record.context import CONTEXT_BYTES, Context, parse_traceparent, unpack_context
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.report.findings import TraceFinding
from ipcbench.trace.report.gather import gather
from ipcbench.trace.report.render import Report, as_csv, as_json, as_markdown, as_text, make_report
from ipcbench.trace.report.split import Split
from ipcbench.trace.schema import SERVER
from ipcbench.util.clock import now_ns
from tests.trace import made
from tests.trace.reading import ROOT, batches, calls_count, in_threads, run_program
from tests.trace.server import WORK_NS, work

PARTS = ("request", "queue", "server", "reply")


def joined(*folders: Path) -> list[dict[str, Any]]:
    """Return the client's calls that were joined: method, bytes sent, and the four parts."""
    calls = []
    for batch in batches(*folders):
        if batch.server_ns is not None:
            columns: Any = [batch.request_ns, batch.queue_ns, batch.server_ns, batch.reply_ns]
            for row in np.flatnonzero(batch.server_ns != UNKNOWN).tolist():
                parts = {name: int(column[row]) for name, column in zip(PARTS, columns, strict=True)}
                assert sum(parts.values()) == int(batch.stage_ns[row, batch.stages.index("wait")])
                method = batch.methods[int(batch.method[row])]
                calls.append({"method": method, "sent": int(batch.sent_bytes[row]), **parts})
    return calls


def rpc(method: str, exchange: Callable[[dict[str, Any]], object], sent_bytes: int = 10, trace_id: Any = None) -> None:
    """Make a call whose request carries its context."""
    with trace.call(method, trace_id=trace_id) as call:
        request: dict[str, Any] = {"method": method}
        trace.inject(request, call)
        call.serialized(sent_bytes)
        call.sent()
        exchange(request)
        call.received(20)


def serve(request: dict[str, Any]) -> None:
    with trace.serve(request, "Compute"):
        pass


# ------------------------------------------------------------------------------------------------ contexts


@given(st.tuples(*[st.integers(0, 2**64 - 1)] * 3), st.sampled_from([True, False, None]), st.integers(0, 2**32 - 1),
       st.integers(0, 2**62))  # fmt: skip
def test_a_context_is_forty_bytes(ids: tuple[int, int, int], sampled: bool | None, boot: int, sent_ns: int) -> None:
    context = Context(*ids, sampled, boot, sent_ns)
    assert len(context.packed()) == CONTEXT_BYTES
    assert unpack_context(b"xyz" + context.packed(), 3) == context
    assert trace.extract({"ipcbench": msgpack.unpackb(msgpack.packb(context.packed()))}) == context


@given(st.binary(max_size=60))
def test_other_bytes_are_no_context(data: bytes) -> None:
    assert unpack_context(data) is None or data[:2] == b"\xc7\x9d"
    assert trace.extract({"ipcbench": data}) is None or data[:2] == b"\xc7\x9d"


def test_contexts_as_text() -> None:
    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    context = parse_traceparent(text)
    assert context == Context(0x0AF7651916CD43DD, 0x8448EB211C80319C, 0xB7AD6B7169203331, True)
    assert context is not None
    assert context.traceparent == text
    assert trace.extract({"traceparent": text}) == trace.extract(text) == context
    assert trace.extract(text[:-2] + "00") == context._replace(sampled=False)
    for bad in ("", "ff" + text[2:], text.replace("b7ad6b7169203331", "0" * 16), text + "-x", text[:-1], "00-x"):
        assert trace.extract(bad) is None


def test_a_call_without_a_record_asks_for_none(tmp_path: Path) -> None:
    trace.start(tmp_path, sample=1000)
    for turn in range(2):
        carrier: dict[str, Any] = {}
        with trace.call("Compute") as call:
            trace.inject(carrier, call)
            trace.inject(carrier, call, text=True)
        assert ("traceparent" in carrier) == (turn == 0)
        with trace.serve(carrier, f"turn {turn}"), trace.serve(carrier["ipcbench"], f"again {turn}"):
            pass
    trace.stop()
    assert {name for batch in batches(tmp_path) for name in batch.methods} >= {"Compute", "turn 0", "again 0"}
    assert calls_count(tmp_path) == 6


def test_without_a_traced_client_the_server_decides(tmp_path: Path) -> None:
    carrier: dict[str, Any] = {}
    with trace.call("off") as call:
        trace.inject(carrier, call)
        trace.inject(carrier, call, text=True)
    assert carrier == {}
    trace.start(tmp_path)
    with trace.serve(carrier, "x"), trace.serve(Context(0, 0, 0, None).packed(), "y"):
        pass
    trace.stop()
    assert sum(len(batch.ids) for batch in batches(tmp_path)) == 2


# ------------------------------------------------------------------------------------------------ two processes


def of_client(report: Report) -> dict[str, Any]:
    """Return what the report's JSON says of the client."""
    segments: list[dict[str, Any]] = json.loads(as_json(report))["segments"]
    return next(segment for segment in segments if segment["segment"] == "client (client)")


def finding_of(report: Report, rule: str) -> TraceFinding:
    """Return the report's only finding by a rule."""
    (finding,) = (finding for finding in report.findings if finding.rule == rule)
    return finding


def test_transport_is_reported_as_what_it_is(tmp_path: Path) -> None:
    """The same with given times: 27 µs to the server, 5,005 µs there, 78 µs back."""
    client, server = made.Made(tmp_path, "client", 100), made.Made(tmp_path, "server", 200)
    for number in range(40):
        begin = 1_000_000 + number * 6_000_000
        arrived = begin + 7_000 + 27_000
        done = arrived + 5_005_000
        stamps = [begin, begin + 1_000, begin + 7_000, done + 78_000, done + 81_000]
        client.call("Compute", stamps, sent=1024, recv=1024, span=number + 1)
        server.call("Compute", [arrived, arrived, done, done], SERVER, span=number + 1)
    client.segment.close()
    server.segment.close()
    split = of_client(make_report(gather([tmp_path])))["split"]
    assert split["joined_count"] == 40
    assert split["transport_share_ratio"] <= 0.03
    assert finding_of(make_report(gather([tmp_path]), "seed"), "S2").values["share"] > 0.99


@pytest.mark.parametrize("way", ["key", "wrap"])
def test_transport_is_what_is_not_the_servers_work(tmp_path: Path, way: str) -> None:
    """Five milliseconds of work behind one kilobyte: older analyzers call all of it transport.

    While others take the cores, messages are late, and truly so: the share is that of calls that were not disturbed,
    and where it is more than 3 % of them, a stopwatch around the calls finds no less beside the five milliseconds.
    """
    program = [sys.executable, "-m", "tests.trace.server", f"ipc://{tmp_path}/socket", str(tmp_path / "server"), way]
    server = subprocess.Popen(program, cwd=ROOT)
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger, socket.rcvtimeo = 0, 60_000  # a server that is gone answers nothing
        socket.connect(f"ipc://{tmp_path}/socket")
        socket.send(b"")
        socket.recv()
        share, by_stopwatch = 1.0, 0.0
        for attempt in range(5):
            if share <= max(0.03, by_stopwatch):
                break
            folder = tmp_path / f"client {attempt}"
            by_stopwatch = float(np.percentile(calls_of_five_ms(socket, folder, way), 10))
            undisturbed = [transport_of(call) for call in joined(folder, tmp_path / "server")]
            share = float(np.percentile(undisturbed, 10))
        socket.send(b"end")
        socket.recv()
    assert server.wait(30) == 0
    assert share <= max(0.03, by_stopwatch)
    report = make_report(gather([folder, tmp_path / "server"]))  # now that its last record is there, too
    calls = joined(folder, tmp_path / "server")
    client = of_client(report)
    assert client["split"]["joined_count"] == len(calls) == 40
    assert client["server_ns"] == sum(call["server"] for call in calls) > 0.9 * 40 * WORK_NS
    rules = {finding.rule for finding in report.findings}
    if client["split"]["transport_share_ratio"] < 0.30:  # else the machine was so busy that it is not
        assert "R2" in rules
        assert not rules & {"R2b", "R3"}
    assert "of which request transit" in as_text(report)
    assert "请求传输" in as_markdown(report, "zh")
    assert "queue_ns" in as_csv(report).partition("\n")[0]
    if way == "key":
        assert finding_of(make_report(gather([folder]), "seed"), "S2").values["share"] > 0.95


def transport_of(call: dict[str, Any]) -> float:
    return float((call["request"] + call["reply"]) / sum(call[part] for part in PARTS))


def calls_of_five_ms(socket: zmq.Socket[bytes], folder: Path, way: str) -> list[float]:
    """Return what part of each call was not the five milliseconds of work."""
    trace.start(folder, service="client")
    payload = b"x" * 1024
    shares = []

    def exchange(request: dict[str, Any]) -> None:
        socket.send(msgpack.packb({**request, "payload": payload}))
        socket.recv()

    for _ in range(40):
        begin_ns = trace.now_ns()
        if way == "wrap":
            trace.wrap(socket, "Compute", propagate=True).send(payload)
            socket.recv()
        else:
            rpc("Compute", exchange, len(payload))
        shares.append(1 - WORK_NS / (trace.now_ns() - begin_ns))
    trace.stop()
    return shares


# ------------------------------------------------------------------------------------------------ joining


def test_ten_calls_of_one_trace_id_are_ten_calls(tmp_path: Path) -> None:
    trace.start(tmp_path)
    for shared in (None, "0af7651916cd43dd8448eb211c80319c", "N/A"):
        for number in range(10):
            rpc("Compute", serve, number, shared)
    trace.stop()
    assert sorted(call["sent"] for call in joined(tmp_path)) == sorted([*range(10)] * 3)
    assert sum(len(batch.ids) for batch in batches(tmp_path)) == 60


def test_sixty_four_interleaved_calls_pair_exactly(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path)
    queue: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[None]]]

    async def client(number: int) -> None:
        for _ in range(5):
            with recorder.call(f"call {number}") as call:
                request = {"number": number}
                trace.inject(request, call)
                call.serialized(number)
                call.sent()
                done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                await queue.put((request, done))
                await done
                call.received(0)

    async def server() -> None:
        while True:
            request, done = await queue.get()
            with trace.serve(request, "work"):
                await asyncio.sleep(0)
                work(1000 * request["number"])
            done.set_result(None)

    async def everyone() -> None:
        nonlocal queue
        queue = asyncio.Queue()
        servers = [asyncio.create_task(server()) for _ in range(8)]
        await asyncio.gather(*(client(number) for number in range(64)))
        for task in servers:
            task.cancel()

    asyncio.run(everyone())
    trace.stop()
    calls = joined(tmp_path)
    assert sorted(call["sent"] for call in calls) == sorted([*range(64)] * 5)
    for call in calls:
        assert call["method"] == f"call {call['sent']}"
        assert call["server"] >= 1000 * call["sent"]


def serve_after(waiting_ns: int, request: dict[str, Any], work_ns: int = 0) -> None:
    """Serve a request that first waits in the server's own queue."""
    received_ns = now_ns()
    work(waiting_ns)
    with trace.serve(request, "Compute", received_ns=received_ns):
        work(work_ns)


def test_a_request_that_waits_for_the_server_was_queued(tmp_path: Path) -> None:
    trace.start(tmp_path)
    requests: list[dict[str, Any]] = []
    with trace.call("A") as first, trace.call("B") as second:
        for call in (first, second):
            requests.append({})
            trace.inject(requests[-1], call)
            call.serialized(1)
            call.sent()
        with trace.serve(requests[0], "A"):
            work(2_000_000)
        with trace.serve(requests[1], "B"):  # the server was busy when B was sent
            work(1_000_000)
        second.received(1)
        first.received(1)
    rpc("C", lambda request: serve_after(3_000_000, request))
    trace.stop()
    calls = {call["method"]: call for call in joined(tmp_path)}
    assert calls["A"]["server"] >= 2_000_000
    assert calls["B"]["queue"] >= 2_000_000
    assert calls["B"]["server"] >= 1_000_000
    assert calls["C"]["queue"] >= 3_000_000 > calls["C"]["request"]


def test_queueing_is_found(tmp_path: Path) -> None:
    trace.start(tmp_path, service="x")
    for number in range(40):
        rpc("Compute", lambda request: serve_after(300_000 * number, request, 100_000))  # noqa: B023 # called at once
    trace.stop()
    report = make_report(gather([tmp_path]))
    finding = finding_of(report, "R7")
    assert finding.values["share"] > 0.4
    assert finding.gain_ns is not None
    assert "排队" in as_text(report, "zh")


@pytest.mark.parametrize("growth", [-1.0, 0.0, 1.5])
def test_a_growing_queue_is_seen(growth: float) -> None:
    count = 1000
    times, total = np.arange(count) * 10**6, np.full(count, 10**7)
    queue = 10**6 * (1 + growth * (np.arange(count) / (count - 1) - 0.5))
    zeros = np.zeros(count, np.int64)
    batch = Batch(
        Segment("x", "client", role=1), trace.RPC.stages, ["m"], zeros, zeros, times + 10**18, total,
        np.stack([zeros, zeros, total, zeros], axis=1), zeros, zeros, zeros.astype(bool), server_ns=zeros,
        request_ns=zeros, queue_ns=queue.astype(np.int64), reply_ns=zeros,
    )  # fmt: skip
    split = Split()
    for part in (slice(0, 300), slice(300, None)):
        split.add(batch, np.arange(count)[part])
    assert split.growth_ratio == pytest.approx(growth, abs=0.01)
    assert split.transport_ratio == pytest.approx(0.9, abs=0.01)


def test_two_hosts_have_two_clocks(tmp_path: Path) -> None:
    """The server's clock is an hour ahead, and drifts; what is left of that is within the error that is shown."""
    here, there = tmp_path / "here", tmp_path / "there"
    trace.start(here, service="client")
    served: list[tuple[dict[str, Any], int]] = []

    def exchange(request: dict[str, Any]) -> None:
        served.append((request, now_ns()))
        work(200_000)

    for _ in range(50):
        rpc("Compute", exchange)
    trace.stop()
    hour_ns = 3_600_000_000_000
    far = trace.start(there, service="server")
    far._files._boot, far._files.boot = "another-boot", 77
    for request, begin_ns in served:
        received_ns = begin_ns + hour_ns + 20_000
        with trace.serve(request, "Compute", received_ns=received_ns) as call:
            call._cut(0)
            call._stamp(received_ns)
            call._stamp(received_ns + 160_000)
    trace.stop()
    gathered = gather([here, there])
    split = next(group.split for group in gathered.sums.groups if group.segment.role == 1)
    assert split.joined_count == 50
    assert 0 < split.offset_error_ns < 200_000
    assert abs(split.server_ns / 50 - 160_000) < 1000
    assert abs(split.request_ns / 50 - 20_000) <= split.offset_error_ns
    report = make_report(gathered)
    assert "±" in as_text(report)
    assert "±" in as_text(report, "zh")


def test_what_is_sampled_is_sampled_on_both_sides(tmp_path: Path) -> None:
    trace.start(tmp_path, sample=8)
    for _ in range(800):
        rpc("Compute", serve)
    trace.stop()
    recorded = sum(len(batch.ids) for batch in batches(tmp_path) if batch.segment.role == 1)
    assert 40 < len(joined(tmp_path)) <= recorded < 300
    assert calls_count(tmp_path) == 1600


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_failures_at_the_server_are_recorded(tmp_path: Path) -> None:
    trace.start(tmp_path)
    with pytest.raises(ValueError, match="own"), trace.serve(None, "Compute"):
        raise ValueError("the application's own")
    for call in trace.requests(lambda: b"x"):
        assert call.request == b"x"
        break
    with trace.serve("no context", "Other") as served:
        served.replying(5)
    trace.stop()
    failed = {batch.methods[int(method)]: bool(bad) for batch in batches(tmp_path)
              for method, bad in zip(batch.method, batch.failed, strict=True)}  # fmt: skip
    assert failed == {"Compute": True, "request": False, "Other": False}


def test_a_stale_trace_id_is_not_kept(tmp_path: Path) -> None:
    recorder = trace.start(tmp_path, sample=1000)
    for number in range(50):
        made.rpc(recorder, "x", trace_id=number)
    with recorder.call("x") as call:
        assert (call._trace, call._span) == (None, 0)


def test_without_a_recorder_nothing_happens() -> None:
    trace.stop()
    with trace.serve({}, "x") as call:
        call.replying(3)
    for turn in trace.requests(lambda: 1):
        assert turn.request == 1
        break
    assert not STATE.recorder.enabled


def test_eight_threads_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("/proc/nothing")):
        trace.start(folder)

        def turn(number: int) -> None:
            for _ in range(50):
                rpc(f"thread {number}", serve)

        in_threads(8, turn)
        trace.stop()
    assert len(joined(tmp_path)) == 400


def test_a_forked_server_and_a_sudden_end(tmp_path: Path) -> None:
    code = """
import os, sys
from ipcbench import trace
trace.start(sys.argv[1])
with trace.call("x") as call:
    request = {}
    trace.inject(request, call)
    pid = os.fork()
    if not pid:
        with trace.serve(request, "served"):
            pass
        os._exit(0)
    call.serialized(1); call.sent()
    os.waitpid(pid, 0)
    call.received(1)
for _ in range(2):
    pid = os.fork()
    if not pid:
        with trace.call("child") as call:
            call.context()
        os._exit(0)
    os.waitpid(pid, 0)
os._exit(0)
"""
    run_program(code, tmp_path)
    keys = [key for batch in batches(tmp_path) if batch.key is not None for key in batch.key.tolist() if key]
    assert (len(keys), len(set(keys))) == (4, 3)
    assert [call["method"] for call in joined(tmp_path)] == ["x"]


def test_damaged_server_records_end_nothing(tmp_path: Path) -> None:
    trace.start(tmp_path)
    rpc("x", serve)
    trace.stop()
    (path,) = tmp_path.glob("*.ipct")
    data = path.read_bytes()
    chosen = np.random.default_rng(1)
    for _ in range(200):
        mutated = bytearray(data)
        for at in chosen.integers(0, len(data), 5).tolist():
            mutated[at] = int(chosen.integers(0, 256))
        path.write_bytes(mutated)
        find_servers([path], Notes())


# ------------------------------------------------------------------------------------------------ buffers


def test_buffers_are_described_and_read_again(tmp_path: Path) -> None:
    array = np.zeros((64, 128), np.float32)
    assert describe([array, b"0123456789", np.zeros((), np.int64)]) == "float32[64,128]+uint8[10]+int64[]"
    assert describe(["bfloat16[3]", object(), np.zeros(3, np.bool_)]) == "bfloat16[3]+bool[3]"
    assert describe([np.zeros(2, np.complex128), np.zeros(2, np.uint16)]) == "complex128[2]+uint16[2]"
    assert wide_bytes("float32[64,128]+uint8[10]>float64[2]+int64[]") == 32768 + 16
    assert wide_bytes("float64[]") == 8
    for bad in ("float32", "float32[3]+what[3]", "float32[3]>uint8[1]>uint8[1]", "float32[-1]"):
        assert wide_bytes(bad) == 0
    trace.start(tmp_path)
    for _ in range(3):
        with trace.call("x") as call:
            call.buffers(array)
            call.reply_buffers(b"123")
            call.buffers(array, b"1")
    with trace.call("x"):
        pass
    trace.stop()
    (batch,) = batches(tmp_path)
    assert batch.layout is not None
    layouts = [batch.layouts[number] for number in batch.layout.tolist()]
    assert layouts == [*["float32[64,128]+uint8[1]>uint8[3]"] * 3, ""]
    assert batch.key is None


def test_wide_numbers_are_found(tmp_path: Path) -> None:
    trace.start(tmp_path)
    for _ in range(30):
        with trace.call("Matmul") as call:
            call.buffers("float32[1024,512]", "uint8[100]")
            request: dict[str, Any] = {}
            trace.inject(request, call)
            call.serialized(2**21 + 100)
            call.sent()
            work(300_000)
            with trace.serve(request, "Matmul"):
                work(10_000)
            call.received(10)
    trace.stop()
    report = make_report(gather([tmp_path]))
    assert finding_of(report, "R14").values["wide_share"] > 0.99
    assert "float32" in as_text(report)


def test_a_batch_can_be_replaced(tmp_path: Path) -> None:
    trace.start(tmp_path)
    rpc("x", lambda request: None)
    trace.stop()
    (batch,) = batches(tmp_path)
    assert replace(batch, key=None).key is None
    assert batch.server_ns is None
