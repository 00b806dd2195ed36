"""Parts of the docs that are made from commands, results and examples: tests compare them, this program rewrites them.

python -m tests.docs_blocks
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ipcbench.analysis.report.screen import screen
from ipcbench.analysis.report.tables import tables
from ipcbench.cli import main
from ipcbench.cli.explain import glossary
from ipcbench.render.document import VERSIONS
from ipcbench.results.store import load_run
from ipcbench.util.units import format_duration_ns, format_significant
from tests.schemas import fields_table, parts_table

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "choose.md", ROOT / "docs" / "json.md")
ADD_A_BACKEND = ROOT / "docs" / "add-a-backend.md"
BLOCK = re.compile(r"<!-- from `(?P<source>[^`]+)` -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


def decoding_table() -> str:
    """Return a table of how the transports of the reference run differ, without decoding and with it."""
    rows = ["| dict | transport | one-way p50 | times the best | decode p50 | both | times the best |"]
    rows.append("| --: | :-- | --: | --: | --: | --: | --: |")
    for setting in tables(load_run(ROOT / "results" / "reference")).summary.settings:
        cells = [cell for cell in setting.cells if cell.latency_p50_ns is not None and cell.decode_p50_ns is not None]
        ways = [(cell.latency_p50_ns.estimate, cell.decode_p50_ns or 0.0) for cell in cells if cell.latency_p50_ns]
        best_way, best_both = min(way for way, _ in ways), min(map(sum, ways))
        for cell, (way, decode) in zip(cells, ways, strict=True):
            figures = [
                format_duration_ns(way),
                format_significant(way / best_way),
                format_duration_ns(decode),
                format_duration_ns(way + decode),
                format_significant((way + decode) / best_both),
            ]
            rows.append(f"| {setting.setting.payload_bytes:,} B | `{cell.backend}` | {' | '.join(figures)} |")
    return "\n".join(rows)


def transports_table() -> str:
    """Return a table of all transports, by the figures of the sweep `all` with one reader and with three."""
    rows = [row for readers in (1, 3) for row in _rows_of(ROOT / "results" / f"all-{readers}.csv")]
    settings = list(dict.fromkeys((row["readers"], row["payload_bytes"]) for row in rows))
    names = sorted({row["backend"] for row in rows}, key=_figures(rows, "1", "55039").__getitem__)
    heads = [f"{int(size):,} B × {readers}" for readers, size in settings]
    lines = [f"| transport | {' | '.join(heads)} |", f"| :-- {'| --: ' * len(heads)}|"]
    cells = [{row["backend"]: _two_figures(row) for row in rows if (row["readers"], row["payload_bytes"]) == setting}
             for setting in settings]  # fmt: skip
    return "\n".join([*lines, *(f"| `{name}` | {' | '.join(column[name] for column in cells)} |" for name in names)])


def _rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def _figures(rows: list[dict[str, str]], readers: str, size: str) -> dict[str, float]:
    """Return backend → one-way latency p50, µs."""
    wanted = (row for row in rows if (row["readers"], row["payload_bytes"]) == (readers, size))
    return {row["backend"]: float(row["latency_p50_us"]) for row in wanted}


def _two_figures(row: dict[str, str]) -> str:
    rate = format_significant(float(row["throughput_messages_per_s"]) / 1e3)
    return f"{format_duration_ns(1e3 * float(row['latency_p50_us']))}, {rate} k/s"


def one_screen() -> str:
    """Return what a run ends with, for the reference run."""
    run = load_run(ROOT / "results" / "reference")
    return "\n".join(line for line, _ in screen(run, tables(run), "results/reference"))


TABLES: Mapping[str, Callable[[], str]] = {
    "decoding_table": decoding_table,
    "one_screen": one_screen,
    "transports_table": transports_table,
    **{f"fields of {kind}": partial(fields_table, kind) for kind in VERSIONS},
    "parts": parts_table,
}


def output_of(source: str) -> str:
    """Return the output of `ipcbench …`, or one of `TABLES`, as a block; text other than tables goes between fences."""
    text = TABLES[source]() if source in TABLES else printed_by(source.removeprefix("ipcbench "))
    return f"\n{text}\n\n" if text.startswith("|") else f"```text\n{text}\n```\n"


def printed_by(command: str) -> str:
    handler, path = signal.getsignal(signal.SIGTERM), list(sys.path)
    stream = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(stream):
        code = main(shlex.split(command))
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = path
    assert code == 0, f"{command}: {code}"
    return stream.getvalue().strip()


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield (source, text) of every block of a page."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield match["source"], match["text"]


def replace(page: Path, begin: str, content: str) -> None:
    """Rewrite the part of a page between `begin` and the end of that block."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
    _, end, after = rest.partition("\n```\n")
    page.write_text("".join((before, mark, content, end, after)), encoding="utf-8")


def refresh(page: Path) -> None:
    """Rewrite the blocks of a page."""

    def fresh(block: re.Match[str]) -> str:
        return f"<!-- from `{block['source']}` -->\n{output_of(block['source'])}<!-- end -->"

    page.write_text(BLOCK.sub(fresh, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    (ROOT / "docs" / "glossary.md").write_text(glossary(), encoding="utf-8")
    for code in (ROOT / "examples/ipcbench-file/ipcbench_file.py", ROOT / "ipcbench/backends/nng.py"):
        lead = f"`{code.name if 'examples' in code.parts else code.relative_to(ROOT)}`:\n\n```python\n"
        replace(ADD_A_BACKEND, lead, code.read_text(encoding="utf-8").rstrip("\n"))
    for changed in PAGES:
        refresh(changed)
        os.write(1, f"{changed.relative_to(ROOT)}\n".encode())
