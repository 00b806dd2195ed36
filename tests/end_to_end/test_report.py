"""What `analyze` leaves behind; the report in a browser: it works from a file, asks nobody, and its plots answer."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

import ipcbench
from ipcbench.analysis.charts.groups import chart_groups
from ipcbench.analysis.report.page import headline_words, report_html
from ipcbench.analysis.report.tables import tables
from ipcbench.results.store import load_run
from ipcbench.spec import SweepSpec
from tests.end_to_end.browser import Seen
from tests.end_to_end.shell import ROOT, Shell
from tests.unit.builders import BYTES_OF, Cell, make_run, sweep_of

HOSTILE = "</script><script>document.title='owned'</script><b>x"
CELLS = {
    (name, size): Cell(latency_ns * (1 + size / 500), 1e9 / latency_ns, notes=notes)
    for name, latency_ns, notes in (("shm", 9e3, ()), ("zmq", 3e4, ("noisy: 5% steal",)), (HOSTILE, 6e4, ()))
    for size in (10, 100, 1000)
}


def content(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], str]:
    """A run that was analyzed, what was in its folder before, and what was said."""
    shell = Shell(tmp_path_factory.mktemp("analyzed"))
    names = tuple(dict.fromkeys(name for name, _ in CELLS))
    sweep = sweep_of(backends=names, sizes=(10, 100, 1000), readers=3, modes=("paced", "saturate", "pingpong"))
    make_run(shell.folder / "run", CELLS, sweep)
    before = content(shell.folder / "run")
    done = shell("analyze", "run")
    assert done.returncode == 0, done.stderr
    return shell.folder / "run", before, done.stderr


@pytest.fixture
def stored(shell: Shell) -> Path:
    make_run(shell.folder / "run", {("shm", 10): Cell(), ("zmq", 10): Cell(30_000.0)})
    return shell.folder / "run"


def test_analyze_adds_plots_and_a_report_and_changes_nothing(analyzed: tuple[Path, dict[str, bytes], str]) -> None:
    folder, before, said = analyzed
    assert "report in run/report.html" in said
    after = content(folder)
    assert {name: after[name] for name in before} == before
    added = {name for name in after if name not in before}
    assert {"tables.md", "summary.csv", "report.html", "plots/latency.png", "plots/latency.svg"} <= added
    assert all(name.startswith("plots/") for name in added - {"tables.md", "summary.csv", "report.html"})


def test_the_verdicts_of_the_report_are_the_words_of_the_command(
    analyzed: tuple[Path, dict[str, bytes], str], shell: Shell
) -> None:
    page = html.unescape((analyzed[0] / "report.html").read_text(encoding="utf-8"))
    shown = re.findall(r"<article class=\"card\">\n<h3>.*?</h3>\n<p>(.*?)</p>", page)
    assert len(shown) == 3
    for size, verdict in zip((10, 1000), (shown[0], shown[2]), strict=True):
        done = shell("recommend", "--size", str(BYTES_OF[size]), "--readers", "3", str(analyzed[0]))
        assert done.stdout.splitlines()[0] == verdict


def test_files_may_go_elsewhere_or_nowhere(shell: Shell, stored: Path) -> None:
    before = content(stored)
    assert shell("analyze", "run", "--no-report").returncode == 0
    assert shell("analyze", "run", "--out", "a/b", "--format", "json").returncode == 0
    assert content(stored) == before
    assert {"tables.md", "report.html", "plots/cpu.svg"} <= set(content(shell.folder / "a" / "b"))


def test_runs_named_together_have_fan_out(shell: Shell) -> None:
    for readers in (1, 3):
        sweep = SweepSpec(backends=("shm",), sizes=(10,), readers=readers, modes=("paced",))
        make_run(shell.folder / f"r{readers}", {("shm", 10): Cell()}, sweep)
    done = shell("analyze", "r1", "r3", "--out", "both", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert [line.count("run_id") for line in done.stdout.splitlines()] == [1, 0, 0]
    for name in ("r1", "r3"):
        assert (shell.folder / "both" / name / "plots" / "fan-out-latency.png").is_file()


def test_without_the_libraries_the_tables_are_printed_and_one_line_says_how(shell: Shell, stored: Path) -> None:
    for gone in ("matplotlib", "jinja2"):
        (shell.folder / f"{gone}.py").write_text(f"raise ModuleNotFoundError('gone', name={gone!r})", encoding="utf-8")
    done = shell("analyze", "run")  # a module of the current folder comes first
    assert done.returncode == 0, done.stderr
    assert "one-way" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("not written: plots/ (no matplotlib), report.html (no jinja2)")
    assert "pip install 'ipcbench[report]'" in line
    assert (stored / "tables.md").is_file()
    assert not (stored / "report.html").exists()


def test_a_link_for_a_folder_is_not_followed(shell: Shell, stored: Path) -> None:
    outside = shell.folder / "outside"
    outside.mkdir()
    (stored / "plots").symlink_to(outside)
    (stored / ".report.html.tmp").symlink_to(outside / "made")
    done = shell("analyze", "run")
    assert done.returncode == 0, done.stderr
    assert "is a link" in done.stderr
    assert list(outside.iterdir()) == []


PHONE = 390
REFERENCE = ROOT / "results" / "reference"


@pytest.mark.parametrize("width", [1280, PHONE])
def test_the_report_in_a_browser(analyzed: tuple[Path, dict[str, bytes], str], browser: Any, width: int) -> None:
    report = analyzed[0] / "report.html"
    seen = Seen(browser.new_page(viewport={"width": width, "height": 800}))
    seen.open(report)
    check_the_verdicts_are_what_recommend_says(seen, analyzed[0])
    check_sections_fold(seen, is_open=width > PHONE)
    for key in plot_keys(seen):
        seen.check_card(key, ".scatterlayer .point, .scatterlayer .js-line", len(CELLS) // 3)
    check_hover_shows_a_value_with_its_unit(seen)
    check_a_series_can_be_hidden(seen)
    check_scales_and_settings_can_be_changed(seen)
    check_keys_walk_over_the_marks(seen)
    seen.page.locator("#theme").click()
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert seen.page.title().endswith("ipcbench report"), "nothing in the data was executed"
    seen.check_quiet(report, width)


def check_the_verdicts_are_what_recommend_says(seen: Seen, folder: Path) -> None:
    shown = [one.text_content() for one in seen.page.locator("#verdicts .card > p:first-of-type").all()]
    assert len(shown) == 3
    assert shown[0] == ipcbench.recommend(521, readers=3, run=folder).sentence()
    assert seen.page.locator("h1").text_content() == shown[1], "the headline is the answer at the middle size"
    for verdict, size in zip(shown, (10, 100, 1000), strict=True):
        assert verdict.startswith(f"For {BYTES_OF[size]:,} B to 3 readers: shm, with one-way latency p50 ")
        assert "noisy: 9 of 9 trials of zmq" in verdict


def check_sections_fold(seen: Seen, *, is_open: bool) -> None:
    """A phone shows the answer alone; a key opens a section, and so does a link to it."""
    tables = seen.page.locator("#tables > details")
    assert (tables.get_attribute("open") is not None) == is_open
    seen.page.locator("#tables > details > summary").focus()
    seen.page.keyboard.press("Enter")
    assert (tables.get_attribute("open") is not None) != is_open
    for name in ("tables", "plots", "noise"):
        seen.page.locator(f"nav a[href='#{name}']").press("Enter")  # the layout may still move under a mouse
        seen.page.locator(f"#{name} > details[open]").wait_for()


@pytest.fixture(scope="module")
def reference_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = load_run(REFERENCE)
    made = tables(run)
    path = tmp_path_factory.mktemp("reference") / "report.html"
    path.write_text(report_html(made, chart_groups(run, made.summary), headline_words(made)), encoding="utf-8")
    return path


def opened(browser: Any, report: Path, width: int, height: int, **options: Any) -> Seen:
    seen = Seen(browser.new_page(viewport={"width": width, "height": height}, **options))
    seen.open(report)
    return seen


def test_answer_and_chart_are_above_the_fold_and_tables_fit(reference_report: Path, browser: Any) -> None:
    seen = opened(browser, reference_report, 1280, 800)
    plot = seen.page.locator("#answer .plot")
    plot.locator(".main-svg").first.wait_for()
    for part in (seen.page.locator("h1"), plot):
        box = part.bounding_box()
        assert box["y"] + box["height"] <= 800
    regions = seen.page.locator("#tables .scroll").all()
    assert len(regions) == 7
    for region in regions:
        assert region.evaluate("e => e.scrollWidth <= e.clientWidth"), region.get_attribute("aria-label")
    assert seen.page.locator("#tables .hint:visible").count() == 0
    weight = "e => Number(getComputedStyle(e).fontWeight)"
    assert seen.page.locator("tr.best td").first.evaluate(weight) >= 700
    assert seen.page.locator("tbody tr:not(.best) td:not(.best)").first.evaluate(weight) < 700
    seen.check_quiet(reference_report, 1280)


def test_a_phone_page_is_short_and_says_which_tables_scroll(reference_report: Path, browser: Any) -> None:
    seen = opened(browser, reference_report, PHONE, 844, color_scheme="dark")
    seen.card("latency")
    assert seen.page.evaluate("document.documentElement.scrollHeight") < 4 * 844
    seen.page.locator("#tables > details > summary").click()
    seen.page.locator("#tables .hint:visible").first.wait_for()
    for region in seen.page.locator("#tables .scroll").all():
        too_wide = region.evaluate("e => e.scrollWidth > e.clientWidth + 12")
        assert region.evaluate("e => !e.nextElementSibling.hidden") == too_wide
    card = seen.page.locator("#plots > details > summary")
    card.click()
    ticks = seen.card("percentiles").locator(".xtick").all_text_contents()
    assert "99" in ticks, "the tick at p99 is never left out"
    figures = seen.card("percentiles").locator("details")
    figures.locator("summary").click()
    figures.locator(".hint:visible").wait_for()
    seen.check_quiet(reference_report, PHONE)


def test_a_table_is_sorted_by_its_heads(reference_report: Path, browser: Any) -> None:
    seen = opened(browser, reference_report, 1280, 800)
    table = seen.page.locator("#tables table").first
    head = table.locator("thead th", has=seen.page.get_by_text("trip", exact=False)).first
    column = head.evaluate("e => e.cellIndex")
    names = "t => [...t.tBodies[0].rows].map((row) => row.cells[1].textContent)"
    texts = "(t, at) => [...t.tBodies[0].rows].map((row) => row.cells[at].textContent)"
    ranked = table.evaluate(names)
    for order in ("ascending", "descending", "none"):
        head.locator("button").focus()
        seen.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == order
        figures = [float(text.replace(",", "")) for text in table.evaluate(texts, column)]
        if order != "none":
            assert figures == sorted(figures, reverse=order == "descending")
    assert table.evaluate(names) == ranked
    tail = table.locator("thead th").nth(3)  # one-way p99: n/a is no figure, and last in both orders
    for _ in range(2):
        tail.locator("button").click()
        absent = ["n/a" in text for text in table.evaluate(texts, 3)]
        assert absent == sorted(absent)
    assert head.get_attribute("aria-sort") == "none"
    assert tail.get_attribute("aria-sort") == "descending"
    seen.check_quiet(reference_report, 1280)


def test_a_command_is_copied(reference_report: Path, browser: Any) -> None:
    seen = opened(browser, reference_report, 1280, 800)
    button = seen.page.locator("#reproduce .copy").first
    button.click()
    seen.page.wait_for_function("document.querySelector('#reproduce .copy').textContent !== 'Copy'")
    assert seen.page.evaluate("getSelection().toString().trim()") == "ipcbench run --out results/reference"
    assert (button.text_content() or "").split(":")[0] in {"Copied", "Selected"}
    seen.check_quiet(reference_report, 1280)


@pytest.mark.parametrize("width", [1280, PHONE])
def test_on_paper_every_section_is_open_and_afterwards_as_before(
    reference_report: Path, browser: Any, tmp_path: Path, width: int
) -> None:
    seen = opened(browser, reference_report, width, 800)
    count = "document.querySelectorAll('.fold:not([open])').length"
    closed = seen.page.evaluate(count)
    assert closed
    seen.page.evaluate(f"addEventListener('beforeprint', () => {{ window.closedOnPaper = {count}; }})")
    paper = seen.page.pdf(path=tmp_path / "report.pdf")
    assert paper.startswith(b"%PDF")
    assert seen.page.evaluate("window.closedOnPaper") == 0
    assert seen.page.evaluate(count) == closed
    assert seen.page.locator(".plot .main-svg").count() > 0
    seen.check_quiet(reference_report, width)


UNITS = {
    **dict.fromkeys(("latency", "round-trip", "cpu", "percentiles", "stability"), "µs"),
    **dict.fromkeys(("memory-share", "decode-share"), "%"),
    "throughput": "k messages/s",
    "reader-skew": "×",
}
"""Plot → unit of its values, as the label of a mark must show it."""


def check_hover_shows_a_value_with_its_unit(seen: Seen) -> None:
    """By mouse where there are marks to point at, by key in every plot: the label is the same."""
    for key in plot_keys(seen):
        card = seen.card(key)
        label = card.locator(".hoverlayer .hovertext").first
        points = card.locator(".scatterlayer .point")
        if points.count():
            seen.point_at(points.last)
            label.wait_for()
            assert re.search(rf"\d {re.escape(UNITS[key])}", label.text_content() or ""), key
            seen.page.mouse.move(0, 0)
        card.locator(".plot").focus()
        seen.page.keyboard.press("ArrowRight")
        label.wait_for()
        assert re.search(rf"\d {re.escape(UNITS[key])}", label.text_content() or ""), key
        card.locator(".plot").blur()


MARKS = ".scatterlayer .point, .scatterlayer .js-line, .scatterlayer .js-fill"


def check_a_series_can_be_hidden(seen: Seen) -> None:
    for key in plot_keys(seen):
        card = seen.card(key)
        before = card.locator(MARKS).count()
        button = card.locator(".legend button").first
        assert button.get_attribute("aria-pressed") == "true"
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert card.locator(MARKS).count() < before, key
        button.focus()
        seen.page.keyboard.press("Enter")
        assert card.locator(MARKS).count() == before, key


def plot_keys(seen: Seen) -> list[str]:
    cards = seen.page.locator(".plot-card").all()
    keys = [(one.get_attribute("id") or "").removeprefix("plot-") for one in cards]
    assert set(keys) == set(UNITS)
    return keys


def check_scales_and_settings_can_be_changed(seen: Seen) -> None:
    card = seen.card("latency")
    kind = "e => e.querySelector('.plot').layout.yaxis.type"
    assert card.evaluate(kind) == "log"
    card.locator(".scales button").first.click()
    assert card.evaluate(kind) == "linear"
    seen.check_choice("percentiles")


def check_keys_walk_over_the_marks(seen: Seen) -> None:
    card = seen.card("throughput")
    card.locator(".plot").focus()
    seen.page.keyboard.press("ArrowRight")
    first = card.locator(".spoken").text_content()
    assert "k messages/s" in (first or "")
    seen.page.keyboard.press("ArrowRight")
    assert card.locator(".spoken").text_content() != first
