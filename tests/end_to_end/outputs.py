"""Every output of a run read back into figures: {(payload bytes, backend): {quantity: value}}, by its own parser each.

Quantities have the names of summary.csv, in its units, so that any two outputs can be laid side by side.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ipcbench.analysis.summary.cells import CellSummary, Summary
from ipcbench.stats.estimates import Interval

Figures = dict[tuple[int, str], dict[str, float]]
TIMES = (
    "latency_p50_us", "latency_p99_us", "round_trip_p50_us", "round_trip_p99_us", "read_p50_us", "write_p50_us",
    "decode_p50_us",
)  # fmt: skip
_OF_TIMES = {name: (name.replace("_us", "_ns"), 1e-3) for name in TIMES}
INTERVALS = {
    "ratio_to_best": ("ratio", 1.0),
    **{name: _OF_TIMES[name] for name in TIMES[:4]},
    "throughput_messages_per_s": ("throughput_interval_per_s", 1.0),
}
VALUES = {
    "throughput_mb_per_s": ("throughput_bytes_per_s", 1e-6),
    **{name: _OF_TIMES[name] for name in TIMES[4:]},
    "writer_cpu_us_per_message": ("writer_cpu_ns", 1e-3),
    "reader_cpu_us_per_message": ("reader_cpu_ns", 1e-3),
    "latency_of_harness_floor_ratio": ("latency_floor_ratio", 1.0),
    "throughput_of_memory_copy_ratio": ("memory_bandwidth_ratio", 1.0),
    "throughput_of_cold_memory_copy_ratio": ("cold_memory_bandwidth_ratio", 1.0),
}
"""Either: quantity → field of a cell, and the factor from it."""
COLUMNS = {
    "one-way p50 µs": ("latency_p50_us", 1.0), "one-way p99 µs": ("latency_p99_us", 1.0),
    "× best [95 %]": ("ratio_to_best", 1.0), "× floor": ("latency_of_harness_floor_ratio", 1.0),
    "trip p50 µs": ("round_trip_p50_us", 1.0), "trip p99 µs": ("round_trip_p99_us", 1.0),
    "read p50 µs": ("read_p50_us", 1.0), "decode p50 µs": ("decode_p50_us", 1.0),
    "k msg/s /reader [95 %]": ("throughput_messages_per_s", 1e3), "MB/s /reader": ("throughput_mb_per_s", 1.0),
    "% of copy": ("throughput_of_memory_copy_ratio", 1e-2),
    "CPU µs writer": ("writer_cpu_us_per_message", 1.0), "CPU µs reader": ("reader_cpu_us_per_message", 1.0),
}  # fmt: skip
"""Head of a table's column → quantity, and the factor from what is printed to it."""
MATRICES = {
    "One-way latency p50, µs": ("latency_p50_us", 1.0),
    "Round trip p50, µs": ("round_trip_p50_us", 1.0),
    "Throughput, k messages/s": ("throughput_messages_per_s", 1e3),
}
METRICS = {
    "latency-p50": "latency_p50_us", "latency-p99": "latency_p99_us",
    "round-trip-p50": "round_trip_p50_us", "round-trip-p99": "round_trip_p99_us",
    "throughput": "throughput_messages_per_s",
}  # fmt: skip
"""Metric of a comparison, and of a point for GitHub, where `latency` is `one-way` → quantity."""
BOUNDS = ("low", "high")


def bound(name: str, which: str) -> str:
    """Return the name of an interval's bound as summary.csv has it: `latency_p50_low_us`."""
    stem, unit = re.fullmatch(r"(.*?)(_us|_per_s|)", name).groups()  # type: ignore[union-attr]
    return f"{stem}_{which}{unit}"


def _spread(name: str, interval: Interval | Mapping[str, float] | None, factor: float) -> dict[str, float]:
    if interval is None:
        return {}
    get = interval.__getitem__ if isinstance(interval, Mapping) else lambda key: getattr(interval, key)
    named = {name: "estimate", **{bound(name, one): one for one in BOUNDS}}
    return {key: factor * get(field) for key, field in named.items()}


def of_library(summary: Summary) -> Figures:
    return {(one.setting.payload_bytes, cell.backend): _of_cell(cell) for one in summary.settings for cell in one.cells}


