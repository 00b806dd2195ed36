"""The files of a sweep: its cases as JSON after each of them, and at the end pictures and performance_report.md, of all
sweeps in the folder.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ipcbench.errors import StoreError
from ipcbench.profile.advice import advise, case_words
from ipcbench.profile.files import as_json
from ipcbench.profile.files.plots import bandwidth_figure, bandwidth_lines
from ipcbench.profile.files.tables import WIDTH, advice_lines, interval_words
from ipcbench.profile.records import Profile, Setting, SweepPoint
from ipcbench.profile.summary import Summary, summarize
from ipcbench.render.figures import new_figure, saved
from ipcbench.render.plot_panel import INK, MUTED
from ipcbench.render.table import NOT_MEASURED, Table, make_columns, number
from ipcbench.render.text import aligned, bullets, markdown_table, paragraphs
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval
from ipcbench.util.files import as_store_errors, regular, write_bytes
from ipcbench.util.units import format_bytes, format_percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES: Final = {"seq": "latency_analysis", "parallel": "parallelism_overhead", "bandwidth": "bandwidth_test"}
GRADES: Final = {"tp": (0.75, 0.5), "pp": (0.6, 0.4), "device to device": (0.75, 0.5), "peer to peer": (0.5, 0.3)}
"""Way to divide the model → above which efficiency it is good, and fair; what a GPU copies → above which share of the
peak of its memory, or of its NVLinks.
"""
_COLUMNS = {
    "ttft_ns": ("first token, ms", 1e6), "time_per_token_ns": ("per token, ms", 1e6), "tokens_per_s": ("tokens/s", 1.0),
    "speedup_ratio": ("speed-up", 1.0), "efficiency_ratio": ("efficiency", 1.0),
    "efficiency_all_threads_ratio": ("against all threads", 1.0), "communication_ratio": ("communication", 1.0),
}  # fmt: skip
_EARLIER = {
    "ttft_ns": ("ttft", 1e9), "time_per_token_ns": ("avg_latency", 1e9), "tokens_per_s": ("tokens_per_second", 1.0),
    "speedup_ratio": ("speedup", 1.0), "efficiency_ratio": ("efficiency", 1.0),
    "bytes_per_s": ("bandwidth_gbps", 1e9), "bus_bytes_per_s": ("effective_bandwidth_gbps", 1e9),
}  # fmt: skip
"""Keys of an earlier system: seconds, and GB/s."""
_GAINS = tuple(f"{what}_{of}" for what in ("speedup", "efficiency") for of in ("ratio", "all_threads_ratio"))
"""Figures of a sweep that are unknown of too few rounds."""
_MOST_ROWS = 25
_NAMES = {"seq": "prompt", "batch": "batch", "tokens": "output"}
_MACHINE = ("cpu_model", "usable_cores", "memory_bytes", "kernel")


class _Stored(msgspec.Struct):
    """What a file has beside its cases is unknown of a file of before."""

    cases: list[dict[str, Any]]
    started_unix_s: float | None = None
    setting: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}

    def points(self) -> Iterator[SweepPoint]:
        """Yield the cases, with the figures that are known."""
        for case in self.cases:
            figures = {
                name: {end: each["estimate"] if value is None else value for end, value in each.items()}
                for name, each in msgspec.convert(case["figures"], dict[str, dict[str, float | None]]).items()
                if name not in _GAINS or each["low"] is not None
            }
            yield msgspec.convert(case | {"figures": figures}, SweepPoint)

    def about(self) -> Iterator[str]:
        """Yield what was measured, when, where, and with which versions, as far as it is known."""
        if self.started_unix_s is not None:
            yield f"{datetime.fromtimestamp(self.started_unix_s, UTC):%Y-%m-%d %H:%M} UTC"
        machine = {name: self.machine[name] for name in _MACHINE if self.machine.get(name) is not None}
        for facts in (self.setting, machine, self.versions):
            if facts:
                yield ", ".join(f"{name} {value}" for name, value in facts.items())


def write_sweep(points: Sequence[SweepPoint], folder: Path, stamp: str, facts: Mapping[str, Any] | None = None) -> None:
    """Write the cases so far as JSON, a file for each kind of sweep; `stamp` is in its name.

    Args:
        points: the cases.
        folder: where.
        stamp: the time.
        facts: `started_unix_s`, and what was measured where: `setting`, `machine`, `versions`.

    Raises:
        StoreError: it cannot be written.
    """
    for sweep, name in FILES.items():
        cases = [_case(point) for point in points if point.sweep == sweep]
        if cases:
            write_bytes(folder / f"{name}_{stamp}.json", as_json({"sweep": sweep, **(facts or {}), "cases": cases}))


def _case(point: SweepPoint) -> dict[str, object]:
    unknown = dict.fromkeys(_GAINS if point.sweep == "parallel" else (), dict.fromkeys(("low", "estimate", "high")))
    figures: dict[str, dict[str, float | None]] = {**unknown, **asdict(point)["figures"]}
    if point.rounds_count < MIN_CLAIM_ROUNDS:
        figures = {name: {"low": None, "estimate": each["estimate"], "high": None} for name, each in figures.items()}
    known = {name: figures[name]["estimate"] for name in _EARLIER if name in figures}
    earlier = {_EARLIER[name][0]: value and value / _EARLIER[name][1] for name, value in known.items()}
    return asdict(point) | {"figures": figures} | earlier | {"grade": grade(point)}


def grade(point: SweepPoint) -> str | None:
    """Return `good`, `fair` or `poor` for the efficiency of a case, or its share of a device's peak; or two of them
    where its interval reaches across a limit; None for what has no grade, or too few rounds.
    """
    found = point.figures.get("efficiency_ratio") or point.figures.get("peak_ratio")
    limits = GRADES.get(str(point.values.get("parallel"))[:2]) or GRADES.get(str(point.values.get("what")))
    if found is None or limits is None or point.rounds_count < MIN_CLAIM_ROUNDS:
        return None
    words = [next((word for word, limit in zip(("good", "fair"), limits, strict=True) if end > limit), "poor")
             for end in (found.low, found.high)]  # fmt: skip
    return " to ".join(dict.fromkeys(words))


def tables_of(points: Sequence[SweepPoint]) -> list[Table]:
    """Return a table for each kind of sweep with a measured case."""
    found = []
    for sweep in FILES:
        measured = [point for point in points if point.sweep == sweep and point.status == "measured"]
        if measured:
            found.append(_bandwidth_table(measured) if sweep == "bandwidth" else _table(sweep, measured))
    return found


def _table(sweep: str, points: Sequence[SweepPoint]) -> Table:
    names = [name for name in _COLUMNS if any(name in point.figures for point in points)]
    found = {key: [*dict.fromkeys(point.values.get(key) for point in points)] for key in _NAMES}
    keys = [key for key, values in found.items() if len(values) > 1]
    alike = [f"{name} {found[key][0]}" for key, name in _NAMES.items() if key not in keys and found[key] != [None]]
    rows = [
        (
            case_words(point),
            *(str(point.values.get(key, NOT_MEASURED)) for key in keys),
            *(_figure(point.figures.get(name), _COLUMNS[name][1]) for name in names),
            *([grade(point) or NOT_MEASURED, _rounds(point)] if sweep == "parallel" else []),
        )
        for point in points
    ]
    heads = [
        "case",
        *keys,
        *(_COLUMNS[name][0] for name in names),
        *(["grade", "rounds"] if sweep == "parallel" else []),
    ]
    title = "Latency by length" if sweep == "seq" else "What dividing the model brings, against one process"
    return Table(": ".join(filter(None, (title, ", ".join(alike)))), make_columns(heads), tuple(rows))


def _rounds(point: SweepPoint) -> str:
    asked = int(point.values.get("rounds_asked", point.rounds_count))
    return f"{point.rounds_count} of {asked}" if point.rounds_count < asked else str(point.rounds_count)


def _figure(figure: Interval | None, by: float) -> str:
    if figure is None:
        return NOT_MEASURED
    return number(figure.estimate, by) + ("" if figure.low == figure.high else interval_words(figure, by))


def _bandwidth_table(points: Sequence[SweepPoint]) -> Table:
    lines = bandwidth_lines(points)
    sizes = sorted({size for values in lines.values() for size in values})
    rows = tuple((name, *(_figure(values.get(size), 1e9) for size in sizes)) for name, values in lines.items())
    title = "Bandwidth, GB/s (collective operations: bus bandwidth)"
    return Table(title, make_columns(["what", *map(format_bytes, sizes)]), rows)


def sweep_lines(points: Sequence[SweepPoint]) -> list[str]:
    """Return a sweep as text: its tables, what follows from them, and how much was not measured, and why."""
    lines: list[str] = []
    for table in tables_of([_without_intervals(point) for point in points]):
        shown = aligned(replace(table, rows=table.rows[:_MOST_ROWS]), WIDTH, name_width=WIDTH // 2)
        more = len(table.rows) - _MOST_ROWS
        lines += [table.title, "", *shown, *([f"{more} more rows: see performance_report.md"] if more > 0 else []), ""]
    return [*lines, *paragraphs([*_advice(points), *_doubts(points), *_peaks(points), *_left_out(points)], WIDTH)]


def _without_intervals(point: SweepPoint) -> SweepPoint:
    """Return a case as a screen shows it: of bandwidth, which has columns for many sizes, the medians alone."""
    medians = {name: Interval(*[each.estimate] * 3) for name, each in point.figures.items()}
    return replace(point, figures=medians) if point.sweep == "bandwidth" else point


def _advice(points: Sequence[SweepPoint]) -> list[str]:
    return advice_lines([each for each in advise(_NOTHING, points) if each.rule == "division"])


_NOTHING: Summary = summarize(Profile(Setting(model="")))


def _peaks(points: Sequence[SweepPoint]) -> list[str]:
    """Return what share of its peak a GPU's largest copy of each kind has; with an earlier system's limit beside it."""
    said: dict[object, str] = {}
    for point in points:  # of one kind, the largest comes last
        rate, share = (point.figures.get(name) for name in ("bytes_per_s", "peak_ratio"))
        if rate is None or not (earlier := int(point.values.get("earlier_good_bytes_per_s", 0))):
            continue
        peak = f"{format_percent(share.estimate)} of the device's peak: {grade(point)}" if share else "peak not known"
        said[point.values["what"]] = (
            f"{point.values['what']}, {format_bytes(int(point.values['bytes']))}: {number(rate.estimate, 1e9)} GB/s, "
            f"{peak} (an earlier system called every device good above {number(earlier, 1e9)} GB/s)."
        )
    return [*said.values()]


def _doubts(points: Sequence[SweepPoint]) -> list[str]:
    """Return what is odd, or too little: an efficiency above 100 %, and rounds that are too few."""
    few = [point for point in points if point.sweep == "parallel" and 0 < point.rounds_count < MIN_CLAIM_ROUNDS]
    said = ["Too few rounds to compare: allow more with --rounds and --budget."] * bool(few)
    above = [case_words(point) for point in points
             if (found := point.figures.get("efficiency_ratio")) and found.estimate > 1]  # fmt: skip
    caution = "the one process was slower than it should be: busy cores?"
    return [*said, *([f"Efficiency above 100 % ({', '.join(above)}): {caution}"] if above else [])]


def _left_out(points: Sequence[SweepPoint]) -> list[str]:
    """Return each reason why cases are missing, with their names, each once; what they would take stays in the JSON."""
    reasons: dict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)
    for point in points:
        if point.status != "measured":
            reasons[point.status, point.reason.partition(" (about ")[0]].append(_name(point))
    return [f"{status}: {reason}: {_together(cases)}." for (status, reason), cases in reasons.items()]


def _name(point: SweepPoint) -> tuple[str, ...]:
    """Return the parts of a case's name, of which cases that are alike share all but one."""
    values = point.values
    if point.sweep == "bandwidth":
        what = [str(values[key]) for key in ("what", "direction") if values.get(key)]
        return (
            str(values.get("transport", "")),
            " ".join(what),
            format_bytes(int(values["bytes"])) if values.get("bytes") else "",
        )
    return case_words(point), *(f"{name} {values[key]}" for key, name in _NAMES.items())


