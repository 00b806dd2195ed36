"""Every command and format shows names as they are: aligned by display cells, without markup, with nothing lost."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from ipcbench import trace
from ipcbench.analysis.charts.groups import chart_groups
from ipcbench.analysis.report.page import headline_words, report_html
from ipcbench.analysis.report.tables import tables
from ipcbench.cli import main
from ipcbench.cli.output import FORMATS
from ipcbench.render.text import code, display_width, escape, shortened, wrapped
from ipcbench.replay import render as replay_render
from ipcbench.results.store import Run
from tests.replay.test_run import made_up
from tests.trace.made import Made
from tests.unit.builders import Cell, make_run

MARKUP, CHINESE, PLAIN = "<b>*x*</b> [a](b)|", "矩阵乘法", "Matmul"
NAMES = (MARKUP, CHINESE, PLAIN)
CALLS = 40


class Page(HTMLParser):
    """The texts of a page, those of cells, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(text)
        self.cells = [cell.strip() for cell in self.cells]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in {"td", "th"}:
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.cells:
            self.cells[-1] += data


def rendered(markdown: str) -> Page:
    """Return what a Markdown renderer makes of a text; tags in the text pass through, as on GitHub."""
    return Page(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))


def check_markdown(markdown: str, *, in_cells: bool = True) -> None:
    page = rendered(markdown)
    for name in NAMES:
        assert name in (page.cells if in_cells else page.text)
    assert not {"a", "b"} & set(page.tags)
    heads = [line for line in markdown.splitlines() if line.startswith(("| :--", "| --:"))]
    assert page.tags.count("tr") == sum(line.startswith("|") for line in markdown.splitlines()) - len(heads)


def check_aligned(text: str, until: str = "") -> None:
    """Check that rows with the same cells after the name are equally wide; `until` is the last cell looked at."""
    rows = defaultdict(set)
    for line in text.splitlines():
        for name in NAMES:
            start, found, rest = f"{line} ".partition(f"{name} ")
            if found and until in rest:
                end = len(rest.rstrip()) if not until else rest.index(until) + len(until)
                rows[re.sub(r"\S+ \[[^]]*\]", "", rest[:end]).strip()].add((name, cell_len(start + found + rest[:end])))
    complete = [group for group in rows.values() if {name for name, _ in group} == set(NAMES)]
    assert complete
    assert all(len({width for _, width in group}) == 1 for group in rows.values()), rows


