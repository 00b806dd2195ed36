"""The run on a GPU that is kept: it can be read, its sums hold, and its page and the docs say what its files say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import profile_gpu_reference as reference
from ipcbench.profile.records import Profile, read_profile
from ipcbench.profile.summary import HOST, TRANSFER, WAIT, summarize

FOLDER = reference.REFERENCE


@pytest.fixture(params=reference.KEPT)
def profile(request: pytest.FixtureRequest) -> Profile:
    """Return each of the profiles."""
    return read_profile(FOLDER / request.param)


def test_a_profile_says_on_which_gpu_it_was_made(profile: Profile) -> None:
    facts = json.loads((FOLDER / "summary.json").read_text())["parts"]["facts"]["figures"]
    assert profile.verified_on is not None
    name, torch = profile.verified_on.split(", torch ")
    assert name == facts["gpus"][0]["name"]
    assert facts["torch"].startswith(torch)


def test_the_summary_has_the_figures_of_the_profiles() -> None:
    parts = json.loads((FOLDER / "summary.json").read_text())["parts"]
    for name in reference.KEPT:
        assert parts[name]["run"] == 2
        found = [json.dumps(figures) for figures in (parts[name]["figures"], reference.figures_of(FOLDER / name))]
        kept, now = (json.loads(text, parse_float=lambda digits: f"{float(digits):.9g}") for text in found)
        assert kept == now


def test_its_parts_add_up_to_the_wall(profile: Profile) -> None:
    summary = summarize(profile)
    assert len(summary.phases) == 2 * len(profile.ranks)
    for each in summary.phases:
        assert sum(part.ns for part in each.buckets) == pytest.approx(each.wall_ns, rel=0.005)
        assert each.coverage_ratio >= 0.97
        for path, (_, ns) in each.blocks.items():
            own = [operator.ns for operator in each.operators if operator.path == path]
            assert not own or sum(own) == pytest.approx(ns, rel=0.005)


def test_it_has_what_its_kind_of_run_must_have() -> None:
    alone, split = (summarize(read_profile(FOLDER / name)) for name in reference.KEPT)
    assert all(memory.peak_allocated_bytes for memory in alone.profile.memory)
    assert [memory.peak_allocated_bytes is None for memory in split.profile.memory] == [True, False]
    assert split.profile.agreement is not None
    assert split.profile.agreement.holds
    for each in split.phases:
        assert each.ns(WAIT) > 0
        assert each.ns(TRANSFER) > 0
    for each in alone.phases:
        assert 0 < sum(row.ns for row in each.operators if row.bucket != HOST) < each.wall.value


def test_nothing_is_quicker_than_the_memory() -> None:
    facts = json.loads((FOLDER / "summary.json").read_text())["parts"]["facts"]["figures"]["gpus"][0]
    for case in json.loads((FOLDER / "bandwidth.json").read_text())["cases"]:
        if case["values"]["bytes"] > facts["l2_bytes"]:
            assert case["figures"]["bytes_per_s"]["high"] < facts["peak_bytes_per_s"]


def test_its_page_says_what_the_files_say() -> None:
    assert (FOLDER / "README.md").read_text() == reference.readme()
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) <= 1_000_000


def test_the_docs_repeat_its_figures() -> None:
    text = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()
    section = text.partition("## On a GPU")[2].partition("\n## ")[0]
    page = reference.readme().replace("\\", "")
    rows = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    figures = {cell.strip() for row in rows for cell in row.split("|")[2:-1] if cell.strip()[0].isdigit()}
    figures |= set(re.findall(r"[0-9.,]+ \[[^\]]+\]", section.replace("\n", " ")))
    assert figures
    assert {figure for figure in figures if f"| {figure} |" not in page} == set()
