"""CSV, JSON and README.md of a profile, under the names and with the keys of an earlier system, beside our own.

Its keys hold seconds, percent, and GB/s (`avg_bandwidth_gbps`: all bytes by all transfer); ours end in their unit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean, median, pstdev
from typing import Any, Final

from ipcbench.profile.advice import Advice
from ipcbench.profile.files import tables
from ipcbench.profile.records import Call, SweepPoint, Unavailable
from ipcbench.profile.summary import COMMUNICATION, HOST, OWN, Summary
from ipcbench.render.document import head
from ipcbench.render.text import bullets, csv_text, escape, markdown_table

UNITS: Final = {
    "*_time, *_latency": "s", "*_percentage, percentage": "% of the steps' wall time", "*_bandwidth_gbps": "GB/s",
    "total_data*, *_bytes, tensor_size": "B", "*_ns, value, rounds, low, estimate, high": "ns", "*_ratio": "1",
}  # fmt: skip
METHOD: Final = (
    "Times come from spans around the model's modules; the shares of operators within a block from steps of their own, "
    "scaled to the block's time; FLOPs and bytes from the shapes alone.",
    "Nested times are never added up: a part's time is without the parts inside it and without communication.",
    "Waiting is the time from a rank's own call to that of the last rank; the rest of a call is transfer.",
    "Parts are means over the same steps at all ranks, without those that took twice the median or more at one; the "
    "whole is their mean, too. Intervals are of medians, 95 %.",
)
LIMITS: Final = (
    "One run in one process a rank: another run of the same may differ by more than the intervals say.",
    "Where ranks share cores, waiting includes the time in which the other ranks' work had the core.",
)


def method(summary: Summary) -> tuple[Sequence[str], Sequence[str]]:
    """Return how the figures of a profile came about, and what they cannot say; of calls alone, how they waited."""
    return (METHOD, LIMITS) if summary.profile.steps else (METHOD[2:3], ())


_SIZES = (("small_1kb", 1 << 10), ("medium_1mb", 1 << 20), ("large_100mb", 100 << 20), ("xlarge_1gb", 1 << 62))
_TIMINGS = ("rank", "step", "phase", "position", "source", "layer_name", "op_name", "op_type", "device_id", "start_ns",
            "duration_ns", "exclusive_ns", "wait_ns", "bytes", "flops")  # fmt: skip


def timings_csv(summary: Summary) -> str:
    """Return a row for each span and call, and for each operator bucket (per step)."""
    profile = summary.profile
    steps = {(step.rank, step.number): step for step in profile.steps}
    sent = summary.communicated_ns()
    rows: list[dict[str, Any]] = []
    for span in profile.spans:
        row = {"op_name": span.kind, "op_type": "compute", "start_ns": span.start_ns, "duration_ns": span.duration_ns}
        own = {"exclusive_ns": max(0, span.exclusive_ns - sent.get(span, 0))}
        rows.append(_at(steps, span.rank, span.step, span.path) | row | own)
    for call in profile.calls:
        row = {"op_name": call.op, "op_type": "communication", "start_ns": call.enter_ns, "duration_ns": call.took_ns}
        rows.append(_at(steps, call.rank, call.step, call.path) | row | {"bytes": call.bytes, "wait_ns": call.wait_ns})
    rows += [
        {
            "rank": each.rank, "phase": each.phase, "source": "operators", "layer_name": each.path, "flops": each.flops,
            "op_name": each.bucket, "op_type": "communication" if each.bucket == "communication" else "compute",
            "device_id": each.rank, "exclusive_ns": each.exclusive_ns, "bytes": each.bytes,
        }
        for each in profile.operators
    ]  # fmt: skip
    return csv_text(rows, _TIMINGS)


def _at(steps: Mapping[tuple[int, int], Any], rank: int, number: int, path: str) -> dict[str, Any]:
    step = steps.get((rank, number))
    known = {"phase": step.phase, "position": step.position, "source": step.source} if step else {}
    return {"rank": rank, "step": number, "layer_name": path, "device_id": rank, **known}


def _times_s(times_ns: Sequence[float]) -> dict[str, float | int]:
    """Return the earlier system's figures of times; none without any."""
    if not times_ns:
        return {}
    seconds = [ns / 1e9 for ns in times_ns]
    return {
        "count": len(seconds), "total_time": sum(seconds), "avg_time": fmean(seconds), "std_time": pstdev(seconds),
        "min_time": min(seconds), "median_time": median(seconds), "max_time": max(seconds),
    }  # fmt: skip


