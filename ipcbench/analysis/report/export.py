"""Figures for other programs: CSV with one row per cell, and JSON. Units are in the names; nothing is rounded."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ipcbench.analysis.report.tables import Tables
from ipcbench.analysis.summary.cells import CellSummary, SettingSummary
from ipcbench.analysis.summary.notes import printable
from ipcbench.analysis.summary.wording import setting_title, verdict
from ipcbench.stats.estimates import Interval

JSON_VERSION = 1


def as_csv(tables: Tables) -> str:
    """Return one row per backend and setting; a figure that was not measured is an empty field, text is one line."""
    summary = tables.summary
    rows = [
        {"run_id": summary.info.run_id, **cell_fields(one, cell), "notes": "; ".join(cell.notes)}
        for one in summary.settings
        for cell in one.cells
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["run_id"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: printable(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
    )
    return text.getvalue()


def as_json(tables: Tables) -> str:
    """Return run, machine, and per setting its verdict and cells; a figure that was not measured is null."""
    summary = tables.summary
    document = {
        "format": "ipcbench tables",
        "version": JSON_VERSION,
        "run": asdict(summary.info),
        "header": tables.header,
        "legend": tables.legend,
        "problems": summary.problems,
        "noise_ratios": summary.noise_ratios,
        "controls": [{**asdict(one), "agrees": one.agrees} for one in summary.controls],
        "placement_ns": summary.placement_ns,
        "settings": [
            {
                "title": setting_title(one.setting),
                "verdict": verdict(one),
                **asdict(one.setting),
                "cells": [{**cell_fields(one, cell), "notes": cell.notes} for cell in one.cells],
            }
            for one in summary.settings
        ],
        "findings": [one.as_dict() for one in tables.findings],
        "crossovers": [{"title": one.title, "remarks": one.remarks[:-1]} for one in tables.matrices],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def cell_fields(one: SettingSummary, cell: CellSummary) -> Mapping[str, Any]:
    """Return a cell as flat fields, times in µs, with units in the names; None where not measured."""
    rate = cell.throughput_bytes_per_s
    return {
        **asdict(one.setting),
        "offered_rate_per_s": one.rate_per_s,
        "backend": cell.backend,
        "status": cell.status,
        "reason": cell.reason,
        "ranked_by": one.ranked_by,
        "rank": cell.rank,
        **_interval("ratio_to_best", "", cell.ratio),
        **_interval("latency_p50", "_us", cell.latency_p50_ns, 1e3),
        **_interval("latency_p99", "_us", cell.latency_p99_ns, 1e3),
        **_interval("round_trip_p50", "_us", cell.round_trip_p50_ns, 1e3),
        **_interval("round_trip_p99", "_us", cell.round_trip_p99_ns, 1e3),
        "throughput_messages_per_s": cell.throughput_per_s,
        **_interval("throughput_messages", "_per_s", cell.throughput_interval_per_s, middle=False),
        "throughput_mb_per_s": rate / 1e6 if rate is not None else None,
        "round_trip_rank": cell.round_trip_rank,
        "throughput_rank": cell.throughput_rank,
        "read_p50_us": _us(cell.read_p50_ns),
        "write_p50_us": _us(cell.write_p50_ns),
        "decode_p50_us": _us(cell.decode_p50_ns),
        "writer_cpu_us_per_message": _us(cell.writer_cpu_ns),
        "reader_cpu_us_per_message": _us(cell.reader_cpu_ns),
        "latency_of_harness_floor_ratio": cell.latency_floor_ratio,
        "throughput_of_memory_copy_ratio": cell.memory_bandwidth_ratio,
        "throughput_of_cold_memory_copy_ratio": cell.cold_memory_bandwidth_ratio,
        "rounds_count": cell.rounds_count,
        "samples_count": cell.samples_count,
        "trials_count": cell.trials_count,
        "clean_count": cell.clean_count,
        "failed_count": cell.failed_count,
    }


def _us(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e3


def _interval(
    name: str, unit: str, interval: Interval | None, divisor: float = 1.0, *, middle: bool = True
) -> dict[str, float | None]:
    """Return `name_unit`, `name_low_unit` and `name_high_unit`; without `middle` only the last two."""
    low, estimate, high = (None, None, None)
    if interval is not None:
        low, estimate, high = (value / divisor for value in (interval.low, interval.estimate, interval.high))
    first = {f"{name}{unit}": estimate} if middle else {}
    return {**first, f"{name}_low{unit}": low, f"{name}_high{unit}": high}