def _together(cases: Sequence[tuple[str, ...]]) -> str:
    """Return names of cases, those with equal parts together: `tp2: prompt 128, 256: batch 1, 2`."""
    rows = [*dict.fromkeys(cases)]
    for place in reversed(range(len(rows[0]))):
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for row in rows:
            groups[*row[:place], *row[place + 1 :]].append(row[place])
        rows = [(*rest[:place], ", ".join(each), *rest[place:]) for rest, each in groups.items()]
    text = "; ".join(": ".join(filter(None, row)) for row in rows)
    return re.sub(rf"(?<=, )({'|'.join(_NAMES.values())}) ", "", text)  # each once


def write_report(folder: Path) -> list[str]:
    """Write the pictures, if matplotlib is installed, and performance_report.md, of all sweeps whose files are in a
    folder; return their names. Of several of a kind, all pictures but the first's have the time in their names.

    Raises:
        StoreError: one cannot be written, or is no file of a sweep.
    """
    pictures: dict[str, bytes] = {}
    parts = ["# Performance report"]
    for sweep, name in FILES.items():
        for place, path in enumerate(sorted(folder.glob(f"{name}_*.json"))):
            stored, points = _read(path)
            picture = _picture(sweep, points, path.stem.removeprefix(name) if place else "")
            parts += [f"## {path.name}", bullets(stored.about())]
            parts += [f"### {table.title}\n\n{markdown_table(table)}" for table in tables_of(points)]
            parts += [f"![{each}]({each})" for each in picture]
            for title, lines in (
                ("What follows", [*_advice(points), *_doubts(points)]),
                ("GPUs", _peaks(points)),
                ("Not measured", _left_out(points)),
            ):
                parts += [f"### {title}\n\n{bullets(lines)}"] if lines else []
            pictures |= picture
    write_bytes(folder / "performance_report.md", ("\n\n".join(filter(None, parts)) + "\n").encode())
    for name, data in pictures.items():
        write_bytes(folder / name, data)
    return [*pictures, "performance_report.md"]