def analysis(summary: Summary, advice: Sequence[Advice], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return analysis_report.json."""
    layers: dict[str, list[float]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for span in summary.profile.spans:
        counts[span.kind] += 1
        if span.kind in {"layer", OWN}:
            layers[span.path].append(span.duration_ns)
    operations: dict[str, float] = defaultdict(float)
    for each in summary.phases:
        for kind, ns in each.blocks.values():
            operations[kind] += ns * each.steps_count
    wall_ns = sum(each.wall_ns * each.steps_count for each in summary.phases)
    return {
        **head("profile analysis"),
        "units": UNITS,
        "remarks": summary.profile.remarks,
        "phases": summary.phases,
        "whole": summary.totals,
        "tokens_per_s": summary.tokens_per_s,
        "slow_layers": summary.slow_layers,
        "held_up": summary.held_up,
        "layer_breakdown": {path: _times_s(times) for path, times in layers.items()},
        "operation_breakdown": {
            kind: {"count": counts[kind], "total_time": ns / 1e9, "avg_time": ns / 1e9 / counts[kind],
                   "percentage": 100 * ns / wall_ns}
            for kind, ns in operations.items()
        },
        "by_operation_type": {
            "compute": sum(each.wall_ns - each.ns(*COMMUNICATION, HOST) for each in summary.phases),
            "communication": sum(each.ns(*COMMUNICATION) for each in summary.phases),
            "host_overhead": sum(each.ns(HOST) for each in summary.phases),
            "unit": "ns, a step of each phase and rank",
        },
        "communication_analysis": _communication(summary),
        "memory_analysis": summary.profile.memory,
        "advice": advice,
        "metrics": metrics,
    }  # fmt: skip


def _communication(summary: Summary) -> dict[str, Any]:
    """Return the earlier system's totals over all steps with spans; the share is that of the parts of a step."""
    steps = {(s.rank, s.number) for s in summary.profile.steps if s.source == "spans"}
    took = [ns for c in summary.profile.calls if (c.rank, c.step) in steps and (ns := c.took_ns) is not None]
    if not took:
        return {"total_comm_ops": len(summary.profile.calls), "comm_percentage": None}
    total, phases = sum(took) / 1e9, summary.phases
    share = sum(each.steps_count * each.ns(*COMMUNICATION) for each in phases)
    return {"total_comm_ops": len(took), "total_comm_time": total, "avg_comm_time": total / len(took),
            "comm_percentage": 100 * share / sum(each.steps_count * each.wall_ns for each in phases)}  # fmt: skip


def communication(summary: Summary) -> dict[str, Any]:
    """Return comm_analysis.json."""
    calls = summary.profile.calls
    ops, sizes = defaultdict[str, list[Call]](list), defaultdict[str, list[Call]](list)
    for call in calls:
        ops[call.op].append(call)
        sizes[next(name for name, limit in _SIZES if call.bytes < limit)].append(call)
    return {
        **head("profile communication"),
        "units": UNITS,
        "remarks": summary.profile.remarks,
        "summary": _communication(summary) | {"total_data_transferred": sum(call.bytes for call in calls)},
        "by_operation_type": {op: _operation(each) for op, each in ops.items()},
        "bandwidth_analysis": {"by_size_range": {name: _operation(each) for name, each in sizes.items()}},
        "by_size": [{"phase": phase, "totals": found} for phase, found in summary.call_totals],
    }


def _operation(calls: Sequence[Call]) -> dict[str, Any]:
    timed = [(call, ns) for call in calls if (ns := call.took_ns) is not None]
    waits = [call.wait_ns for call in calls if call.wait_ns is not None]
    divided = [(call.bytes, ns - call.wait_ns) for call, ns in timed if call.wait_ns is not None]
    size_bytes, transfer_ns = (sum(column) for column in zip(*divided, strict=True)) if divided else (0, 0)
    return {
        "count": len(calls), "total_data": sum(call.bytes for call in calls), **_times_s([ns for _, ns in timed]),
        "avg_bandwidth_gbps": size_bytes / transfer_ns if transfer_ns else None,
        "wait_ns": sum(waits) if waits else None, "transfer_ns": transfer_ns if divided else None,
    }  # fmt: skip


def records(summary: Summary) -> list[dict[str, Any]]:
    """Return comm_records.json."""
    return [
        {
            "timestamp": call.enter_ns and call.enter_ns / 1e9, "op_type": call.op,
            "tensor_size": call.bytes, "duration": call.took_ns and call.took_ns / 1e9,
            "metadata": {"tensor_dtype": call.dtype, "path": call.path, "ranks": call.ranks, "rank": call.rank,
                         "step": call.step, "sequence": call.sequence, "match": call.match},
            "wait_ns": call.wait_ns, "gap_ns": call.gap_ns,
        }
        for call in summary.profile.calls
    ]  # fmt: skip


def comprehensive(
    summary: Summary, advice: Sequence[Advice], points: Sequence[SweepPoint], missing: Sequence[Unavailable],
    report: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return comprehensive_report.json, given analysis_report.json."""
    profile, setting = summary.profile, summary.profile.setting
    return {
        "experiment_info": {"setting": setting, "machine": profile.machine,
                            "versions": profile.versions, "verified_on": profile.verified_on},
        "executive_summary": {
            "model_info": setting and {"model": setting.model, "parallel": setting.parallel},
            "key_findings": [tables.verdict(summary, advice), *tables.sentences(summary)],
            "performance_metrics": {"whole": report["whole"], "tokens_per_s": summary.tokens_per_s},
            "bottlenecks_identified": advice[:5],
            "communication_overhead": report["communication_analysis"],
        },
        "detailed_findings": {"analysis": report, "communication": communication(summary)},
        "sweeps": points,
        "recommendations": [f"{each.action} {each.evidence}" for each in advice],
        "agreement": profile.agreement,
        "unavailable": missing,
        "appendix": dict(zip(("methodology", "limitations"), method(summary), strict=True)),
    }  # fmt: skip


def readme(summary: Summary, advice: Sequence[Advice], names: Iterable[str], missing: Sequence[Unavailable]) -> str:
    """Return README.md."""
    setting = summary.profile.setting
    found = [*tables.tables_of(summary).values(), tables.unavailable_table(missing)]
    parts = [
        f"# Profile of {escape(setting.model)}, {setting.parallel}" if setting else "# Calls of another tool",
        escape(tables.verdict(summary, advice)),
        bullets(tables.sentences(summary)),
        f"## What would help\n\n{bullets(tables.advice_lines(advice))}" if advice else "",
        *(f"## {table.title}\n\n{markdown_table(table)}" for table in found if table.rows),
        f"## How it was measured\n\n{bullets(chain(*method(summary)))}",
        f"## Files\n\n{bullets(names)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
