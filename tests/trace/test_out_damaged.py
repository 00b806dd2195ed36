"""Damaged traces through everything that reads them: a result or one clear error, never anything else."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from ipcbench.errors import StoreError
from ipcbench.render.page_data import groups_json
from ipcbench.trace.compare.diff import diff
from ipcbench.trace.compare.methods import read_methods
from ipcbench.trace.compare.render import as_json, as_text
from ipcbench.trace.exporters import EXPORTERS
from ipcbench.trace.live.lines import FORMATS
from ipcbench.trace.live.meter import Meter
from ipcbench.trace.live.screen import draw as draw_screen
from ipcbench.trace.live.watch import Watch
from ipcbench.trace.page.charts import chart_groups
from ipcbench.trace.page.sample import draw
from ipcbench.trace.readers.everything import find
from tests.trace.made import both_sides, record

EDIT = st.tuples(st.integers(0, 3), st.integers(0, 40_000), st.binary(min_size=1, max_size=8))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("sound")
    both_sides(folder, 25)
    record(folder, 100, 10, ["Sampled"])
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def look_at(folder: Path) -> None:
    watch = Watch(folder)
    meter = Meter(watch, 2.0)
    meter.look(0.0)
    meter.look(1.0)
    console = Console(file=io.StringIO(), width=100)
    console.print(draw_screen(meter.reading(1.0), "t", 100, list(watch.problems.values())))


def compare(folder: Path) -> None:
    methods = read_methods([folder], keep_times=True)
    difference = diff(methods, methods)
    as_text(difference)
    as_json(difference)


def print_all(folder: Path) -> None:
    for make in FORMATS.values():
        lines = make()
        for row in find([folder]).in_order():
            list(lines.call(row))


def export_all(folder: Path) -> None:
    for export in EXPORTERS.values():
        export(find([folder]), io.BytesIO())


def plot(folder: Path) -> None:
    groups_json(chart_groups(draw(find([folder])), "en"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EDIT, min_size=1, max_size=6), st.integers(1, 100_000))
def test_damage_ends_in_a_result_or_one_error(
    sound: dict[str, bytes], edits: list[tuple[int, int, bytes]], kept: int
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number, (file, data) in enumerate(sound.items()):
            changed = bytearray(data)
            for which, offset, piece in edits:
                if which == number:
                    changed[offset % len(data) : offset % len(data) + len(piece)] = piece
            (folder / file).write_bytes(changed if number else changed[: max(kept, 100)])
        for use in (look_at, compare, print_all, export_all, plot):
            with suppress(StoreError):
                use(folder)
