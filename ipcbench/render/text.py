"""Tables and sentences as aligned text, as GitHub's Markdown and as CSV. (HTML is `assets/table.html.j2`.)"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ipcbench.render.table import Table

WIDTH = 100
"""Columns of a terminal that text is made for."""

Styled = tuple[str, str]
"""A line, and the style in which a terminal shows it: "", "bold" or "dim"."""

_MAX_NAME_CELLS = 20
_FILLER = "\0"
_MARKDOWN_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#~&$"})
_MARKDOWN_BLOCK = re.compile(r"^(\d*)([-+.)])(?=[-\s]|$)")
"""What would make a list or a rule of a line that begins with it."""


def display_width(text: str) -> int:
    """Return how many columns of a terminal `text` takes; a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shortened(name: str, most: int = _MAX_NAME_CELLS, keep: Literal["start", "end"] = "end") -> str:
    """Return a name that fits into `most` columns: of a longer one its end, which tells more, or its start."""
    if display_width(name) <= most:
        return name
    name = name[-most:] if keep == "end" else name[:most]
    while display_width(name) >= most:
        name = name[1:] if keep == "end" else name[:-1]
    return f"…{name}" if keep == "end" else f"{name}…"


def wrapped(text: str, width: int = WIDTH, first: str = "", indent: str = "  ") -> list[str]:
    """Return a sentence in lines of at most `width` columns.

    Args:
        text: the sentence.
        width: columns.
        first: what the first line begins with.
        indent: what the other lines begin with.
    """
    filled = "".join(char + _FILLER * (display_width(char) - 1) for char in text)  # so that len() counts columns
    lines = textwrap.wrap(filled, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_FILLER, "") for line in lines]


def paragraphs(lines: Iterable[str], width: int = WIDTH) -> list[str]:
    """Return sentences in lines of at most `width` columns."""
    return [part for line in lines for part in wrapped(line, width)]


def aligned(table: Table, width: int | None = None, indent: str = "", name_width: int = _MAX_NAME_CELLS) -> list[str]:
    """Return head and rows in columns.

    Args:
        table: to be shown; its title, remarks and footnotes are not.
        width: columns of a terminal. A wider table is divided: each part repeats the columns up to the rows' names.
        indent: what each line begins with.
        name_width: columns of a row's name, of which a longer one keeps its end.
    """
    return [line for line, _ in aligned_styled(table, width, indent, name_width)]


def aligned_styled(
    table: Table, width: int | None = None, indent: str = "", name_width: int = _MAX_NAME_CELLS
) -> Iterator[Styled]:
    """Yield the lines of `aligned` with their styles; heads and the best rows are bold."""
    name = next(index for index, column in enumerate(table.columns) if column.names_row)
    rows = table.rows
    if width is not None:
        rows = tuple((*row[:name], shortened(row[name], name_width), *row[name + 1 :]) for row in rows)
    heads = list(zip(*(column.head for column in table.columns), strict=True))
    sizes = [max(map(display_width, column)) for column in zip(*heads, *rows, strict=True)]
    for part in _parts(sizes, name + 1, width):
        gap = "  " if width is None or _total(sizes, part, 2) <= width else " "
        lines = [indent + gap.join(_cell(table, row, at, sizes[at]) for at in part).rstrip() for row in (*heads, *rows)]
        yield from ((line, "bold") for line in lines[: len(heads)])
        if len(heads) > 1:
            yield "-" * max(map(display_width, lines)), ""
        for index, line in enumerate(lines[len(heads) :]):
            yield line, "bold" if index in table.best_rows else ""


def _parts(sizes: Sequence[int], fixed: int, width: int | None) -> list[list[int]]:
    """Return the indices of the columns in as few parts as fit, of about equally many; each begins with the first."""
    first, others = list(range(fixed)), list(range(fixed, len(sizes)))
    for count in range(1, len(others) + 1):
        share = -(-len(others) // count)
        parts = [first + others[start : start + share] for start in range(0, len(others), share)]
        if width is None or all(_total(sizes, part, 1) <= width for part in parts):
            return parts
    return parts if others else [first]


def _total(sizes: Sequence[int], part: Sequence[int], gap: int) -> int:
    return sum(sizes[at] for at in part) + gap * (len(part) - 1)


def _cell(table: Table, row: Sequence[str], at: int, size: int) -> str:
    space = " " * (size - display_width(row[at]))
    return row[at] + space if table.columns[at].align == "left" else space + row[at]


def escape(text: str) -> str:
    """Return text as one line of Markdown that is shown as it is: nothing in it is markup."""
    return _MARKDOWN_BLOCK.sub(r"\1\\\2", " ".join(text.split()).translate(_MARKDOWN_SPECIAL))


def code(text: str) -> str:
    """Return text as code for a cell of a table: GitHub makes no mention and no link of it."""
    if "\\|" in text:  # in a table, code cannot hold it
        return escape(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def bullets(lines: Iterable[str]) -> str:
    """Return text lines as a list in Markdown."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def markdown_table(table: Table, *, names_as_code: bool = False) -> str:
    """Return head and rows as a table in Markdown; optionally the rows' names as code."""
    rules = [":--" if column.align == "left" else "--:" for column in table.columns]
    lines = [[escape(" ".join(filter(None, column.head))) for column in table.columns], rules]
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        lines.append([code(text) if names_as_code and column.names_row else escape(text) for column, text in cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as CSV with a head; None is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
