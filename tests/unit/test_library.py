"""What the library hands out: frames with the figures of the CSV, reprs of a line, and HTML that escapes."""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ipcbench
from ipcbench.analysis import library as handed_out
from ipcbench.analysis.report.render import as_csv
from ipcbench.analysis.report.tables import tables
from ipcbench.errors import ConfigError, Unsupported
from ipcbench.results.store import load_run
from tests.unit.builders import Cell, make_run, sweep_of

SWEEP = sweep_of(backends=("shm", "zmq"), sizes=(10, 1000), readers=2)
CELLS = {
    (name, size): Cell(latency_ns)
    for name, size, latency_ns in (("shm", 10, 1e4), ("zmq", 10, 3e4), ("shm", 1000, 4e4), ("zmq", 1000, 9e4))
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "stored"
    make_run(path, CELLS, SWEEP)
    return path


def _plain(value: object) -> object:
    return None if value is None or value == "" or (isinstance(value, float) and math.isnan(value)) else value


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_has_the_rows_columns_and_figures_of_the_csv(folder: Path, library: handed_out.FrameLibrary) -> None:
    frame = ipcbench.load(folder).to_frame(library)
    rows = frame.to_dict("records") if library == "pandas" else frame.to_dicts()
    stored = list(csv.DictReader(io.StringIO(as_csv(tables(load_run(folder))))))
    assert list(frame.columns) == list(stored[0])
    assert [{name: "" if _plain(v) is None else str(v) for name, v in row.items()} for row in rows] == [
        dict(row) for row in stored
    ]


def test_a_frame_of_a_run_without_a_trial_has_the_column_of_the_run(folder: Path) -> None:
    empty = replace(ipcbench.load(folder), trials=(), controls=())
    assert list(empty.to_frame("pandas").columns) == ["run_id"]
    assert empty.to_frame("polars").shape == (0, 1)


def test_without_either_library_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ipcbench.load(folder)
    monkeypatch.setattr(handed_out, "find_spec", lambda _: None)
    with pytest.raises(Unsupported, match="pip install pandas"):
        run.to_frame()
    with pytest.raises(Unsupported, match="pip install polars"):
        run.to_frame("polars")
    with pytest.raises(ConfigError, match="pandas or polars"):
        run.to_frame("arrow")  # type: ignore[arg-type]


def test_reprs_are_one_line_and_say_what_matters(folder: Path) -> None:
    run = ipcbench.load(folder)
    name, info, count = run.info.run_id, run.info, len(run.trials)
    assert repr(run) == f"<Run {name}: 2 backends, 2 sizes, {info.rounds_done} rounds, {count} trials, complete>"
    assert repr(ipcbench.recommend(521, run=run)).startswith("<Recommendation for 521 B to 2 readers: shm (")
    same = "0 slower, 0 faster, 16 no clear difference"
    assert repr(ipcbench.compare(run, folder)) == f"<Comparison of {name} with {name}: {same}>"


class _Texts(HTMLParser):
    """The texts and the tags of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_says_what_the_text_says(folder: Path) -> None:
    run = ipcbench.load(folder)
    choice, comparison = ipcbench.recommend(521, run=run), ipcbench.compare(run, run)
    for shown, words in (
        (run, tables(run).answers[0].sentence),
        (choice, choice.sentence()),
        (comparison, "0 slower"),
    ):
        page = _Texts(shown._repr_html_() or "")
        assert words in " ".join(page.texts)
        assert "script" not in page.tags
    assert "table" in _Texts(run._repr_html_() or "").tags


def test_html_of_a_run_with_hostile_names_is_text(folder: Path) -> None:
    run = ipcbench.load(folder)
    hostile = replace(run, info=replace(run.info, run_id="<script>alert(1)</script>\ud800"))
    html = hostile._repr_html_() or ""
    assert "&lt;script&gt;" in html
    assert "<script" not in html


def test_errors_of_the_library_name_no_options() -> None:
    for values, name in (({"size": "x"}, "size"), ({"size": 1, "codec": "zip"}, "codec"), ({}, "size")):
        with pytest.raises(ConfigError, match=rf"^{name}: "):
            ipcbench.recommend(**values)


def test_without_jinja2_a_notebook_shows_the_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert ipcbench.load(folder)._repr_html_() is None


def test_a_gate_in_percent_or_as_a_share(folder: Path) -> None:
    outcomes = [ipcbench.compare(folder, folder, gate=gate).gate_ratio for gate in ("900%", 9.0)]
    assert outcomes[0] == outcomes[1]
