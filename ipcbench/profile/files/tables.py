"""A profile in sentences and tables, for the terminal, README.md and the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from ipcbench.profile.advice import BUSY, Advice, percent
from ipcbench.profile.comm.late import held_up_words
from ipcbench.profile.compare import Comparison
from ipcbench.profile.records import Phase, Unavailable
from ipcbench.profile.summary import BUCKETS, OWN, TRANSFER, UNDIVIDED, WAIT, OperatorTime, Part, PhaseSummary, Summary
from ipcbench.profile.timing.overhead import Overhead
from ipcbench.render.table import NOT_MEASURED, Table, make_columns, number
from ipcbench.render.text import aligned, paragraphs
from ipcbench.stats.estimates import Interval
from ipcbench.stats.figures import Figure
from ipcbench.util.text import printable
from ipcbench.util.units import format_bytes, format_duration_ns

WIDTH = 110
_MOST_RANKS = 2
"""Of a phase, beside one another on a screen: those with most and least waiting."""
_MOST_BLOCKS = 8
_MOST_ADVICE = 3
_MOST_OPERATIONS = 12
_SCREEN_LINES = 30
_UNITS_NS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}
_MORE_RATIO = 1.5
_MOST_RATIO = 0.5
"""A part is most of a step above it."""


def verdict(summary: Summary, advice: Sequence[Advice]) -> str:
    """Return what a profile says first: how long steps take, where most of it goes, and what could save most."""
    seq = summary.setting.seq
    names: dict[Phase, str] = {"decode": "a decoded token", "prefill": f"the prompt of {seq} token{'s' * (seq != 1)}"}
    if summary.is_own_model:
        names["prefill"] = "a call of the model"
    times = [
        f"{name} takes {figure_words(found)}" for phase, name in names.items() if (found := summary.latency(phase))
    ]
    if not times:
        count = len(summary.profile.calls)
        return f"A plan of {count:,} calls without times." if summary.profile.is_planned else f"{count:,} calls."
    said = f"{times[0][0].upper()}{', '.join(times)[1:]}."
    agreement = summary.profile.agreement
    if agreement and not agreement.holds:
        return f"{agreement.words}. {said}"
    if ranks := next(reversed(summary.by_phase), []):
        parts = [(each, part) for each in ranks for part in each.buckets]
        each, most = max(parts, key=lambda pair: pair[1].share_ratio)
        where = f" at rank {each.rank}" if len(ranks) > 1 else ""
        much = "Most" if most.share_ratio > _MOST_RATIO else "The largest part"
        said += f" {much} of {names[each.phase]} is {most.words}{where}: {percent(most.share_ratio)}."
        waiting = max(ranks, key=lambda each: each.share(WAIT))
        if most.name != WAIT and waiting.share(WAIT) >= most.share_ratio / 2:
            said += f" Rank {waiting.rank} waits {percent(waiting.share(WAIT))} of the time."
    if advice and advice[0].rule == BUSY:
        said += f" {advice[0].evidence} {advice[0].action}"
    elif advice and advice[0].gain_ratio is not None:
        said += f" Most to save: {advice[0].action}"
    return said


def figure_words(figure: Figure) -> str:
    """Return a time with its interval, if it has one."""
    words = format_duration_ns(figure.value)
    return words + interval_words(figure.interval, _UNITS_NS[words.rpartition(" ")[2]])


def interval_words(interval: Interval | None, divisor: float = 1.0) -> str:
    """Return ` [low, high]`; nothing for None."""
    return "" if interval is None else f" [{number(interval.low, divisor)}, {number(interval.high, divisor)}]"


def sentences(summary: Summary) -> Iterator[str]:
    """Yield what the tables do not say, what matters most first: agreement, bubble, stragglers, slow layers, speed, own
    cost, coverage.
    """
    profile = summary.profile
    if profile.agreement and profile.agreement.holds:  # else the verdict says so
        yield f"{profile.agreement.words}."
    if held_up := held_up_words(summary.held_up):
        yield held_up
    yield from summary.left_out
    for total in summary.totals:
        if total.bubble:
            measured, formula = percent(total.bubble.measured_ratio), percent(total.bubble.formula_ratio)
            yield f"The pipeline's bubble in {total.phase} is {measured}; {formula} by (p − 1) / (m + p − 1)."
        found, often = summary.late.get(total.phase), total.totals.stragglers if total.totals else ()
        for late in [each for each in often if found and each.rank in found.ranks][:1]:
            by, where = format_duration_ns(late.late_ns), printable(late.path) or "unknown modules"
            times = f"{late.count:,} of {late.of_count:,} times"
            yield f"In {total.phase}, rank {late.rank} entered last {times} in {where}, by {by} (median)."
    for each in summary.slow_layers[:2]:
        yield (
            f"{each.path} takes {format_duration_ns(each.ns)} at rank {each.rank} in {each.phase}, "
            f"{format_duration_ns(each.others_ns)} at the others."
        )
    yield from (printable(remark) for remark in profile.remarks)
    yield from _closing(summary)


def _closing(summary: Summary) -> Iterator[str]:
    """Yield speed and coverage, and what the spans cost."""
    said = []
    if summary.tokens_per_s is not None:
        said.append(f"{number(summary.tokens_per_s)} tokens/s are decoded by the whole batch")
    if summary.phases:
        least = min(summary.phases, key=lambda each: each.coverage_ratio)
        said.append(f"forward and communication cover at least {100 * least.coverage_ratio:.1f} % of the steps")
    if said:
        yield f"{said[0][0].upper()}{'; '.join(said)[1:]}."
    if costs := [f"{total.phase} {cost_words(total.overhead)}" for total in summary.totals]:
        yield f"Own cost of the spans, of the time: {'; '.join(costs)}."


def cost_words(cost: Overhead) -> str:
    """Return what spans cost, of the time, without a full stop."""
    if cost.ratio is None:
        return "not known; it takes 3 repetitions with spans and 3 without"
    ends = (cost.ratio.estimate, cost.ratio.low, cost.ratio.high)
    text = "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*(100 * end for end in ends))
    if cost.ratio.high < 0.0:
        return f"not resolvable here ({text}: spans save no time, the machine changed)"
    return text if cost.is_resolved else f"not resolvable here ({text})"


def bucket_table(summary: Summary, most_ranks: int = 1000, most_blocks: int = 1000) -> Table:
    """Return the parts of a step: rows are buckets, columns phases and ranks.

    Args:
        summary: the content.
        most_ranks: of each phase; if there are more, those with most and least waiting are shown.
        most_blocks: of a model of other names; if there are more, the smaller ones stand together.
    """
    shown: list[PhaseSummary] = []
    for ranks in summary.by_phase:
        by_wait = sorted(ranks, key=lambda each: each.share(WAIT))
        shown += ranks if len(ranks) <= most_ranks else sorted((by_wait[0], by_wait[-1]), key=lambda each: each.rank)
    heads = _heads(summary, shown)
    rows = [("whole step", *(_cell(each.wall_ns, 1.0) for each in shown))] if shown else []
    own = sorted(set(summary.bucket_names) - {*BUCKETS}, key=lambda name: -max(each.ns(name) for each in shown))
    small = own[most_blocks:]
    parts = {printable(name): (name,) for name in summary.bucket_names if name not in small}
    for head, names in (parts | {f"{len(small)} more blocks": tuple(small)}).items():
        if any(each.ns(*names) for each in shown):
            is_divided = names in {(WAIT,), (TRANSFER,)}
            rows.append((
                head,
                *(NOT_MEASURED if is_divided and each.ns(UNDIVIDED) else _cell(each.ns(*names), each.share(*names))
                  for each in shown),
            ))  # fmt: skip
    return Table("Where a step goes, ms (share of the step)", make_columns(["part, ms", *heads]), tuple(rows))


def _cell(ns: float, share: float) -> str:
    return f"{number(ns, 1e6)} ({100 * share:.0f} %)"


def _heads(summary: Summary, shown: Sequence[PhaseSummary]) -> list[str]:
    several = len({each.rank for each in summary.phases}) > 1
    return [f"{each.phase}, rank {each.rank}" if several else each.phase for each in shown]


def layer_table(summary: Summary) -> Table:
    """Return every layer's time without communication."""
    names = dict.fromkeys(unit.name for each in summary.phases for unit in each.units)
    times = [{unit.name: unit for unit in each.units} for each in summary.phases]
    rows = [
        (printable(name), *(_unit_cell(found[name]) if name in found else NOT_MEASURED for found in times))
        for name in names
    ]
    return Table(
        "Layers without communication, ms a step",
        make_columns(["layer", *_heads(summary, summary.phases)]),
        tuple(rows),
    )


