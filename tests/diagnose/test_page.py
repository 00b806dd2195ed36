"""The page of a diagnosis and of a ladder: it has the figures of the tables, fetches nothing, and executes nothing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipcbench.cli import main
from ipcbench.diagnose.attribution import attribute
from ipcbench.diagnose.costs import CodecCost, CompressionCost, CopyCost, Costs
from ipcbench.diagnose.diagnosis import Diagnosis, Floor, Remedy
from ipcbench.diagnose.empty_call import EmptyCall
from ipcbench.diagnose.page.charts import parts_chart
from ipcbench.diagnose.page.page import diagnosis_html, headline, ladder_html
from ipcbench.diagnose.render import as_text, conditional, tables, unhelpful
from ipcbench.diagnose.what_if import what_ifs
from ipcbench.diagnose.words import PAGE, REMEDIES, WORDS, page_word, remedy_words, word
from ipcbench.replay.latency_table import LatencyTable
from ipcbench.stats.estimates import Interval
from ipcbench.trace.report.words import Language
from tests.diagnose.test_ladder import ONE_LAYER, made_up
from tests.end_to_end.browser import Seen
from tests.end_to_end.conftest import browser  # noqa: F401 - a fixture
from tests.replay.made import thread, traffic
from tests.trace.made import both_sides
from tests.trace.test_chinese import sentences

pytest.importorskip("jinja2")

HOSTILE = "<script>document.title = 'owned'</script>"
COMMAND = "ipcbench diagnose 'a trace' --html page.html"
LANGUAGES: tuple[Language, ...] = ("en", "zh")


class Visible(HTMLParser):
    """What a page shows: texts and names of parts, without commands, style and scripts; and its table cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.cells: list[str] = []
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"style", "script", "code", "td", "th"}:
            self.inside.append(tag)
        if tag in {"td", "th"}:
            self.cells.append("")
        plot = dict(attrs).get("class") == "plot"
        self.texts += [value for name, value in attrs if name in {"aria-label", "title"} and value and not plot]

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not {"style", "script", "code"} & set(self.inside):
            self.texts.append(data)
        if {"td", "th"} & set(self.inside):
            self.cells[-1] += data


def interval(middle: float, spread: float = 0.1) -> Interval:
    return Interval(middle * (1 - spread), middle, middle * (1 + spread))


def remedy(key: str, gain: float, spread: float = 0.05, **more: Any) -> Remedy:
    """Return a replayed change that saves so much of 2.51 ms."""
    total_ns = 2.51e6
    ends = Interval(*((1 - gain + step) * total_ns for step in (-spread, 0, spread)))
    gains = Interval(gain - spread, gain, gain + spread)
    return Remedy(key, "zmq", 3, ends, gains, **more)


def costs() -> Costs:
    return Costs(
        pack_ns=2000.0,
        unpack_ns=1000.0,
        to_half_ns_per_byte=0.1,
        from_half_ns_per_byte=0.1,
        empty_call=EmptyCall(2000.0, 400.0, 300.0, 600.0),
        copies=(CopyCost(1024, interval(111), interval(1222)),),
        codecs=(CodecCost("msgpack", 1024, interval(3333), interval(4444)),),
        compression=(
            CompressionCost("zlib", 0.5, interval(5e6), interval(6e6)),
            CompressionCost("lz4", None, None, None, "lz4 is not installed: pip install lz4"),
        ),
    )


def made(**changes: Any) -> Diagnosis:
    """Return a diagnosis with something in every section."""
    calls = replace(
        traffic(thread()),
        methods=(HOSTILE, "Large"),
        transports=("IPC",),
        remarks=("1,234 calls failed and are not replayed.",),
    )
    tables_ns = {"zmq": (8_000.0, 30_000.0), "shm": (900.0, 9_000.0)}
    floors = tuple(Floor(name, LatencyTable((16, 100_000), ns), interval(4e5)) for name, ns in tables_ns.items())
    what_if = {each.key: each for each in what_ifs(calls, costs())}
    values: dict[str, Any] = {
        "traffic": calls,
        "source": "zmq",
        "recorded_ns": 2.51e6,
        "replayed_count": 12,
        "floors": floors,
        "attributions": attribute(calls, floors[0].table),
        "remedies": (
            replace(remedy("transport shm", 0.4), backend="shm"),
            remedy("out of band", 0.2, note=what_if["out of band"].note),
        ),
        "others": (
            remedy("half precision", 0.3, condition=what_if["half precision"].condition),
            remedy("stay on one side", -0.3, condition="x"),
            remedy("server", 0.01),
        ),
        "costs": costs(),
        "failures": {"transport pipe": "lz4 is not installed: pip install lz4"},
        **changes,
    }
    return Diagnosis(**values)


