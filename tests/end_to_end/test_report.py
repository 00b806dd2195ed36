"""What `analyze` leaves behind; the report in a browser: it works from a file, asks nobody, and its plots answer."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

import ipcbench
from ipcbench.spec import SweepSpec
from tests.end_to_end.browser import Seen
from tests.end_to_end.shell import Shell
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
        done = shell("recommend", "--payload", str(BYTES_OF[size]), "--readers", "3", str(analyzed[0]))
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


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_in_a_browser(analyzed: tuple[Path, dict[str, bytes], str], browser: Any, width: int) -> None:
    report = analyzed[0] / "report.html"
    seen = Seen(browser.new_page(viewport={"width": width, "height": 900}))
    seen.open(report)
    check_the_verdicts_are_what_recommend_says(seen, analyzed[0])
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
    shown = [one.inner_text() for one in seen.page.locator("#verdict .card > p:first-of-type").all()]
    assert len(shown) == 3
    assert shown[0] == ipcbench.recommend(521, readers=3, run=folder).sentence()
    for verdict, size in zip(shown, (10, 100, 1000), strict=True):
        assert verdict.startswith(f"For {BYTES_OF[size]:,} B to 3 readers: shm, with one-way latency p50 ")
        assert "noisy: 9 of 9 trials of zmq" in verdict


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
