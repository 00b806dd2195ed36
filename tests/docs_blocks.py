"""Parts of the documentation that are the output of a command: compared by a test, and written anew by this program.

python -m tests.docs_blocks
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from ipcbench.cli import main

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "choose.md",)
README_PARTS = ("dict of 1,000 entries", "One-way latency p50", "Throughput, k messages")
BLOCK = re.compile(r"<!-- from `ipcbench (?P<command>[^`]+)` -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


def output_of(command: str) -> str:
    """Return what a command prints, as a block of a page: a table as it is, other text between fences."""
    handler, path = signal.getsignal(signal.SIGTERM), list(sys.path)
    stream = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(stream):
        code = main(shlex.split(command))
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = path
    assert code == 0, f"{command}: {code}"
    text = stream.getvalue().strip()
    return f"\n{text}\n\n" if text.startswith("|") else f"```text\n{text}\n```\n"


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield (command, text) of every block of a page."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield match["command"], match["text"]


def refresh_readme() -> None:
    """Write the tables of the README anew: the verdict of one payload, both matrices of the reference run."""
    shown = output_of("analyze results/reference --no-report").split("\n\n")
    chosen = [one for one in shown if one.startswith(README_PARTS)]
    assert len(chosen) == len(README_PARTS)
    page = ROOT / "README.md"
    before, mark, rest = page.read_text(encoding="utf-8").partition("a test compares -->\n```text\n")
    _, fence, after = rest.partition("\n```\n")
    page.write_text("".join((before, mark, "\n\n".join(chosen), fence, after)), encoding="utf-8")


def refresh(page: Path) -> None:
    """Write the blocks of a page anew."""
    text = page.read_text(encoding="utf-8")
    fresh = BLOCK.sub(
        lambda one: f"<!-- from `ipcbench {one['command']}` -->\n{output_of(one['command'])}<!-- end -->", text
    )
    page.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    refresh_readme()
    for one in PAGES:
        refresh(one)
        os.write(1, f"{one.relative_to(ROOT)}\n".encode())
