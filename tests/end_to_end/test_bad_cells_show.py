"""What failed, was noisy or oversubscribed says so in every output, and wins nowhere without a word of it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

import ipcbench
from ipcbench.analysis.charts.groups import chart_groups
from ipcbench.analysis.compare.compare import compare_runs
from ipcbench.analysis.compare.render import as_markdown as compare_markdown
from ipcbench.analysis.compare.render import as_text as compare_text
from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.analysis.report.render import as_csv, as_json, as_markdown, as_text
from ipcbench.analysis.report.tables import Tables, tables
from ipcbench.results.store import Run
from tests.end_to_end.shell import Shell
from tests.unit.builders import MACHINE, Cell, make_run, sweep_of

GOOD, FAILED, NOISY, PARTLY, OVER = "zmq", "shm", "lmdb", "pipe", "zmq-tcp"
WORDS = {
    FAILED: "reader-0 ended with exit code 1",
    NOISY: "noisy: 5% steal",
    PARTLY: "3 of 12 trials failed",
    OVER: "oversubscribed",
}
"""What must stand beside each; it is the fastest of all that failed, and of the rest the noisy one."""
SIZES = {10: 521, 1000: 55_039}
CELLS = {
    (name, size): cell
    for size in SIZES
    for name, cell in {
        FAILED: Cell(1.0, factors=(0.0,) * 4),
        NOISY: Cell(12_000.0, 300_000.0, 25_000.0, factors=(1.0, 1.01, 0.99, 1.0), notes=("noisy: 5% steal",)),
        GOOD: Cell(30_000.0, 100_000.0, 50_000.0, factors=(1.0, 1.01, 0.99, 1.0)),
        PARTLY: Cell(40_000.0, 90_000.0, 60_000.0, factors=(1.0, 1.01, 0.0, 0.99)),
        OVER: Cell(50_000.0, 80_000.0, 70_000.0, factors=(1.0, 1.01, 0.99, 1.0), notes=("oversubscribed",)),
    }.items()
}
MODES = ("paced", "saturate", "pingpong")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    sweep = sweep_of(backends=(GOOD, FAILED, NOISY, PARTLY, OVER), sizes=tuple(SIZES), readers=1, modes=MODES)
    machine = {**MACHINE, "usable_cores": 1.0}
    return make_run(tmp_path_factory.mktemp("bad") / "run", CELLS, sweep, machine=machine)


@pytest.fixture(scope="module")
def shown(run: Run) -> Tables:
    return tables(run)


def test_text_and_markdown_mark_each_row(shown: Tables) -> None:
    for text, row in (
        (as_text(shown), r"^ +\S+ +{} .*?([a-z ]*)$"),
        (as_markdown(shown), r"^\| \S+ \| {} \|.*\| ([^|]*) \|$"),
    ):
        plain = text.replace("\\", "")
        notes = dict(re.findall(r"^(?:- )?([a-z]): (.*)$", plain, re.MULTILINE))
        for name, words in WORDS.items():
            marks = [found for found in re.findall(row.format(re.escape(name)), plain, re.MULTILINE) if found.strip()]
            letters = [letter for found in marks for letter in found.replace("failed:", "").split()]
            assert any(words in notes.get(letter, "") for letter in letters), (name, marks, notes)
        assert f"{FAILED} has the" not in plain
        assert " ".join(plain.split()).count("Beware: noisy: 12 of 12 trials of lmdb.") == len(SIZES)
        assert "oversubscribed; they take turns" in " ".join(plain.split())


def test_a_failed_cell_has_a_word_and_no_figure_in_a_table(shown: Tables) -> None:
    for table in shown.payload_tables:
        row = next(row for row in table.rows if FAILED in row)
        assert not re.search(r"\d", "".join(row))
    for table in shown.matrices:
        assert next(row for row in table.rows if row[0] == FAILED)[1:] == ("failed  ", "failed  ")


def test_csv_and_json_carry_status_and_notes(shown: Tables) -> None:
    document = json.loads(as_json(shown))
    rows = [cell for one in document["settings"] for cell in one["cells"]]
    for cells, absent in ((rows, None), (list(csv.DictReader(io.StringIO(as_csv(shown)))), "")):
        assert len(cells) == len(CELLS)
        for cell in cells:
            words = WORDS.get(cell["backend"], "")
            assert words in f"{cell['reason']} {cell['notes']}"
            assert cell["status"] == ("failed" if cell["backend"] == FAILED else "ok")
            assert (int(cell["failed_count"]) > 0) == (cell["backend"] in {FAILED, PARTLY})
            if cell["backend"] == FAILED:
                assert {cell[name] for name in ("rank", "latency_p50_us", "throughput_mb_per_s")} == {absent}
    for one in document["settings"]:
        assert one["verdict"].startswith(f"{NOISY} has the lowest one-way latency")
        assert one["verdict"].endswith("Beware: noisy: 12 of 12 trials of lmdb.")


def test_charts_name_what_failed_and_draw_hollow_what_is_doubtful(run: Run, shown: Tables) -> None:
    groups = {one.key: one for one in chart_groups(run, shown.summary)}
    assert {"latency", "round-trip", "throughput", "percentiles", "cpu", "stability"} <= set(groups)
    for group in groups.values():
        for chart in group.charts:
            notes = " ".join(chart.notes)
            assert re.search(rf"{FAILED}( at [\d,]+ entries)? failed: {WORDS[FAILED]}", notes), group.key
            assert f"Oversubscribed, with too few cores: {OVER}." in notes, group.key
            assert FAILED not in {one.name for one in chart.series}
            for one in chart.series:
                if one.color >= 0 and group.key not in {"percentiles", "stability"}:
                    assert {point.noisy for point in one.points} == {one.name in {NOISY, PARTLY}}, (group.key, one.name)


def test_the_page_and_the_plots_say_so(run: Run) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    done = Shell(run.path.parent)("analyze", "run", "--out", "out")
    assert done.returncode == 0, done.stderr
    page = (run.path.parent / "out" / "report.html").read_text(encoding="utf-8")
    assert '<section id="failures"' in page
    failures = page[page.index('<section id="failures"') :]
    for name in (FAILED, PARTLY):
        assert re.search(rf"{name}.*?{WORDS[name]}", failures, re.DOTALL)
    noise = page[page.index('<section id="noise"') : page.index('<section id="failures"')]
    assert re.search(rf"{NOISY}.*?{WORDS[NOISY]}", noise, re.DOTALL)
    for badge in ("4 cells with failures", "2 of 8 cells noisy", "oversubscribed"):
        assert f">{badge}</a>" in page
    for plot in (run.path.parent / "out" / "plots").glob("*.svg"):
        text = " ".join(re.findall(r"<text[^>]*>(.*?)</text>", plot.read_text(encoding="utf-8"), re.DOTALL))
        assert f"{FAILED} at" in text or f"{FAILED} failed" in text, plot.name
        assert "Oversubscribed" in text, plot.name


@pytest.mark.parametrize("goal", ["latency", "throughput"])
def test_recommend_excludes_what_failed_and_warns_of_its_own_choice(run: Run, goal: str) -> None:
    for size in SIZES.values():
        answer = ipcbench.recommend(size, run=run, optimise=goal)  # type: ignore[arg-type]
        assert (answer.backend, answer.sureness) == (NOISY, "low")
        assert "noisy: 12 of 12 trials of lmdb" in answer.sentence()
        gone = {one.backend: one.reason for one in answer.excluded}
        assert WORDS[FAILED] in gone[FAILED]
        doubts = {one.backend: " ".join(doubt.text for doubt in one.doubts) for one in answer.candidates}
        assert "failed: 3 of 12 trials of pipe" in doubts[PARTLY]
        for text in (answer.text(), answer.markdown().replace("\\", ""), json.dumps(answer.as_dict())):
            for words in (WORDS[FAILED], "failed: 3 of 12 trials of pipe", "noisy: 12 of 12 trials of lmdb"):
                assert words in text
            assert "oversubscribed" in text


def test_compare_says_so_of_both_runs(run: Run, tmp_path: Path) -> None:
    calm = {key: Cell(cell.latency_ns, cell.rate_per_s, cell.round_trip_ns) for key, cell in CELLS.items()}
    names = (GOOD, FAILED, NOISY, PARTLY, OVER)
    sweep = sweep_of(backends=names, sizes=tuple(SIZES), readers=1, modes=MODES)
    sound = make_run(tmp_path / "sound", calm, sweep, machine=run.info.machine)
    for first, second, which in ((run, sound, "A"), (sound, run, "B")):
        found = compare_runs(first, second)
        for change in found.changes:
            words, name = f"{change.reason} {' '.join(change.notes)}", change.cell.backend
            expected = {FAILED: f"failed in {which}: {WORDS[FAILED]}", PARTLY: "trials failed"}
            assert expected.get(name, WORDS.get(name, "").partition(":")[0]) in words, change
            if name == FAILED:
                assert change.verdict not in {"faster", "slower", "no clear difference"}
        for text in (compare_text(found), compare_markdown(found).replace("\\", "")):
            for words in (WORDS[FAILED], "5% steal", "trials failed", "oversubscribed"):
                assert words in " ".join(text.split())


@pytest.mark.parametrize("form", EXPORTERS)
def test_exports_leave_out_what_failed_and_note_the_rest(run: Run, form: str) -> None:
    found = EXPORTERS[form](run)
    said = "\n".join(found.left_out)
    for name in (FAILED, PARTLY):
        assert re.search(rf"trial \d+ \({name}, .*\): failed: {WORDS[FAILED]}", said)
    assert FAILED not in found.text
    assert "noisy" in found.text
    assert "5% steal" in found.text
    assert "oversubscribed" in found.text