def _read(path: Path) -> tuple[_Stored, list[SweepPoint]]:
    with as_store_errors(path):
        data = regular(path).read_bytes()
    try:
        stored = msgspec.json.decode(data, type=_Stored)
        return stored, [*stored.points()]
    except (msgspec.MsgspecError, KeyError) as error:
        raise StoreError(f"{path}: no sweep: {error}; move it elsewhere") from error


def _picture(sweep: str, points: Sequence[SweepPoint], suffix: str) -> dict[str, bytes]:
    """Draw what was measured, and return the picture by its name; nothing without matplotlib or figures."""
    drawn: dict[str, tuple[str, Callable[[Sequence[SweepPoint]], Figure | None]]] = {
        "seq": ("latency_analysis", _latency), "parallel": ("parallelism_analysis", _parallelism),
        "bandwidth": ("bandwidth_analysis", lambda points: bandwidth_figure(bandwidth_lines(points))),
    }  # fmt: skip
    name, draw = drawn[sweep]
    try:
        figure = draw([point for point in points if point.status == "measured"])
    except ImportError:
        return {}
    return {} if figure is None else {f"plots/{name}{suffix}.png": saved(figure)}


def _latency(points: Sequence[SweepPoint]) -> Figure | None:
    if not points:
        return None
    batch = min(int(point.values["batch"]) for point in points)
    seq = min(int(point.values["seq"]) for point in points)
    tokens = max(int(point.values["tokens"]) for point in points)
    points = [point for point in points if point.values["tokens"] == tokens]
    panels = (("ttft_ns", "seq", "batch", batch, "time to the first token, ms", 1e6),
              ("time_per_token_ns", "seq", "batch", batch, "time per further token, ms", 1e6),
              ("tokens_per_s", "batch", "seq", seq, "tokens/s", 1.0))  # fmt: skip
    figure, axes = new_figure(f"Latency and speed, {tokens} tokens decoded", 3, 3.8)
    for each, (name, along, fixed, value, title, by) in zip(axes, panels, strict=True):
        lines: dict[str, list[tuple[int, Interval]]] = defaultdict(list)
        for point in points:
            if point.values[fixed] == value and name in point.figures:
                lines[case_words(point)].append((int(point.values[along]), point.figures[name]))
        for case, found in lines.items():
            found.sort(key=lambda pair: pair[0])
            xs = [x for x, _ in found]
            each.plot(xs, [figure.estimate / by for _, figure in found], marker="o", label=case)
            each.fill_between(xs, [f.low / by for _, f in found], [f.high / by for _, f in found], alpha=0.15)
        ticks = sorted({x for found in lines.values() for x, _ in found})
        each.set_xscale("log", base=2)
        each.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        each.xaxis.minorticks_off()
        each.set_ylim(bottom=0)
        each.set_xlabel(f"{'tokens of the prompt' if along == 'seq' else 'sequences in a batch'}", color=MUTED)
        each.set_ylabel(title, color=MUTED)
        each.set_title(f"{fixed} {value}", loc="left", fontsize=10, color=INK)
        each.legend(frameon=False, fontsize=9)
    return figure


