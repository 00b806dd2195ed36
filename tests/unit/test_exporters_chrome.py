"""The Chrome trace: valid events, slices that nest, arrows that bind, the worst message with its neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ipcbench.errors import StoreError
from ipcbench.results.store import Run
from tests.unit.builders import CELLS, make_run, paced, trial
from tests.unit.test_exporters import ALL_MODES, store, text_of

MOMENT = {"pid": {"type": "integer"}, "tid": {"type": "integer"}, "ts": {"type": "number", "minimum": 0}}
COMMON = {**MOMENT, "name": {"type": "string"}, "cat": {"const": "ipcbench"}}


def event(phase: str, required: list[str], **more: Any) -> dict[str, Any]:
    properties, always = {"ph": {"const": phase}, **COMMON, **more}, ["ph", "name", "pid", "tid"]
    return {"properties": properties, "required": [*always, *required], "additionalProperties": False}


EVENTS = [
    event("X", ["ts", "dur", "cat"], dur={"type": "number", "exclusiveMinimum": 0}, args={"type": "object"}),
    event("s", ["ts", "id", "cat"], id={"type": "integer"}),
    event("f", ["ts", "id", "cat", "bp"], id={"type": "integer"}, bp={"const": "e"}),
    event("i", ["ts", "s", "cat"], s={"const": "t"}),
    event("M", ["args"], args={"type": "object", "minProperties": 1}),
]
TRACE_SCHEMA = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "displayTimeUnit": {"enum": ["ns", "ms"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
        "traceEvents": {"type": "array", "minItems": 1, "items": {"oneOf": EVENTS}},
    },
}


def trace_of(run: Run) -> list[dict[str, Any]]:
    document = json.loads(text_of(run, "perfetto"))
    jsonschema.validate(document, TRACE_SCHEMA)
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def ns(us: float) -> int:
    return round(us * 1000)


def tracks_of(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in sorted((event for event in events if event["ph"] == "X"), key=lambda event: float(event["ts"])):
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    return tracks


def check_trace(events: list[dict[str, Any]]) -> None:
    """Check that slices nest, that every arrow has both ends inside a slice of one message, that all has a name."""
    tracks = tracks_of(events)
    for track in tracks.values():
        assert all(ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"]) for before, after in pairwise(track))

    def slice_at(event: dict[str, Any]) -> dict[str, Any]:
        at = ns(event["ts"])
        around = [s for s in tracks[event["pid"], event["tid"]] if ns(s["ts"]) <= at < ns(s["ts"]) + ns(s["dur"])]
        assert len(around) == 1, event
        return around[0]

    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts
    assert starts.keys() == ends.keys()
    assert len(starts) + len(ends) == sum(event["ph"] in "sf" for event in events)
    for number, start in starts.items():
        end = ends[number]
        write, read = slice_at(start), slice_at(end)
        assert (write["name"], read["name"]) == ("write", "read")
        assert write["args"]["message"] == read["args"]["message"]
        assert start["pid"] == end["pid"]
        assert start["ts"] <= end["ts"]
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named >= tracks.keys()
    assert {event["pid"] for event in events} == {event["pid"] for event in events if event["name"] == "process_name"}
    assert len({tid for _, tid in named}) == len(named)


def stalled(path: Path, change: Callable[[dict[str, Any]], None], readers: int = 2) -> Run:
    result, columns = paced(trial(replace(ALL_MODES, readers=readers), "zmq", 10, "paced", 0, 0), 10_000.0, 0.0)
    for index in range(readers):
        columns[f"reader-{index}.read_ns"][:] = 900_000
    change(columns)
    return store(path, (result, columns))


def test_a_trace_has_valid_windows_of_every_paced_trial(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CELLS, ALL_MODES)
    events = trace_of(run)
    check_trace(events)
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert len(titles) == 2 * 2 * 3 * 3  # backends × sizes × rounds × outliers
    assert len(set(titles)) == len(titles)


def test_the_worst_message_is_in_the_first_window_with_its_neighbours(tmp_path: Path) -> None:
    def stall(columns: dict[str, Any]) -> None:
        for name in ("received_ns", "latency_ns"):
            columns[f"reader-1.{name}"][100] += 500_000

    events = trace_of(stalled(tmp_path / "run", stall))
    check_trace(events)
    first = [event for event in events if event["pid"] == events[0]["pid"]]
    assert first[0]["args"] == {"name": "zmq, dict of 10 entries, round 0: outlier 1, 510 µs"}
    threads = {event["args"]["name"]: event["tid"] for event in first if event["name"] == "thread_name"}
    assert list(threads) == ["writer", "reader-0", "reader-1"]
    slices = [event for event in first if event["ph"] == "X"]
    assert {call["args"]["message"] for call in slices} == set(range(96, 105))
    (outlier,) = (call for call in slices if call["tid"] == threads["reader-1"] and call["args"]["outlier"])
    assert outlier["args"]["latency us"] == 510.0
    sent = next(call for call in slices if call["tid"] == threads["writer"] and call["args"]["message"] == 100)
    assert ns(outlier["ts"]) + ns(outlier["dur"]) - ns(sent["ts"]) == 510_000 - 60
    assert sum(event["name"] == "due" for event in first) == 9
    assert min(event["ts"] for event in first if "ts" in event) == 0


def test_slices_that_would_overlap_are_cut(tmp_path: Path) -> None:
    def overlap(columns: dict[str, Any]) -> None:
        columns["reader-0.read_ns"][:] = 5_000_000
        columns["writer.write_ns"][:] = 1_500_000

    check_trace(trace_of(stalled(tmp_path / "run", overlap)))


def test_a_window_at_either_end_and_equal_latencies(tmp_path: Path) -> None:
    def ends(columns: dict[str, Any]) -> None:
        for row in (0, -1):
            for name in ("received_ns", "latency_ns"):
                columns[f"reader-0.{name}"][row] += 300_000

    events = trace_of(stalled(tmp_path / "run", ends, readers=1))
    check_trace(events)
    messages = [
        {event["args"]["message"] for event in events if event["ph"] == "X" and event["pid"] == pid}
        for pid in dict.fromkeys(event["pid"] for event in events)
    ]
    assert messages[:2] == [set(range(5)), set(range(345, 350))]


def test_a_trial_without_one_way_times_has_no_window(tmp_path: Path) -> None:
    def forget(columns: dict[str, Any]) -> None:
        del columns["reader-1.latency_ns"]

    with pytest.raises(StoreError, match=r"holds no samples for perfetto: trial 0 .*reader-1 has no one-way times"):
        text_of(stalled(tmp_path / "run", forget), "perfetto")
