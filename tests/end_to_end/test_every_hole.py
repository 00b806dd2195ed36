"""A run that ended anywhere, or lacks anything, can be analyzed: a result or one clear line, never a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from ipcbench.analysis.charts.groups import chart_groups
from ipcbench.analysis.compare import render as compare_render
from ipcbench.analysis.compare.compare import compare_runs
from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.analysis.recommend.question import ask
from ipcbench.analysis.recommend.recommend import recommend
from ipcbench.analysis.report.page import headline_words, report_html
from ipcbench.analysis.report.tables import tables
from ipcbench.cli.output import print_tables
from ipcbench.errors import IpcbenchError
from ipcbench.results.store import INFO_FILE, TRIALS_FILE, Run, load_run
from tests.end_to_end.shell import ROOT
from tests.selection import one_in

REFERENCE = ROOT / "results" / "reference"
LINES = (REFERENCE / TRIALS_FILE).read_text(encoding="utf-8").splitlines(keepends=True)
SPECS = [json.loads(line)["spec"] for line in LINES]
FIELDS = ("backend", "payload_bytes", "mode")

Lines = Sequence[str]


def without(**lacking: Any) -> Lines:
    """Return the trials that have another value of one of the fields."""
    return [
        line for line, spec in zip(LINES, SPECS, strict=True) if any(spec[name] != lacking[name] for name in lacking)
    ]


def holes() -> list[dict[str, Any]]:
    """Return what to leave out: each backend, size, mode, and each combination of two or three of them."""
    found = {}
    for spec in SPECS:
        for chosen in range(1, 2 ** len(FIELDS)):
            hole = {name: spec[name] for place, name in enumerate(FIELDS) if chosen >> place & 1}
            found[tuple(hole.items())] = hole
    return list(found.values())


@pytest.fixture(scope="module")
def reference() -> Run:
    return load_run(REFERENCE)


def linked(source: str, target: str) -> None:
    """Give a file a second name, or copy it where that is on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


@pytest.fixture
def read(tmp_path: Path, reference: Run) -> Callable[[Lines], None]:
    """Return what makes a run of these lines and has everything that reads runs read it."""
    shutil.copytree(REFERENCE / "samples", tmp_path / "samples", copy_function=linked)
    shutil.copy(REFERENCE / INFO_FILE, tmp_path)
    question = ask("5105", 3, None, "lossless", "latency", prefix="--")

    def check(lines: Lines) -> None:
        (tmp_path / TRIALS_FILE).write_text("".join(lines), encoding="utf-8")
        run = load_run(tmp_path)
        made = tables(run)
        for form in ("text", "markdown", "csv", "json"):
            out = io.StringIO()
            with redirect_stdout(out):
                print_tables([made], form)
            assert out.getvalue()
        assert "</html>" in report_html(made, chart_groups(run, made.summary), headline_words(made))
        assert recommend(run, question, summary=made.summary).text()
        assert compare_render.as_text(compare_runs(reference, run, gate_ratio=0.1), gates=True)
        assert compare_render.as_markdown(compare_runs(run, reference))
        for name in random.Random(len(lines)).sample(sorted(EXPORTERS), 2):
            with suppress(IpcbenchError):
                EXPORTERS[name](run)

    return check


@pytest.mark.parametrize("count", one_in(300, range(len(LINES) + 1)))
def test_a_run_that_ended_after_so_many_trials(count: int, read: Callable[[Lines], None]) -> None:
    read(LINES[:count])


@pytest.mark.parametrize("hole", one_in(100, holes(), lambda hole: "-".join(map(str, hole.values()))))
def test_a_run_that_lacks(hole: dict[str, Any], read: Callable[[Lines], None]) -> None:
    read(without(**hole))