def _unit_cell(unit: Part) -> str:
    """Return a layer's mean over the steps that the parts are of; the median, too, where it is another time."""
    ns, middle = unit.ns - unit.communication_ns, unit.figure.interval
    if middle and not middle.low <= ns <= middle.high:
        return f"{number(ns, 1e6)} (median {number(unit.figure.value, 1e6)}{interval_words(middle, 1e6)})"
    return number(ns, 1e6) + interval_words(middle, 1e6)


def operator_table(summary: Summary) -> Table:
    """Return operators by kind of block, over all layers, at the rank with the longest times."""
    rows = []
    for ranks in summary.by_phase:
        each = max(ranks, key=lambda each: sum(operator.ns for operator in each.operators))
        groups: dict[tuple[str, str], list[OperatorTime]] = defaultdict(list)
        for operator in each.operators:
            kind = each.blocks[operator.path][0] if operator.path in each.blocks else operator.path
            block = {"root": "model", OWN: operator.path}.get(kind, kind)
            groups[block, operator.bucket].append(operator)
        for (block, bucket), found in sorted(groups.items(), key=lambda item: -sum(row.ns for row in item[1])):
            ns = sum(row.ns for row in found)
            if not ns:
                continue
            flops, size = _sum(row.flops for row in found), _sum(row.bytes for row in found)
            rates = [NOT_MEASURED if value is None else number(value / ns) for value in (flops, size)]
            where = f"{each.phase}, rank {each.rank}"
            rows.append((f"{printable(block)}: {bucket}", where, number(ns, 1e6), percent(ns / each.wall_ns), *rates))
    heads = ["operators", "where", "ms", "share", "GFLOP/s", "GB/s"]
    return Table("Operators in a step, over all layers", make_columns(heads, left=(0, 1)), tuple(rows))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def call_table(summary: Summary) -> Table:
    """Return communication by operation and size, over all ranks and steps."""
    rows = []
    for phase, found in summary.call_totals:
        for each in found.ops if found else ():
            times = [number(each.wait_ns, 1e3), number(each.operation_ns, 1e3)]
            rates = [number(each.algorithm_bytes_per_s, 1e9), number(each.bus_bytes_per_s, 1e9)]
            size = format_bytes(each.bytes)
            rows.append(
                (each.op, phase or "", size, str(each.ranks_count or NOT_MEASURED), f"{each.count:,}", *times, *rates)
            )
    heads = ["operation", "phase", "size", "ranks", "count", "wait, µs", "last in to last out, µs", "GB/s", "bus GB/s"]
    table = Table("Operations between ranks, medians", make_columns(heads, left=(0, 1)), tuple(rows))
    return table.without_empty_columns()