def _of_cell(cell: CellSummary) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, (field, factor) in INTERVALS.items():
        found |= _spread(name, getattr(cell, field), factor)
    for name, (field, factor) in VALUES.items():
        value = getattr(cell, field)
        found |= {} if value is None else {name: factor * value}
    return found


def of_csv(text: str) -> Figures:
    return {(int(row["payload_bytes"]), row["backend"]): _of_row(row) for row in csv.DictReader(io.StringIO(text))}


def of_json(text: str) -> Figures:
    cells = [cell for one in json.loads(text)["settings"] for cell in one["cells"]]
    return {(cell["payload_bytes"], cell["backend"]): _of_row(cell) for cell in cells}


def _of_row(row: Mapping[str, Any]) -> dict[str, float]:
    names = [*INTERVALS, *VALUES, *(bound(name, one) for name in INTERVALS for one in BOUNDS)]
    return {name: float(row[name]) for name in names if row[name] not in {None, ""}}


def of_text(text: str) -> Figures:
    """Read the aligned tables: a part of columns is a grid of its own, under two lines of heads and a rule."""
    found: Figures = {}
    for part in text.split("\n\n"):
        title = re.match(r"\S+ of .*? = ([\d,]+) B, ", part)
        lines = part.splitlines()
        for index, line in enumerate(lines):
            if title and re.fullmatch("-{20,}", line):
                heads = _heads(lines[index - 2], lines[index - 1])
                _add_rows(found, _number(title[1]), heads, lines[index + 1 :])
    return found


def _heads(first: str, second: str) -> list[str]:
    """Return the heads of a grid's figures, each of an upper and a lower part."""
    upper = re.findall(r"one-way|× best|×|trip|read\b|decode|k msg/s /reader|MB/s|% of|CPU µs", first)
    lower = re.findall(r"p\d+ µs|waits|\[95 %\]|floor|/reader|copy|writer|reader", second)
    return [" ".join(pair) for pair in zip(upper, lower, strict=True)]


def _add_rows(found: Figures, size_bytes: int, heads: list[str], lines: Iterable[str]) -> None:
    for line in lines:
        row = re.fullmatch(r" *\d+=? +(\S+) +(.*)", line)
        if row is None:
            return
        words = re.findall(r"\S+ \[[^]]*\]|≥ \S+|\S+", row[2])[: len(heads)]
        cells = dict(zip(heads, words, strict=True))
        found.setdefault((size_bytes, row[1]), {}).update(_of_shown(cells))


def _of_shown(cells: Mapping[str, str]) -> dict[str, float]:
    """Return the figures of a row of texts; of `1.12 [0.955–1.33]` the bounds too."""
    found = {}
    for head, text in cells.items():
        if text in {"n/a", "–", ""} or head.endswith("waits"):
            continue
        name, factor = COLUMNS[head]
        figures = [factor * _number(one) for one in re.findall(r"[\d,.]+", text)]
        if "[" in text or (len(figures) == 1 and "≥" not in text):  # otherwise an interval stands alone, or its low end
            found[name] = figures.pop(0)
        found |= {bound(name, which): one for which, one in zip(BOUNDS, figures, strict=False)}
    return found


def _number(text: str) -> float:
    value = float(text.replace(",", ""))
    return int(value) if value.is_integer() else value


def of_markdown(text: str) -> Figures:
    found: Figures = {}
    for title, part in re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", text.replace("\\", ""), re.M | re.S):
        size = re.match(r"\S+ of .*? = ([\d,]+) B, ", title)
        rows = [[word.strip() for word in line.strip("|").split("|")] for line in re.findall(r"^\|.*", part, re.M)]
        if not size or not rows:
            continue
        for row in rows[2:]:
            cells = dict(zip(rows[0], row, strict=True))
            shown = {head: text for head, text in cells.items() if head in COLUMNS}
            found[int(_number(size[1])), cells["backend"]] = _of_shown(shown)
    return found