def _parallelism(points: Sequence[SweepPoint]) -> Figure | None:
    panels = [("speedup_ratio", "speed-up against one process"), ("efficiency_ratio", "efficiency"),
              ("communication_ratio", "share of communication in a step")]  # fmt: skip
    panels = [panel for panel in panels if any(panel[0] in point.figures for point in points)]
    if not panels:
        return None
    figure, axes = new_figure("What dividing the model brings", len(panels), 3.8)
    for each, (name, title) in zip(axes, panels, strict=True):
        shown = [point for point in points if name in point.figures]
        found = [(_graded(point, name), point.figures[name]) for point in shown]
        values = [figure.estimate for _, figure in found]
        known = [point.rounds_count >= MIN_CLAIM_ROUNDS for point in shown]
        bars = each.barh([case for case, _ in found], values, color="#0072b2", edgecolor="#0072b2", height=0.6)
        for row, (bar, (_, at), is_known) in enumerate(zip(bars, found, known, strict=True)):
            bar.set_fill(is_known)
            if is_known:
                each.errorbar(at.estimate, row, xerr=[[at.estimate - at.low], [at.high - at.estimate]], color=INK)
        each.set_xlabel(title if all(known) else f"{title} (hollow: too few rounds)", color=MUTED)
        each.invert_yaxis()
    return figure


def _graded(point: SweepPoint, name: str) -> str:
    return case_words(point) + (f"\n({grade(point)})" if name == "efficiency_ratio" and grade(point) else "")
