"""The table of `ipcbench trace top` for rich: rates, percentiles and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ipcbench.trace.live.meter import Reading
from ipcbench.trace.readers.by_method import MethodTotals
from ipcbench.trace.readers.calls import FAR_SIDES, method_name
from ipcbench.util.text import printable
from ipcbench.util.units import format_duration_ns, format_significant

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
_GLYPHS = "█▓▒▚▤▥▦▧"
"""They differ without colours too."""
_REST_COLOR, _REST_GLYPH = "bright_black", "·"
_BAR_CELLS = 24
_COLUMNS = (("calls/s", 7), ("p50", 7), ("p99", 7), ("MiB/s", 6), ("in flight", 9), ("failed", 6))
"""With their least widths."""
_GAP = 2
_NARROW = 100
_MIB = 2**20
_MOST_METHODS = 40


def draw(reading: Reading, folder: str, width: int, problems: Sequence[str] = (), most: int = _MOST_METHODS) -> Group:
    """Return the table, at most `width` characters wide, and what stands around it; `most` limits its rows."""
    from rich.console import Group
    from rich.text import Text

    counts = [(role in FAR_SIDES, sums.calls_count) for _, role, sums in reading.methods]
    calls = sum(count for is_far, count in counts if not is_far) or sum(count for _, count in counts)
    head = Text.assemble(
        (printable(folder), "bold"),
        f"   {format_significant(calls / reading.seconds)} calls/s over {reading.seconds:.1f} s, ",
        f"{reading.seen_count:,} seen",
    )
    if not reading.seen_count:
        head = Text.assemble((printable(folder), "bold"), "   no calls yet; waiting")
    parts: list[Text | Table] = [head]
    if reading.methods:
        parts += [_table(reading, width, most), _legend(_stages(reading))]
        hidden = len(reading.methods) - most
        if hidden > 0:
            parts.append(Text(f"and {hidden} more methods, which took less time"))
    parts += [Text(f"not read: {printable(problem)}", style="yellow") for problem in problems[:3]]
    return Group(*parts)


def _stages(reading: Reading) -> list[str]:
    return list(dict.fromkeys(stage for _, _, sums in reading.methods for stage in sums.stage_ns))


def _table(reading: Reading, width: int, most: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    narrow = width < _NARROW
    columns = [(name, least) for name, least in _COLUMNS if name != "failed" or not narrow]
    room = width - sum(least + _GAP for _, least in columns) - 2 * _GAP
    cells = max(0, min(_BAR_CELLS, room - (12 if narrow else 24)))
    table.add_column("method", overflow="ellipsis", no_wrap=True, max_width=max(6, room - cells))
    for name, least in columns:
        table.add_column(name, justify="right", no_wrap=True, min_width=least)
    if cells:
        table.add_column("stages", no_wrap=True, width=cells)
    stages = _stages(reading)
    for name, role, sums in reading.methods[:most]:
        figures = list(_figures(sums, reading.seconds))[: len(columns)]
        bar = [_bar(sums, stages, cells)] if cells else []
        table.add_row(Text(printable(method_name(name, role))), *figures, *bar)
    return table


def _figures(sums: MethodTotals, seconds: float) -> Iterator[Text]:
    from rich.text import Text

    yield Text(format_significant(sums.calls_count / seconds))
    for probability in (0.5, 0.99):
        value = sums.quantile_ns(probability)
        yield Text("–" if value is None else format_duration_ns(value))
    behind = sums.total_ns / sums.staged_ns if sums.staged_ns else 1.0
    moved = sums.moved_bytes
    yield Text("–" if moved is None else format_significant(moved * behind / _MIB / seconds))
    yield Text(format_significant(sums.total_ns / 1e9 / seconds))
    yield Text(f"{sums.failed_count:,}" if sums.failed_count else "", style="red")


def bar_cells(parts: Sequence[float], cells: int) -> list[int]:
    """Return how many cells each part takes; together all of them, if there is anything."""
    whole = sum(parts)
    if whole <= 0:
        return [0] * len(parts)
    ends = [round(sum(parts[: index + 1]) / whole * cells) for index in range(len(parts))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _bar(sums: MethodTotals, stages: Sequence[str], cells: int) -> Text:
    from rich.text import Text

    parts = [max(0.0, float(sums.stage_ns.get(name, 0))) for name in stages]
    rest = max(0.0, sums.staged_ns - sum(parts))
    text = Text()
    for index, count in enumerate(bar_cells([*parts, rest], cells)):
        last = index == len(stages)
        glyph = _REST_GLYPH if last else _GLYPHS[index % len(_GLYPHS)]
        text.append(glyph * count, _REST_COLOR if last else _COLORS[index % len(_COLORS)])
    return text


def _legend(stages: Sequence[str]) -> Text:
    from rich.text import Text

    text = Text()
    for index, name in enumerate(stages):
        text.append(f"{_GLYPHS[index % len(_GLYPHS)]} ", _COLORS[index % len(_COLORS)]).append(f"{printable(name)}   ")
    return text.append(f"{_REST_GLYPH} ", _REST_COLOR).append("in no stage   ").append("in flight: on average", "dim")