def memory_table(summary: Summary) -> Table:
    """Return the memory of each rank."""
    names = {
        "parameters_bytes": "parameters", "kv_cache_bytes": "KV cache", "activations_bytes": "activations",
        "peak_rss_bytes": "peak RSS", "allocated_bytes": "GPU allocated", "reserved_bytes": "GPU reserved",
        "peak_allocated_bytes": "GPU peak",
    }  # fmt: skip
    ranks = summary.profile.memory
    known = [name for name in names if any(getattr(each, name) is not None for each in ranks)]
    rows = [(str(each.rank), *(number(getattr(each, name), 1e6) for name in known)) for each in ranks]
    heads = ["rank", *(names[name] for name in known)]
    return Table("Memory, MB", make_columns(heads), tuple(rows))


def module_table(summary: Summary) -> Table:
    """Return by how much the memory of each rank grows in each module of `memory_by_module`."""
    ranks = summary.profile.memory
    rows = [
        (printable(path), *(number(value, 1e6) for value in values))
        for path, values in memory_by_module(summary).items()
    ]
    heads = ["module", *(f"rank {each.rank}" for each in ranks)]
    return Table("Memory while a module runs, MB", make_columns(heads), tuple(rows))


def memory_by_module(summary: Summary) -> dict[str, list[int | None]]:
    """Return path → bytes at each rank, of modules that have no other within them, and of those that take clearly more
    than all of these in them.
    """
    ranks = summary.profile.memory
    paths = dict.fromkeys(path for each in ranks for path in each.layers)
    around = {path[:place] for path in paths for place, sign in enumerate(path) if sign == "."}
    leaves = [path for path in paths if path not in around]

    def takes_more(path: str) -> bool:
        inside = [leaf for leaf in leaves if leaf.startswith(f"{path}." if path else "")]
        return any(
            each.layers.get(path, 0) > _MORE_RATIO * sum(each.layers.get(leaf, 0) for leaf in inside) for each in ranks
        )

    return {path: [each.layers.get(path) for each in ranks] for path in paths if path not in around or takes_more(path)}


