"""One trace against another, and against limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.compare.check import CheckResult, check, parse_condition
from ipcbench.trace.compare.diff import Diff, diff
from ipcbench.trace.compare.methods import Methods, read_methods
from ipcbench.trace.compare.render import as_json, as_markdown, as_text
from tests.trace.logs import V1, head, row
from tests.trace.made import HOSTILE, Made, both_sides, record


def make(folder: Path, scale: float, seed: int, count: int = 2000, names: tuple[str, ...] = ("Matmul",)) -> Methods:
    """Write calls whose times are correlated: a slow wave below the noise of each."""
    generator, made = np.random.default_rng(seed), Made(folder, "client")
    begin = 10**9
    wave = np.repeat(generator.normal(0, 0.02, count // 20 + 1), 20)
    for number in range(count):
        total = int(1e6 * scale * np.exp(wave[number] + generator.normal(0, 0.1)))
        stamps = [begin, begin + total // 4, begin + total // 2, begin + total * 3 // 4, begin + total]
        made.call(names[number % len(names)], stamps, sent=1000, recv=1000)
        begin += total + 1000
    made.segment.close()
    return read_methods([folder], keep_times=True)


def verdicts(difference: Diff) -> dict[str, list[str]]:
    return {method.method: [change.verdict for change in method.changes] for method in difference.methods}


@pytest.mark.parametrize(("scale", "verdict"), [(1.2, "slower"), (0.8, "faster")])
def test_a_difference_is_found_with_its_interval(tmp_path: Path, scale: float, verdict: str) -> None:
    for change in diff(make(tmp_path / "a", 1.0, 1), make(tmp_path / "b", scale, 2)).methods[0].changes:
        assert change.verdict == verdict
        assert change.times is not None
        assert change.times.low < scale < change.times.high


def test_equal_traces_are_seldom_called_different(tmp_path: Path) -> None:
    said = []
    for n in range(6):
        difference = diff(make(tmp_path / f"a{n}", 1.0, 2 * n), make(tmp_path / f"b{n}", 1.0, 2 * n + 1, 1000))
        said += verdicts(difference)["Matmul"]
    assert said.count("no clear difference") >= 14  # of 18


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    found = diff(make(tmp_path / "a", 1.0, 1, 100, ("One", HOSTILE)), make(tmp_path / "b", 1.0, 2, 100, ("One", "New")))
    assert verdicts(found) == {
        "One": ["no clear difference"] * 2 + ["not comparable"],
        HOSTILE: ["not comparable"] * 3,
        "New": ["not comparable"] * 3,
    }
    few = diff(make(tmp_path / "c", 1.0, 1, 10), make(tmp_path / "d", 1.0, 1, 100)).methods[0]
    assert {change.why for change in few.changes} == {
        f"too few calls: {name} takes {least} recorded in each"
        for name, least in (("mean", "20"), ("p50", "20"), ("p99", "1,000"))
    }
    text = as_text(found)
    assert "only in A" in text
    assert "only in B" in text
    assert "\x1b" not in text
    markdown = as_markdown(found)
    assert "<script>" not in markdown
    assert all(line.count(" | ") == 7 for line in markdown.splitlines() if line.startswith("| "))
    document = json.loads(as_json(found))
    assert [method["method"] for method in document["methods"]] == ["One", HOSTILE, "New"]
    assert document["methods"][0]["changes"][0]["times"]["low"] < 1


def test_sampled_traces_keep_their_exact_figures(tmp_path: Path) -> None:
    record(tmp_path / "t", 2000, 8)
    methods = read_methods([tmp_path / "t"], keep_times=True)
    found = diff(methods, methods).methods[0]
    assert (found.a_count, found.b_count) == (2000, 2000)
    assert found.changes[1].a_ns == methods.methods["Matmul"].sums.quantile_ns(0.5)
    assert len(methods.methods["Matmul"].times_ns()) < 600


def test_logs_are_compared_too(tmp_path: Path) -> None:
    for name, total in (("a", 10.0), ("b", 20.0)):
        rows = "".join(row(n + 1, "Matmul", 1, 2, 3, 1, total + 0.01 * (n % 7), 1, 1, 0) for n in range(60))
        (tmp_path / f"{name}.log").write_text(head(V1) + rows + "1  broken\n")
    difference = diff(*(read_methods([tmp_path / f"{name}.log"], keep_times=True) for name in "ab"))
    assert verdicts(difference)["Matmul"][:2] == ["slower", "slower"]
    assert "1 damaged" in as_text(difference)


@pytest.fixture
def checked(tmp_path: Path) -> Callable[[str], list[CheckResult]]:
    both_sides(tmp_path / "t", 20)
    methods = read_methods([tmp_path / "t"], keep_times=False)
    return lambda text: check(methods, parse_condition(text))


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("Matmul.p50_ms>1.4", 1.5, True),
        ("Matmul.p50_us > 1600", 1500, False),
        ("Matmul.mean_s<=1.5e-3", 0.0015, True),
        ("Matmul.p99_ms>5", 1.5, False),
        ("Matmul.max_ms>=1.5", 1.5, True),
        ("Matmul.calls!=20", 20, False),
        ("Matmul.errors>0", 1, True),
        ("Matmul (server).mean_ms==0.9", 0.9, True),
        ("Matmul.share_percent<99", 100, False),
        ("Matmul.MiB_per_s<1000", 3_000_000 / 2**20 / 0.0015, False),
        ("Matmul.wait_percent>83", 100 * 1250 / 1500, True),
        ("Matmul.unaccounted_percent>0", 0, False),
        (f"{HOSTILE}.calls==1", 1, True),
    ],
)
def test_conditions(checked: Callable[[str], list[CheckResult]], text: str, value: float, holds: bool) -> None:
    (outcome,) = checked(text)
    assert outcome.value == pytest.approx(value, rel=0.01)
    assert outcome.holds == holds
    assert "\n" not in outcome.line
    assert outcome.line.startswith("FAIL" if holds else "ok")


def test_a_star_stands_for_every_method_that_has_such_a_figure(checked: Callable[[str], list[CheckResult]]) -> None:
    assert {result.method for result in checked("*.mean_ms>1")} == {"Matmul", "Matmul (server)", HOSTILE}
    assert {result.method for result in checked("*.wait_percent>1")} == {"Matmul", HOSTILE}
    assert "of 20 calls only" in checked("Matmul.p99_ms>1")[0].line


@pytest.mark.parametrize(
    "text", ["Matmul", "Matmul.p50>1", "Matmul.p98_ms>1", "Matmul.p50_ms=1", "Matmul.p50_ms>x", ".calls>1", "calls>1"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="QUANTITY OP NUMBER"):
        parse_condition(text)


def test_what_the_trace_has_not_is_refused(checked: Callable[[str], list[CheckResult]], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a method of this trace \(did you mean 'Matmul'\?\): Matmul"):
        checked("Matmol.calls>1")
    with pytest.raises(ConfigError, match="serialize"):
        checked("Matmul.compute_percent>1")
    (tmp_path / "empty.log").write_text("nothing\n")
    with pytest.raises(StoreError, match="no calls found"):
        read_methods([tmp_path / "empty.log"], keep_times=False)