def printed(capsys: pytest.CaptureFixture[str], *words: str | os.PathLike[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(list(map(str, words))) == code
    return capsys.readouterr().out


def column(text: str, name: str) -> set[str]:
    return {row[name] for row in csv.DictReader(io.StringIO(text))}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", {(name, 10): Cell() for name in NAMES})


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Path]:
    made = Made(tmp_path / "trace", "client")
    for number in range(CALLS * len(NAMES)):
        begin = 10**9 + number * 10**7
        made.call(NAMES[number % len(NAMES)], [begin + part * 10**6 for part in range(5)], sent=2**20, recv=2**20)
    made.segment.close()
    yield tmp_path / "trace"
    trace.stop()


def test_analyze(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text, markdown, table, document = (
        printed(capsys, "analyze", run.path, "--no-report", "--format", form) for form in FORMATS
    )
    check_aligned(text)
    check_markdown(markdown)
    assert column(table, "backend") == set(NAMES)
    assert {cell["backend"] for cell in json.loads(document)["settings"][0]["cells"]} == set(NAMES)


def test_the_report_of_a_run(run: Run) -> None:
    pytest.importorskip("jinja2")
    made = tables(run)
    page = Page(report_html(made, chart_groups(run, made.summary), headline_words(made)))
    assert set(NAMES) <= set(page.cells)


def test_compare(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = make_run(tmp_path / "slow", {(name, 10): Cell(90_000.0) for name in NAMES})
    text, markdown, document = (
        printed(capsys, "compare", run.path, slow.path, "--format", form) for form in ("text", "markdown", "json")
    )
    check_aligned(text, "one-way p50")
    check_markdown(markdown)
    assert {change["cell"]["backend"] for change in json.loads(document)["changes"]} == set(NAMES)


def test_recommend_names_what_it_excludes(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text, markdown, document = (
        printed(capsys, "recommend", run.path, "--size", "521", "--format", form, code=1)
        for form in ("text", "markdown", "json")
    )
    assert all(name in text for name in NAMES)
    check_markdown(markdown, in_cells=False)
    assert {exclusion["backend"] for exclusion in json.loads(document)["excluded"]} >= set(NAMES)


def test_replay() -> None:
    outcome = made_up()
    first, method = outcome.backends[0], outcome.methods[0]
    replayed = dict.fromkeys(NAMES, 1000.0)
    outcome = replace(
        outcome,
        backends=tuple(replace(first, name=name) for name in NAMES),
        methods=tuple(replace(method, name=name, replayed_ns=replayed) for name in NAMES),
    )
    check_aligned(replay_render.as_text(outcome))
    check_markdown(replay_render.as_markdown(outcome))
    assert column(replay_render.as_csv(outcome), "backend") == set(NAMES)
    assert {backend["name"] for backend in json.loads(replay_render.as_json(outcome))["backends"]} == set(NAMES)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_trace_report(traced: Path, capsys: pytest.CaptureFixture[str], language: str) -> None:
    text, markdown, table, document = (
        printed(capsys, "trace", "report", traced, "--lang", language, "--format", form) for form in FORMATS
    )
    check_aligned(text)
    check_markdown(markdown)
    assert column(table, "method") == set(NAMES)
    assert {method["method"] for method in json.loads(document)["segments"][0]["methods"]} == set(NAMES)


def test_the_page_of_a_trace(traced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    printed(capsys, "trace", "report", traced, "--html", tmp_path / "page.html")
    assert set(NAMES) <= set(Page((tmp_path / "page.html").read_text(encoding="utf-8")).cells)


def test_trace_diff(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, markdown, document = (
        printed(capsys, "trace", "diff", traced, traced, "--format", form) for form in ("text", "markdown", "json")
    )
    check_aligned(text)
    check_markdown(markdown)
    assert {method["method"] for method in json.loads(document)["methods"]} == set(NAMES)


def test_trace_check_and_tail(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "trace", "check", traced, "--fail-if", "*.calls!=40").splitlines()
    assert {line.removeprefix("ok  ").partition(".calls = ")[0].strip() for line in lines} == set(NAMES)
    calls = printed(capsys, "trace", "tail", traced).splitlines()
    assert {json.loads(line)["method"] for line in calls} == set(NAMES)


@pytest.mark.parametrize(
    "text",
    [MARKUP, CHINESE, "1. a", "2) b", "- c", "+ d", "---", "# e", "~~f~~", "`g`", "h\\", "\\|", "a\\|b", "&amp;", "_i_",
     "~~~", "> j", "<k@l.m>", "![n](o)", "$p$", "[q]: r", "{s}", "===", "\\`t`|", "**u**", "a\nb\tc"],
)  # fmt: skip
def test_escaped_text_is_shown_literally(text: str) -> None:
    expected = " ".join(text.split())
    for markdown, tags in (
        (escape(text), ["p"]),
        (f"- {escape(text)}", ["ul", "li"]),
        (f"| {escape(text)} |\n| --- |", ["table", "thead", "tr", "th"]),
    ):
        page = rendered(markdown)
        assert page.text.strip() == expected, markdown
        assert page.tags == tags, markdown
    cell = rendered(f"| {code(expected)} |\n| --- |")
    assert cell.cells[0] == expected
    assert set(cell.tags) <= {"table", "thead", "tr", "th", "code"}


def test_chinese_text_takes_two_cells_a_character() -> None:
    sentence = " ".join([CHINESE] * 30)
    assert display_width(CHINESE) == 8
    lines = wrapped(sentence, 40)
    assert max(map(cell_len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == sentence
    assert shortened(CHINESE * 4) == "…" + (CHINESE * 4)[-9:]
    assert shortened(CHINESE * 10**5, 40, keep="start") == (CHINESE * 5)[:19] + "…"