def tables_of(summary: Summary) -> dict[str, Table]:
    """Return name → table, of all tables of a profile; one without rows is of what it does not have."""
    return {
        "parts": bucket_table(summary), "layers": layer_table(summary), "operators": operator_table(summary),
        "calls": call_table(summary), "memory": memory_table(summary), "modules": module_table(summary),
    }  # fmt: skip


def advice_lines(advice: Sequence[Advice]) -> list[str]:
    """Return what rules found, a line each."""
    return [
        f"{each.action} {each.evidence}"
        + ("" if each.gain_ratio is None else f" At most {percent(each.gain_ratio)} can be saved.")
        + f" (Rule: {each.threshold}.)"
        for each in advice
    ]


def unavailable_table(missing: Sequence[Unavailable]) -> Table:
    """Return what could not be had, with what it needs."""
    rows = tuple((each.what, each.needs) for each in missing)
    return Table("Not available here", make_columns(["figure", "needs"], left=(0, 1)), rows)


def comparison_lines(comparison: Comparison, most_rows: int = 30) -> list[str]:
    """Return a comparison as text, what differs first."""
    rows = sorted(comparison.rows, key=lambda row: (row.rank is not None, row.verdict == "no clear difference"))
    shown = []
    for row in rows[:most_rows]:
        name = f"{row.phase}{'' if row.rank is None else f' {row.rank}'}: {printable(row.name)}"
        ratio = NOT_MEASURED if row.ratio is None else number(row.ratio.estimate) + interval_words(row.ratio)
        said = row.verdict if row.is_claim else f"{row.verdict} in these runs"
        shown.append((name, number(row.a.value, 1e6), number(row.b.value, 1e6), ratio, said))
    heads = ["figure", "a, ms", "b, ms", "b / a", "b is"]
    table = Table("b against a", make_columns(heads, left=(0, 4)), tuple(shown))
    different = [row.is_claim for row in rows if row.verdict != "no clear difference"]
    said = " ".join([*comparison.waits, f"{sum(different)} of {len(rows)} figures differ clearly."])
    if within := len(different) - sum(different):
        said += f" {within} more differ within these runs, which may be how one run differs from the next."
    rest = [f"{len(rows) - most_rows} more rows are not shown."] if len(rows) > most_rows else []
    if comparison.differences:
        unlike = "; ".join(f"{name}: {printable(str(a))}, {printable(str(b))}" for name, a, b in comparison.differences)
        said = f"They differ in more than time ({unlike}), which may be the reason of any difference. {said}"
    return [*paragraphs([said], WIDTH), "", *aligned(table), *rest, *paragraphs(comparison.remarks, WIDTH)]


def screen(summary: Summary, advice: Sequence[Advice] = ()) -> list[str]:
    """Return a profile on one screen: at most 30 lines of 110 columns, the verdict first, whole sentences only."""
    lines = paragraphs([verdict(summary, advice)], WIDTH)
    if summary.phases:
        lines += ["", *aligned(bucket_table(summary, _MOST_RANKS, _MOST_BLOCKS))]
    said = [f"{number + 1}. {each.action} {each.evidence}" for number, each in enumerate(advice[:_MOST_ADVICE])]
    last = []
    if missing := summary.profile.unavailable:
        last = paragraphs([f"Figures that cannot be had here: {len(missing)}; README.md says what they need."], WIDTH)
    if not summary.phases and (table := call_table(summary)).rows:
        last = ["", *aligned(replace(table, rows=table.rows[:_MOST_OPERATIONS]))]
        last += [f"README.md has {more:,} more."] if (more := len(table.rows) - _MOST_OPERATIONS) > 0 else []
    lines.append("")
    every = [paragraphs([sentence], WIDTH) for sentence in (*said, *sentences(summary))]
    room = _SCREEN_LINES - len(lines) - len(last)
    if sum(map(len, every)) <= room:
        return [*lines, *chain(*every), *last]
    shown, dropped = list[str](), 0
    for each in every:
        shown += each if len(shown) + len(each) < room else []
        dropped += shown[-len(each) :] != each
    return [*lines, *shown, f"Sentences for which is no room here: {dropped}; README.md has them.", *last]


def every_table(summary: Summary, advice: Sequence[Advice] = ()) -> list[str]:
    """Return all that a profile shows, as text."""
    lines = paragraphs([verdict(summary, advice), *advice_lines(advice), *sentences(summary)], WIDTH)
    for table in (*tables_of(summary).values(), unavailable_table(summary.profile.unavailable)):
        if table.rows:
            lines += ["", table.title, *aligned(table)]
    return lines
