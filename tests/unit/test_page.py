"""The report: one file, whole, that fetches nothing and executes nothing from data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ipcbench.analysis.charts.groups import chart_groups
from ipcbench.analysis.report.page import FindingLine, PageWords, VerdictLine, headline_words, report_html
from ipcbench.analysis.report.tables import tables
from ipcbench.render.page import Headline
from ipcbench.results.store import Run
from ipcbench.spec import SweepSpec
from tests.unit.builders import MACHINE, Cell, make_run

pytest.importorskip("jinja2")

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&{{ 7*7 }}"
MAX_BYTES = 2 * 10**6
SCRIPTS = ["application/json", None, None, None]
"""Types of the page's scripts: the charts, the plotting library, our two."""


class Page(HTMLParser):
    """The tags, texts and addresses of a page, as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def html_of(run: Run, words: PageWords | None = None) -> str:
    found = tables(run)
    return report_html(found, chart_groups(run, found.summary), words or headline_words(found))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    four = (1.0, 1.01, 0.99, 1.0)
    cells = {
        ("shm", 10): Cell(10_000.0, factors=four, notes=("noisy: 5% steal",)),
        ("zmq", 10): Cell(30_000.0, factors=four),
        ("bad", 10): Cell(factors=(0,) * 4),
        ("partly", 10): Cell(90_000.0, factors=(1.0, 0, 1.0, 1.01)),
    }
    return make_run(tmp_path / "run", cells, rounds=4, skipped={"absent": "no such hardware; buy some"})


@pytest.fixture
def hostile_run(tmp_path: Path) -> Run:
    cells = {(HOSTILE, 10): Cell(notes=(HOSTILE,)), ("b", 10): Cell(factors=(0, 0, 0))}
    said = {"machine": {**MACHINE, "cpu_model": HOSTILE, HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}}
    said |= {"command": ("ipcbench", HOSTILE), "skipped": {HOSTILE + "2": HOSTILE}}
    run = make_run(tmp_path / "run", cells, **said)
    trials = tuple(replace(trial, reason=HOSTILE) if trial.status == "failed" else trial for trial in run.trials)
    return replace(run, trials=trials, info=replace(run.info, run_id=HOSTILE), problems=(HOSTILE,))


def test_the_page_is_whole_and_small(run: Run) -> None:
    page = Page(html_of(run))
    assert len(html_of(run).encode()) < MAX_BYTES
    for section in ("answer", "tables", "plots", "method", "machine", "noise", "failures", "reproduce"):
        assert any(attributes.get("id") == section for attributes in page.all("section"))
    assert page.text.index("For 521 B to 1 reader: ") < page.text.rindex("Tables")
    for words in ("shm has the lowest one-way latency", "Example CPU", "memory copy of 55,039 B", "ipcbench run"):
        assert words in page.text


def test_failures_noise_and_what_was_left_out_are_told_with_reasons(run: Run) -> None:
    text = Page(html_of(run)).text
    for words in ("reader-0 ended with exit code 1", "no such hardware; buy some", "partly failed", "5% steal"):
        assert words in text
    for count in ("2 cells with failures", "1 backend left out"):
        assert count in text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("complete", "All planned trials were made, and none failed."),
        ("interrupted", "No trial failed. Not all planned trials were made: interrupted in round 3, 2 rounds done."),
        ("out of budget", "No trial failed. Not all planned trials were made: 2 rounds done; the budget of 100 s left"),
    ],
)
def test_without_failures_it_is_said_whether_all_trials_were_made(tmp_path: Path, status: str, words: str) -> None:
    cells = {("shm", 10): Cell(), ("zmq", 10): Cell(30_000.0)}
    text = Page(html_of(make_run(tmp_path / "run", cells, status=status, rounds_done=2))).text
    assert words in text
    assert ("All planned trials were made" in text) == (status == "complete")


def test_the_figures_of_the_tables_are_in_the_page(run: Run) -> None:
    text = Page(html_of(run)).text
    for table in tables(run).payload_tables:
        for row in table.rows:
            assert all(cell in text for cell in row)


def test_every_address_is_inside_the_page(run: Run) -> None:
    page = Page(html_of(run))
    targets = {attributes["id"] for _, attributes in page.tags if attributes.get("id")}
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "action", "formaction", "data", "poster"} & set(attributes), tag
        address = attributes.get("href") or "#"
        assert address == "data:," or address.lstrip("#") in {"", *targets}
    assert [attributes.get("type") for attributes in page.all("script")] == SCRIPTS


def test_only_our_scripts_may_run(run: Run) -> None:
    page = Page(html_of(run))
    policy = next(meta["content"] or "" for meta in page.all("meta") if meta.get("http-equiv"))
    assert "default-src 'none'" in policy
    own = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts[1:]]
    assert re.findall(r"'sha256-([^']+)'", policy) == own
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_hostile_data_is_text(hostile_run: Run) -> None:
    page = Page(html_of(hostile_run))
    assert [attributes.get("type") for attributes in page.all("script")] == SCRIPTS
    assert page.all("img") == []
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7*7 }}" in page.text
    assert not set("<>&") & set(page.scripts[0])
    charts = [chart for group in json.loads(page.scripts[0]) for chart in group["charts"]]
    assert any("onerror=alert" in series["name"] for chart in charts for series in chart["series"])


def test_every_plot_and_control_has_a_name(run: Run) -> None:
    page = Page(html_of(run))
    plots = [part for part in page.all("div") if part.get("class") == "plot"]
    assert len(plots) == len(page.all("figure")) > 0
    assert page.all("html") == [{"lang": "en"}]
    for part in (*plots, *(part for part in page.all("div") if "scroll" in (part.get("class") or ""))):
        assert part.get("aria-label")
        assert part.get("tabindex") == "0"


def test_the_verdicts_crossovers_and_findings_are_those_handed_in(run: Run) -> None:
    words = PageWords(
        (Headline("Use shm & be happy. It is fast [1.5–2.5].", ("The <remark> of it.",)),),
        (VerdictLine("the <topic>", "Use shm & be happy.", "The runner-up is zmq."),),
        ("zmq overtakes shm at 1 MiB.",),
        (FindingLine("Decoding dominates.", "241 µs of 251 µs.", "Try another codec."),),
    )
    text = Page(html_of(run, words)).text
    parts = ("the <topic>", "Use shm & be happy.", "The runner-up is zmq.", "zmq overtakes shm", "241 µs of 251 µs.")
    for part in (*parts, "Use shm & be happy. It is fast [1.5–2.5].", "The <remark> of it.", "Worth knowing"):
        assert part in text
    assert "Worth knowing" not in Page(html_of(run, PageWords(words.headlines))).text


def test_a_run_of_a_program_is_reproduced_by_a_program(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell()}, command=())
    text = Page(html_of(run)).text
    code = text[text.index("import json") : text.index("Copy")]
    called = []
    parts = code.strip().replace("from ipcbench import SweepSpec, run", "from ipcbench import SweepSpec")
    exec(parts, {"run": called.append})
    assert called == [SweepSpec.from_dict(run.info.sweep)]


def test_a_long_command_is_whole(tmp_path: Path) -> None:
    sizes = ",".join(map(str, range(200)))
    command = ("ipcbench", "run", "--sizes", sizes, "--name", "a b")
    run = make_run(tmp_path / "run", {("shm", 10): Cell()}, command=command)
    assert f"ipcbench run --sizes {sizes} --name 'a b'" in Page(html_of(run)).text


def test_a_run_without_any_figure_has_a_page(tmp_path: Path) -> None:
    page = Page(html_of(make_run(tmp_path / "run", {("shm", 10): Cell(factors=(0, 0))})))
    assert "No recommendation for 521 B" in page.text
    assert page.all("figure") == []


def test_the_library_in_the_page_is_the_one_named() -> None:
    assets = Path(__file__).parents[2] / "ipcbench" / "render" / "assets"
    assert "plotly.js (basic - minified) v4.1.1" in (assets / "plotly-basic.min.js").read_text(encoding="utf-8")[:200]
    assert "MIT" in (assets / "plotly-LICENSE").read_text(encoding="utf-8")