def charts(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page)
    assert found is not None
    groups: list[dict[str, Any]] = json.loads(found[1])
    return groups


def strings(value: Any) -> Iterator[str]:
    """Yield the texts of a chart; its summary has words between figures."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for key, each in value.items() if key not in {"summary", "marks"} for text in strings(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in strings(each))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_has_every_figure_of_the_tables(language: Language) -> None:
    diagnosis = made()
    cells = Visible(diagnosis_html(diagnosis, COMMAND, language)).cells
    wanted = {cell for table, _ in tables(diagnosis, language, None) for row in table.rows for cell in row}
    assert wanted - {" ".join(cell.split()) for cell in cells} == set()


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_fetched_and_no_name_is_markup(language: Language) -> None:
    page = diagnosis_html(made(), COMMAND, language)
    assert HOSTILE not in page
    assert page.count("<script") == 4
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.S)  # the plotting library names its home page
    assert re.findall(r"https?:|\bsrc=|@import|url\(", markup) == []
    assert f'<html lang="{language}">' in page
    assert unescape(page).count(HOSTILE) >= 1, "the name is shown as it is"


@pytest.mark.parametrize("page", ["diagnosis", "ladder", "few", "left out", "nothing", "planned", "against"])
def test_no_english_sentence_is_on_a_chinese_page(page: str) -> None:
    plain = made(traffic=replace(made().traffic, methods=("a", "b")))
    plain = replace(plain, attributions=attribute(plain.traffic, plain.floors[0].table))
    planned = replace(plain.traffic, is_timed=False, transports=())
    text = {
        "diagnosis": lambda: diagnosis_html(plain, COMMAND, "zh"),
        "against": lambda: diagnosis_html(plain, COMMAND, "zh", plain.traffic),
        "nothing": lambda: diagnosis_html(replace(plain, remedies=()), COMMAND, "zh"),
        "planned": lambda: diagnosis_html(replace(plain, traffic=planned, attributions=()), COMMAND, "zh"),
        "ladder": lambda: ladder_html(made_up(3, replace(ONE_LAYER, tokens_count=256)), COMMAND, "zh"),
        "few": lambda: ladder_html(made_up(2), COMMAND, "zh"),
        "left out": lambda: ladder_html(made_up(3, shm="lz4 is not installed: pip install lz4"), COMMAND, "zh"),
    }[page]()
    values = (*Visible(text).texts, *strings(charts(text)))
    assert [found for value in values for found in sentences(value)] == []


def test_what_a_change_assumes_is_said_in_chinese() -> None:
    calls = traffic(thread(count=200, server_ns=90_000, before_ns=9_000, after_ns=9_000))
    found = list(what_ifs(calls, costs()))
    assert {"server", "out of band", "half precision"} <= {each.key for each in found}
    diagnosis = made(remedies=tuple(remedy(each.key, 0.5, note=each.note, condition=each.condition) for each in found))
    page = diagnosis_html(diagnosis, COMMAND, "zh")
    assert [each for value in Visible(page).texts for each in sentences(value.replace(HOSTILE, ""))] == []


@pytest.mark.parametrize("words", [WORDS, PAGE])
def test_both_languages_take_the_same_values(words: dict[str, tuple[str, str]]) -> None:
    for key, (english, chinese) in words.items():
        names = [set(re.findall(r"\{(\w+)", text)) for text in (english, chinese)]
        assert names[0] == names[1], key


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_begins_with_the_first_remedy_and_its_total(language: Language) -> None:
    lead = headline(made(), language).lead
    assert remedy_words("transport shm", language)[0] in lead
    assert "2.51 ms → 1.51 ms [1.38 ms, 1.63 ms]" in lead


@pytest.mark.parametrize("language", LANGUAGES)
def test_without_a_remedy_the_page_says_why(language: Language) -> None:
    none = made(remedies=())
    assert headline(none, language).lead == word("nothing helps", language)
    few = tuple(replace(each, rounds_count=2) for each in none.others)
    assert headline(replace(none, others=few), language).lead == page_word("no rounds", language).split(". ")[0]
    dark = traffic(thread(server_ns=-1))
    unknown = made(remedies=(), traffic=dark, attributions=attribute(dark, None))
    assert headline(unknown, language).lead == page_word("mostly unknown", language, share="95.0 %")


@pytest.mark.parametrize("language", LANGUAGES)
def test_changes_that_were_replayed_too_little_are_told_of_beside_the_answer(language: Language) -> None:
    some = replace(made().others[0], rounds_count=2)
    mixed = made(others=(*made().others[1:], some))
    assert headline(mixed, language).lead.startswith(PAGE["best judged"][language == "zh"].partition("{")[0])
    assert word("judged one", language) in as_text(mixed, language).replace("\n  ", " " if language == "en" else "")
    assert headline(replace(mixed, remedies=()), language).lead == word("nothing judged", language)


def test_a_server_that_its_clients_queue_for_is_named() -> None:
    calls = replace(made().traffic, threads=tuple(thread(12, 60_000, str(number), "s") for number in range(3)))
    busy = made(traffic=calls, attributions=attribute(calls, None))
    assert "busy for 86" in " ".join(as_text(busy).split())
    assert "busy for" not in as_text(made())


def test_calls_before_leave_the_answer_first() -> None:
    found = headline(made(), "en", made().traffic)
    assert remedy_words("transport shm", "en")[0] in found.lead
    assert "A call takes" in str(found)


def test_what_is_only_bounded_is_said_to_be_so() -> None:
    bound = replace(remedy("neighbours", 0.4, 0.0), backend="", rounds_count=0)
    diagnosis = made(remedies=(bound,))
    assert headline(diagnosis, "en").lead.endswith("2.51 ms → at least 1.51 ms.")
    assert "at most 40.0" in as_text(diagnosis)
    assert "no interval" in as_text(diagnosis)


def test_clients_that_take_turns_are_told_of_and_nothing_else() -> None:
    diagnosis = made(remedies=(), others=(), traffic=replace(made().traffic, takes_turns=True))
    assert headline(diagnosis, "en").lead == word("turns", "en")


def test_the_plot_has_no_bar_twice_and_says_what_its_parts_are() -> None:
    one = replace(made().traffic, methods=("Only",), threads=(replace(thread(), method=np.zeros(12, np.int64)),))
    quick = replace(made(), attributions=attribute(one, LatencyTable((16, 100_000), (1e6, 2e6))))
    group = parts_chart(quick, "en")
    assert group is not None
    (chart,) = group.charts
    assert [name for _, name in chart.x.ticks or ()] == ["all"]
    assert any("idle channel" in each for each in chart.notes)
    assert any("less than the floor" in each for each in chart.notes)


def test_a_change_that_costs_time_is_no_help_on_any_condition() -> None:
    diagnosis = made()
    assert [each.key for each in conditional(diagnosis)] == ["half precision"]
    assert [each.key for each in unhelpful(diagnosis)] == ["stay on one side", "server"]


def test_a_remedy_is_shown_with_its_command_and_a_condition_with_its_words() -> None:
    page = unescape(diagnosis_html(made(), COMMAND))
    assert "<code>ipcbench replay 'made up' --backends shm --recorded-over zmq</code>" in page
    assert "if the messages are arrays of float32" in page
    assert f"<code>{COMMAND}</code>" in page
    assert set(REMEDIES) >= {"half precision", "out of band"}


def test_plots_add_up_and_have_one_point_for_each_size() -> None:
    parts, floors = charts(diagnosis_html(made(), COMMAND))
    chart = parts["charts"][0]
    for place in (1, 2, 3):
        shares = [y for one in chart["series"] for x, y in zip(one["x"], one["y"], strict=True) if x == place]
        assert sum(shares) == pytest.approx(100, abs=0.01)
    assert [one["name"] for one in floors["charts"][0]["series"]] == ["zmq", "shm"]
    assert floors["charts"][0]["series"][1]["y"] == [0.9, 9.0]
    assert floors["charts"][0]["x"]["log"]


def test_without_floors_and_times_there_is_no_plot_and_still_a_page() -> None:
    planned = replace(made().traffic, is_timed=False, transports=())
    page = diagnosis_html(made(traffic=planned, attributions=(), floors=(), recorded_ns=0.0), COMMAND)
    assert charts(page) == []
    assert "2.51 ms → 1.51 ms" in unescape(re.sub(r"<[^>]+>", "", page)), "the time before is that of its replay"


def test_the_page_of_a_ladder_has_every_stage() -> None:
    result = made_up(3)
    page = ladder_html(result, COMMAND)
    cells = Visible(page).cells
    assert [stage.name for stage in result.stages if stage.name not in cells] == []
    (group,) = charts(page)
    (series,) = group["charts"][0]["series"]
    assert series["y"] == pytest.approx([stage.time_s for stage in result.stages], rel=1e-5)
    assert "nothing is claimed" in ladder_html(made_up(2), COMMAND)
    assert "4 left out" in unescape(ladder_html(made_up(3, zmq="gone"), COMMAND))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--endpoint", "tcp://127.0.0.1:1", "--html", "page"), "--html"),
        (("--model", "llama-3.2-1b", "--write-trace", "t", "--html", "page"), "--html"),
        (("t", "--html", "."), "the path of a file"),
    ],
)
def test_a_page_that_cannot_be_made_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert words in line
    assert list(tmp_path.iterdir()) == []


def test_without_jinja2_the_option_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    both_sides(tmp_path / "t", 3)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["diagnose", str(tmp_path / "t"), "--html", str(tmp_path / "page")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "ipcbench: error: --html needs jinja2: pip install 'ipcbench[report]'"
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize(("width", "language"), [(1280, "en"), (400, "zh")])
def test_the_page_in_a_browser(tmp_path: Path, browser: Any, width: int, language: Language) -> None:  # noqa: F811
    path = tmp_path / "page.html"
    path.write_text(diagnosis_html(made(), COMMAND, language), encoding="utf-8")
    seen = Seen(browser.new_page(viewport={"width": width, "height": 900}))
    seen.open(path)
    assert remedy_words("transport shm", language)[0] in (seen.page.locator("h1").text_content() or "")
    for section in ("where", "help", "conditional", "others", "floors", "costs", "remarks", "reproduce"):
        seen.page.locator(f"nav a[href='#{section}']").press("Enter")
        seen.page.locator(f"#{section} > details[open]").wait_for()
    for key, shape in (("parts", ".barlayer .point"), ("floors", ".scatterlayer .point")):
        card = seen.check_card(key, shape, 4)
        card.locator(".plot").focus()
        seen.page.keyboard.press("ArrowRight")
        assert card.locator(".spoken").text_content()
        card.locator("details > summary").click()
        card.locator(".figures tr").first.wait_for()
    seen.page.locator("#theme").click()
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "dark"
    seen.check_quiet(path, width)


def test_the_ladder_in_a_browser(tmp_path: Path, browser: Any) -> None:  # noqa: F811
    path = tmp_path / "page.html"
    path.write_text(ladder_html(made_up(3), COMMAND), encoding="utf-8")
    seen = Seen(browser.new_page(viewport={"width": 400, "height": 900}))
    seen.open(path)
    seen.check_card("ladder", ".scatterlayer .point", 9)
    seen.check_quiet(path, 400)


def test_the_command_writes_the_page_of_a_ladder_that_names_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("ipcbench.diagnose.ladder.measure_ladder", lambda *_: made_up(3))
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", "--model", "llama-3.2-1b", "--ladder", "--html", "page.html"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "report in page.html\n")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<code>ipcbench diagnose --model llama-3.2-1b --ladder --html page.html</code>" in page
