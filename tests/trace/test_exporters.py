"""What a trace is exported to is read back by those who it is for."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import threading
import urllib.request
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ipcbench import trace
from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.exporters import EXPORTERS, template
from ipcbench.trace.exporters.metrics import make_server
from ipcbench.trace.exporters.otlp import BATCH_SPANS, send
from ipcbench.trace.live.lines import JsonLines
from ipcbench.trace.readers.batch import PARTS
from ipcbench.trace.readers.everything import find
from ipcbench.trace.schema import QUEUE_GET, QUEUE_PUT, RECEIVE, SEND
from tests.trace.logs import V1, head, tq_call, v1_row
from tests.trace.made import HOSTILE, UNIX_NS, Made, both_sides, record

COUNT = 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    both_sides(tmp_path / "trace", COUNT)
    return tmp_path / "trace"


def exported(form: str, *paths: Path) -> tuple[bytes, tuple[str, ...]]:
    out = io.BytesIO()
    left_out = EXPORTERS[form](find(paths), out)
    return out.getvalue(), left_out


def test_csv_has_the_old_columns_and_every_call(folder: Path) -> None:
    data, left_out = exported("csv", folder)
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert not left_out
    assert list(rows[0])[:10] == [
        "ID", "Method", "Serialize(ms)", "Send(ms)", "Recv(ms)", "Deserialize(ms)", "Total(ms)", "Sent(KB)", "Recv(KB)",
        "Throughput(MB/s)",
    ]  # fmt: skip
    assert [row["ID"] for row in rows] == [str(number + 1) for number in range(2 * COUNT + 1)]
    clients = [row for row in rows if row["Side"] == "client" and row["Method"] == "Matmul"]
    assert len(clients) == COUNT
    assert [float(clients[0][name]) for name in ("Serialize(ms)", "Total(ms)")] == [0.1, 1.5]
    assert float(clients[0]["Throughput(MB/s)"]) == pytest.approx(3_000_000 / 2**20 / 0.0015, abs=0.01)
    assert clients[0]["Work(ms)"] == ""
    parts = [float(clients[0][f"Wait{part}(ms)"]) for part in ("Request", "Queue", "Server", "Reply")]
    assert sum(parts) == pytest.approx(float(clients[0]["Recv(ms)"]))
    assert min(parts) > 0
    assert next(row for row in rows if row["Side"] == "server")["WaitServer(ms)"] == ""
    assert clients[-1]["Error"] == "ValueError"
    assert float(clients[0]["Begin(s)"]) == pytest.approx((UNIX_NS + 1_000_000) / 1e9)
    assert rows[-1]["Method"] == HOSTILE
    ends = [float(row["Begin(s)"]) * 1e3 + float(row["Total(ms)"]) for row in rows]
    assert all(later - earlier > -0.01 for earlier, later in pairwise(ends))


def test_csv_of_a_log_keeps_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(head(V1) + v1_row(1) + v1_row(2, "b c") + "damaged 1 2\n")
    data, left_out = exported("csv", path)
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert [(row["Method"], float(row["Recv(ms)"]), row["Begin(s)"]) for row in rows] == [
        ("Matmul", 6, ""), ("b c", 6, "")]  # fmt: skip
    assert "1 damaged" in left_out[0]


def families(text: str) -> dict[str, Any]:
    from prometheus_client.parser import text_string_to_metric_families

    return {family.name: family for family in text_string_to_metric_families(text)}


def test_prometheus_text_is_read_by_its_own_parser(folder: Path) -> None:
    record(folder, 100, 10**6, ["Sampled"])
    metrics = families(exported("prometheus", folder)[0].decode())
    histogram = metrics["ipcbench_call_duration_seconds"]
    assert histogram.type == "histogram"
    calls = {"method": "Matmul", "side": "client"}
    samples = [sample for sample in histogram.samples if calls.items() <= sample.labels.items()]
    buckets = {float(sample.labels["le"]): sample.value for sample in samples if sample.name.endswith("_bucket")}
    assert list(buckets) == sorted(buckets)
    assert buckets == {limit: COUNT if limit >= 0.0015 else 0 for limit in buckets} | {float("inf"): COUNT}
    (total,) = [sample.value for sample in samples if sample.name.endswith("_sum")]
    assert total == pytest.approx(COUNT * 0.0015)
    counts = {sample.labels["method"]: sample.value for sample in histogram.samples if sample.name.endswith("_count")}
    assert (counts["Sampled"], counts[HOSTILE]) == (100, 1)
    stages = metrics["ipcbench_stage_seconds"].samples
    (wait,) = [sample.value for sample in stages if {**calls, "stage": "wait"}.items() <= sample.labels.items()]
    assert wait == pytest.approx(COUNT * 0.00125)
    failed = metrics["ipcbench_failed_calls"].samples
    assert [sample.value for sample in failed if calls.items() <= sample.labels.items()] == [1]


def test_metrics_are_served_and_grow(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    server = make_server(folder, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"

        def scraped() -> float:
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                samples = families(answer.read().decode())["ipcbench_call_duration_seconds"].samples
            return float(sum(sample.value for sample in samples if sample.name.endswith("_count")))

        assert scraped() == 0
        record(folder, 30, 10**6)
        assert scraped() == 30
        record(folder, 25)
        assert scraped() == scraped() == 55
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=10)
        with pytest.raises(ConfigError, match="can be bound"):
            make_server(folder, "127.0.0.1", server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def spans_of(document: str) -> list[tuple[dict[str, str], Any]]:
    """Return resource attributes and spans, as OpenTelemetry's own message types take them."""
    from google.protobuf import json_format
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    def in_base64(value: Any) -> Any:  # OTLP writes ids in hexadecimal, protobuf's own JSON in base64
        if isinstance(value, dict):
            ids = {"traceId", "spanId", "parentSpanId"}
            return {
                key: base64.b64encode(bytes.fromhex(one)).decode() if key in ids else in_base64(one)
                for key, one in value.items()
            }
        return [in_base64(one) for one in value] if isinstance(value, list) else value

    data = json_format.ParseDict(in_base64(json.loads(document)), TracesData())
    return [
        ({one.key: one.value.string_value for one in resource.resource.attributes}, span)
        for resource in data.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def check_spans(spans: list[tuple[dict[str, str], Any]]) -> None:
    calls = [(resource["service.name"], span) for resource, span in spans if span.name == "Matmul"]
    clients = {span.span_id: span for service, span in calls if service == "client"}
    servers = [span for service, span in calls if service == "server"]
    assert len(clients) == len(servers) == COUNT
    assert len({span.span_id for _, span in spans}) == len(spans)
    for server in servers:
        client = clients[server.parent_span_id]
        assert server.trace_id == client.trace_id
        assert (server.kind, client.kind) == (2, 3)
        assert client.start_time_unix_nano + 300_000 == server.start_time_unix_nano
        assert client.end_time_unix_nano - client.start_time_unix_nano == 1_500_000
    first = min(clients.values(), key=lambda span: span.start_time_unix_nano)
    assert first.start_time_unix_nano == UNIX_NS + 1_000_000
    stages = [span for _, span in spans if span.parent_span_id == first.span_id and span.kind == 1]
    assert [span.name for span in stages] == ["serialize", "send", "wait", "deserialize"]
    assert stages[-1].end_time_unix_nano == first.end_time_unix_nano
    assert [span.status.message for span in clients.values() if span.status.code == 2] == ["ValueError"]
    lonely = [span for _, span in spans if span.name == HOSTILE]
    assert lonely[0].trace_id.hex().startswith("00000000000000aa")
    assert not lonely[0].parent_span_id


def test_otlp_is_read_by_opentelemetrys_messages(folder: Path) -> None:
    data, _ = exported("otlp", folder)
    check_spans([span for line in data.decode().splitlines() for span in spans_of(line)])


class Collector:
    """A server that takes what is posted."""

    def __init__(self, status: int = 200, answer: bytes = b"{}") -> None:
        self.bodies: list[str] = []
        self.asked: list[tuple[str, str | None]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.asked.append((self.path, self.headers["Content-Type"]))
                collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Collector:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def test_otlp_is_sent_in_batches_to_a_collector(tmp_path: Path) -> None:
    both_sides(tmp_path / "trace", COUNT)
    more = Made(tmp_path / "trace", "more", 300)
    for number in range(1200):
        more.call("tiny", [10**9 + number, 10**9 + number + 1], trace.FUNCTION)
    more.segment.close()
    with Collector() as collector:
        count, left_out = send(find([tmp_path / "trace"]), collector.url)
    posted = [spans_of(body) for body in collector.bodies]
    assert set(collector.asked) == {("/v1/traces", "application/json")}
    assert {len(spans) for spans in posted[:-1]} == {BATCH_SPANS}
    assert (count, left_out) == (20 * 5 + 20 * 4 + 5 + 1200, ())
    spans = [span for some in posted for span in some]
    assert len(spans) == count
    check_spans(spans)


def test_a_collector_that_refuses_is_one_clear_error(folder: Path) -> None:
    with Collector(503) as collector, pytest.raises(StoreError, match="answers 503"):
        send(find([folder]), collector.url)
    with Collector(200, b'{"partialSuccess":{"rejectedSpans":"7"}}') as collector:
        count, left_out = send(find([folder]), f"{collector.url}/own/path")
    assert collector.asked[0][0] == "/own/path"
    assert (count, left_out) == (178, ("7 spans that the collector rejected",))
    with pytest.raises(StoreError, match="0 spans were sent before"):
        send(find([folder]), collector.url)
    for wrong in ("file:///etc/passwd", "localhost:4318", "http://", "http://x:99999", "http://[x"):
        with pytest.raises(ConfigError, match="collector"):
            send(find([folder]), wrong)


def test_perfetto_is_decoded_by_its_own_messages(folder: Path) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    packets = Trace.FromString(exported("perfetto", folder)[0]).packet
    descriptors = [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]
    processes = {(track.process.process_name, track.process.pid) for track in descriptors if track.HasField("process")}
    assert processes == {("client (somewhere)", 100), ("server (somewhere)", 200)}
    names = {track.uuid: track.name for track in descriptors}
    tracks: dict[str, list[Any]] = {}
    for packet in packets:
        if packet.HasField("track_event"):
            tracks.setdefault(names[packet.track_event.track_uuid], []).append(packet)
    assert tracks.keys() == {"thread 101", "thread 101, 2 at a time", "thread 201"}
    leaving, arriving = [], []
    for on_track in tracks.values():
        open_slices: list[str] = []
        assert all(earlier.timestamp <= later.timestamp for earlier, later in pairwise(on_track))
        for event in (packet.track_event for packet in on_track):
            if event.type == event.TYPE_SLICE_BEGIN:
                open_slices.append(event.name)
                assert len(open_slices) <= 2, "calls do not overlap on a track"
            else:
                open_slices.pop()
            leaving += event.flow_ids
            arriving += event.terminating_flow_ids
        assert not open_slices
    assert sorted(leaving) == sorted(arriving) == list(range(1, COUNT + 1))
    begins = [packet for on_track in tracks.values() for packet in on_track if packet.track_event.name == "Matmul"]
    assert min(packet.timestamp for packet in begins) == UNIX_NS + 1_000_000
    said = {note.name: note.string_value or note.uint_value for note in begins[0].track_event.debug_annotations}
    assert (said["sent bytes"], said["peer"]) == (1_000_000, "ipc:///x")
    assert HOSTILE in {packet.track_event.name for packet in packets}


ID = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
TEXT = {"type": "string", "minLength": 1}
MICROSECONDS = {"type": "integer", "minimum": 1}
ENDPOINT = {
    "type": "object", "additionalProperties": False, "minProperties": 1,
    "properties": {"serviceName": TEXT, "ipv4": {"type": "string", "format": "ipv4"},
                   "ipv6": {"type": "string", "format": "ipv6"}, "port": {**MICROSECONDS, "maximum": 65535}},
}  # fmt: skip
ZIPKIN = {  # as zipkin2-api.yaml has it; here nothing else is allowed, and all that a call always has is required
    "type": "array",
    "items": {
        "type": "object", "additionalProperties": False,
        "required": ["traceId", "id", "name", "timestamp", "duration", "localEndpoint", "tags"],
        "properties": {
            "traceId": {"type": "string", "pattern": "^(?=.*[1-9a-f])([0-9a-f]{16}){1,2}$"},
            "id": ID, "parentId": ID, "name": TEXT, "kind": {"enum": ["CLIENT", "SERVER", "PRODUCER", "CONSUMER"]},
            "timestamp": MICROSECONDS, "duration": MICROSECONDS, "localEndpoint": ENDPOINT, "remoteEndpoint": ENDPOINT,
            "annotations": {"type": "array", "items": {
                "type": "object", "additionalProperties": False, "required": ["timestamp", "value"],
                "properties": {"timestamp": MICROSECONDS, "value": TEXT}}},
            "tags": {"type": "object", "additionalProperties": TEXT},
        },
    },
}  # fmt: skip


def zipkin_spans(*paths: Path) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = json.loads(exported("zipkin", *paths)[0])
    jsonschema.validate(spans, ZIPKIN, format_checker=jsonschema.FormatChecker())
    assert len({(span["traceId"], span["id"]) for span in spans}) == len(spans)
    return spans


def test_zipkin_has_both_sides_stages_and_failures(folder: Path) -> None:
    spans = zipkin_spans(folder)
    assert len(spans) == 2 * COUNT + 1
    clients = {span["id"]: span for span in spans if span.get("kind") == "CLIENT" and span["name"] == "Matmul"}
    servers = [span for span in spans if span.get("kind") == "SERVER"]
    assert len(clients) == len(servers) == COUNT
    for server in servers:
        client = clients[server["parentId"]]
        assert server["traceId"] == client["traceId"]
        assert (server["localEndpoint"], client["localEndpoint"]) == (
            {"serviceName": "server"}, {"serviceName": "client"})  # fmt: skip
        assert (client["remoteEndpoint"], server.get("remoteEndpoint")) == ({"serviceName": "ipc:///x"}, None)
        assert (client["timestamp"] + 300, client["duration"]) == (server["timestamp"], 1500)
        assert "parentId" not in client
        assert "ipcbench.sent_bytes" not in server["tags"], "unknown is not 0"
    first = clients[f"{1:016x}"]
    begin = UNIX_NS // 1000 + 1000
    assert first["timestamp"] == begin
    assert [(note["value"], note["timestamp"] - begin) for note in first["annotations"]] == [
        ("serialize", 0), ("send", 100), ("wait", 150), ("deserialize", 1400)]  # fmt: skip
    tags = {"ipcbench.sent_bytes": "1000000", "ipcbench.wait_ns": "1250000", "host.name": "somewhere"}
    assert tags.items() <= first["tags"].items()
    assert [span["tags"]["error"] for span in spans if "error" in span["tags"]] == ["ValueError"]


@pytest.mark.parametrize(
    ("peer", "remote"),
    [
        ("tcp://10.0.0.7:5555", {"ipv4": "10.0.0.7", "port": 5555}),
        ("tcp://[2001:db8::1]:5555", {"ipv6": "2001:db8::1", "port": 5555}),
        ("tcp://somewhere:5555", {"serviceName": "tcp://somewhere:5555"}),
        ("tcp://10.0.0.7:99999", {"serviceName": "tcp://10.0.0.7:99999"}),
        ("tcp://[x", {"serviceName": "tcp://[x"}),
        ("shm", {"serviceName": "shm"}),
        ("", None),
    ],
)
def test_zipkin_names_the_other_end(tmp_path: Path, peer: str, remote: dict[str, Any] | None) -> None:
    made = Made(tmp_path / "trace", "client")
    made.call("Matmul", [1000, 1200, 1300, 1400, 1500], peer=peer, span=1)
    made.segment.close()
    (span,) = zipkin_spans(tmp_path / "trace")
    assert span.get("remoteEndpoint") == remote
    assert span["duration"] == 1, "half a µs is not nothing"


def test_messages_that_nobody_answers_have_producers_and_consumers(tmp_path: Path) -> None:
    made = Made(tmp_path / "trace", "worker")
    for number, schema in enumerate((SEND, QUEUE_PUT, RECEIVE, QUEUE_GET, trace.FUNCTION)):
        made.call("message", [number * 1000, number * 1000 + 500], schema, span=number + 1)
    made.segment.close()
    kinds = [span.get("kind") for span in zipkin_spans(tmp_path / "trace")]
    assert kinds == ["PRODUCER", "PRODUCER", "CONSUMER", "CONSUMER", None]
    (line,) = exported("otlp", tmp_path / "trace")[0].decode().splitlines()
    assert [span.kind for _, span in spans_of(line)] == [4, 4, 5, 5, 1]


def test_elasticsearch_knows_every_field_of_a_line(folder: Path) -> None:
    lines = [json.loads(line) for row in find([folder]).in_order() for line in JsonLines().call(row)]
    mapping = json.loads(template("elasticsearch-template.json"))["template"]["mappings"]
    types = {name: field["type"] for name, field in mapping["properties"].items()}
    assert types.pop("@timestamp") == "date_nanos"
    assert list(types) == list(lines[0])
    kinds = {str: "keyword", int: "long", bool: "boolean", dict: "object"}
    for line in lines:
        known = {name: kinds[type(value)] for name, value in line.items() if value is not None}
        assert known.items() <= types.items()
    assert set(types) == {name for line in lines for name, value in line.items() if value is not None}
    (stages,) = mapping["dynamic_templates"]
    assert stages == {"stages": {"path_match": "stages_ns.*", "mapping": {"type": "long"}}}


def test_filebeats_lines_go_through_the_pipeline() -> None:
    beat = yaml.safe_load(template("filebeat.yml"))
    index = json.loads(template("elasticsearch-template.json"))
    pipeline = json.loads(template("elasticsearch-pipeline.json"))
    assert fnmatch(beat["output.elasticsearch"]["index"], index["index_patterns"][0])
    assert index["template"]["settings"]["index.default_pipeline"] == "ipcbench"
    steps = [next(iter(step)) for step in pipeline["processors"]]
    assert steps == ["remove", "json", "remove", "set", "script"]
    names = set(index["template"]["mappings"]["properties"])
    assert set(re.findall(r"(?:ctx\.|{{{)(\w+)", json.dumps(pipeline))) <= names
    assert set(re.findall(r"ctx\['([^']+)'\] =", json.dumps(pipeline))) == {"@timestamp"}


TIME = {"type": "number", "minimum": 0}
CHROME_EVENT = {
    "type": "object",
    "required": ["ph", "name", "pid", "tid"],
    "properties": {
        "ph": {"enum": ["X", "M", "s", "f"]}, "name": {"type": "string"}, "pid": {"type": "integer"},
        "tid": {"type": "integer"}, "ts": TIME, "dur": TIME,
    },
    "allOf": [
        {"if": {"properties": {"ph": {"const": "X"}}}, "then": {"required": ["ts", "dur", "cat"]}},
        {"if": {"properties": {"ph": {"enum": ["s", "f"]}}}, "then": {"required": ["ts", "id", "cat"]}},
        {"if": {"properties": {"ph": {"const": "f"}}}, "then": {"required": ["bp"]}},
    ],
}  # fmt: skip
CHROME = {"type": "object", "required": ["traceEvents"],
          "properties": {"traceEvents": {"type": "array", "items": CHROME_EVENT}}}  # fmt: skip


def test_chrome_json_has_its_form_arrows_and_no_overlap(folder: Path) -> None:
    document = json.loads(exported("chrome", folder)[0])
    jsonschema.validate(document, CHROME)
    events = document["traceEvents"]
    begins, ends = ({event["id"]: event for event in events if event["ph"] == kind} for kind in "sf")
    assert begins.keys() == ends.keys() == {f"{number:016x}" for number in range(1, COUNT + 1)}
    slices = [event for event in events if event["ph"] == "X"]
    for number, begin in begins.items():
        assert begin["pid"] != ends[number]["pid"]
        assert begin["ts"] <= ends[number]["ts"]
        for tid, ts in ((end["tid"], end["ts"]) for end in (begin, ends[number])):
            assert any(part["tid"] == tid and part["ts"] <= ts <= part["ts"] + part["dur"] for part in slices)
    calls = [part for part in slices if "args" in part]
    for track in {call["tid"] for call in calls}:
        spans = sorted((call["ts"], call["ts"] + call["dur"]) for call in calls if call["tid"] == track)
        assert all(earlier[1] <= later[0] + 1e-6 for earlier, later in pairwise(spans))
    assert min(part["ts"] for part in slices) == 0


@pytest.mark.parametrize("form", ["chrome", "perfetto"])
def test_a_pipeline_log_has_a_timeline_and_a_table_of_calls_has_none(tmp_path: Path, form: str) -> None:
    timed, table = tmp_path / "timed.log", tmp_path / "table.log"
    timed.write_text("".join(line for number in range(5) for line in tq_call(10.0 + number)))
    table.write_text(head(V1) + v1_row(1))
    assert exported(form, timed)[0]
    with pytest.raises(StoreError, match="no call with a time on a clock"):
        exported(form, table)
    for spans in ("otlp", "zipkin"):
        with pytest.raises(StoreError, match="since 1970"):
            exported(spans, timed)


def test_parquet_is_read_by_pyarrow(folder: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    step = Made(folder, "worker", 400)
    step.call("rollout", [1000, 2000, 4000, 8000], trace.PIPELINE)
    step.segment.close()
    table = pq.read_table(io.BytesIO(exported("parquet", folder)[0]))
    rows = table.to_pylist()
    assert len(rows) == 2 * COUNT + 2
    clients = [row for row in rows if row["side"] == "client" and row["method"] == "Matmul"]
    assert (clients[0]["wait_ns"], clients[0]["get_ns"]) == (1_250_000, None)
    assert sum(clients[0][f"wait_{part}_ns"] for part in PARTS) == clients[0]["wait_ns"]
    assert rows[0]["wait_server_ns"] is None
    assert clients[0]["span_id"] == 1
    assert min(table.column("begin").cast("int64").to_pylist()) == UNIX_NS + 1000
    assert rows[0]["method"] == "rollout"
    assert (rows[0]["put_ns"], rows[0]["trace_id"][:16]) == (4000, "00000000000000aa")
    log = tmp_path / "x.log"
    log.write_text(head(V1) + v1_row(1))
    assert pq.read_table(io.BytesIO(exported("parquet", log)[0])).to_pylist()[0]["begin"] is None


def test_calls_without_a_record_are_named(tmp_path: Path) -> None:
    record(tmp_path / "trace", 100, 10**6)
    for form in ("csv", "chrome", "perfetto", "otlp", "zipkin"):
        left_out = exported(form, tmp_path / "trace")[1]
        assert any("calls that have no record of their own" in line for line in left_out), form
    empty = tmp_path / "empty"
    empty.mkdir()
    for form in ("csv", "prometheus", "chrome", "perfetto", "otlp", "zipkin", "parquet"):
        with pytest.raises(StoreError, match="holds no call"):
            exported(form, empty)