def of_matrices(text: str) -> Figures:
    """Read the tables backend × payload of the text."""
    found: Figures = {}
    for part in text.split("\n\n"):
        name = next((MATRICES[title] for title in MATRICES if part.startswith(title)), None)
        if name is None:
            continue
        lines = part.splitlines()
        rule = next(index for index, line in enumerate(lines) if re.fullmatch("-{20,}", line))
        sizes = [int(_number(one)) for one in re.findall(r"([\d,]+) B", lines[rule - 1])]
        for line in lines[rule + 1 :]:
            backend, *words = line.replace("*", "").replace("=", "").split()
            for size, word in zip(sizes, words, strict=True):
                found.setdefault((size, backend), {})[name[0]] = name[1] * _number(word)
    return found


def of_page(text: str) -> Figures:
    """Read the charts that the report's script draws, by payload size; six digits are in the page."""
    names = {
        "latency": ("latency_p50_us", 1.0),
        "round-trip": ("round_trip_p50_us", 1.0),
        "throughput": ("throughput_messages_per_s", 1e3),
        "memory-share": ("throughput_of_memory_copy_ratio", 1e-2),
    }
    figures: Figures = {}
    charts = _charts_of_page(text)
    for key, (name, factor) in names.items():
        for series in (series for chart in charts.get(key, ()) for series in chart["series"]):
            if series["marks"] != "reference":
                for place, x in enumerate(series["x"]):
                    cell = figures.setdefault((round(x), series["name"]), {})
                    cell[name] = factor * series["y"][place]
                    if name in INTERVALS:
                        cell |= {bound(name, which): factor * series[which][place] for which in BOUNDS}
    return figures


def of_page_cost(text: str) -> dict[str, dict[str, float]]:
    """Read the plane of latency and CPU time of the report: setting's choice → backend → CPU µs of all processes."""
    return {
        chart["choice"]: {series["name"]: series["y"][0] for series in chart["series"] if series["marks"] == "points"}
        for chart in _charts_of_page(text)["cpu"]
    }


def _charts_of_page(text: str) -> dict[str, list[dict[str, Any]]]:
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)
    return {group["key"]: group["charts"] for group in json.loads(data)}


def of_recommendation(plain: Mapping[str, Any]) -> Figures:
    """Read the expected figures in the dict of an answer."""
    fields = {**{name: _OF_TIMES[name] for name in TIMES[:3]}, "throughput_messages_per_s": ("throughput_per_s", 1.0)}
    figures: Figures = {}
    for candidate in plain["candidates"]:
        cell = figures.setdefault((plain["question"]["payload_bytes"], candidate["backend"]), {})
        for name, (field, factor) in fields.items():
            cell |= _spread(name, candidate["expected"][field], factor)
        cell["throughput_mb_per_s"] = 1e-6 * candidate["expected"]["throughput_bytes_per_s"]["estimate"]
    return figures


def of_comparison(plain: Mapping[str, Any], payload_bytes: Mapping[int, int]) -> Figures:
    """Read what a comparison says of its first run; `payload_bytes` is by size."""
    figures: Figures = {}
    for change in plain["changes"]:
        if change["a"] is not None and change["metric"] in METRICS:
            key = payload_bytes[change["cell"]["size"]], change["cell"]["backend"]
            name = METRICS[change["metric"]]
            figures.setdefault(key, {}).update(_spread(name, change["a"], 1e-3 if name in TIMES else 1.0))
    return figures


def of_github(text: str) -> Figures:
    figures: Figures = {}
    for point in json.loads(text):
        backend, payload, *_, metric = point["name"].split("/")
        size = int(payload.rpartition("-")[2].removesuffix("B"))
        figures.setdefault((size, backend), {})[METRICS[metric.replace("one-way", "latency")]] = point["value"]
    return figures


def of_osu(text: str) -> Figures:
    names = {
        "one-way latency": ("latency_p50_us", 1.0),
        "half round trip": ("round_trip_p50_us", 2.0),
        "bandwidth": ("throughput_mb_per_s", 1.0),
    }
    figures: Figures = {}
    for table in text.split("\n\n"):
        backend, what = re.match(rf"# ipcbench (\S+): ({'|'.join(names)})", table).groups()  # type: ignore[union-attr]
        name, factor = names[what]
        for size, value in re.findall(r"^(\d+) +([\d.]+)$", table, re.M):
            figures.setdefault((int(size), backend), {})[name] = factor * float(value)
    return figures
