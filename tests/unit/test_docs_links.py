"""Every link, path and import name in the documentation leads to something that exists."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from ipcbench.trace.adapters.instruments import ENTRY_POINT_GROUP

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("results/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
)
TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""The changelog also names what is gone."""

FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FILE = re.compile(r"(?<![\w./-])(?:ipcbench|docs|tests|benchmarks|examples|\.ci)/[\w./-]*\w/?")
NAME = re.compile(r"(?<![\w./-])ipcbench(?:\.[A-Za-z_]\w*)+")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    titles = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", TODAY, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = LINK.sub("", page.read_text(encoding="utf-8"))
    assert [path for path in FILE.findall(text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", TODAY, ids=name_of)
def test_import_names_that_a_page_shows_exist(page: Path) -> None:
    for name in set(NAME.findall(page.read_text(encoding="utf-8"))):
        if not name.endswith((".toml", ".txt", ".md", ".log")) and name != ENTRY_POINT_GROUP:
            pkgutil.resolve_name(name)


def test_the_index_has_every_page() -> None:
    linked = {target for target, _ in LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked


def test_contributing_has_every_room() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "ipcbench").glob("*/__init__.py")}
    assert sorted(room for room in rooms if f"| `{room}/` |" not in page) == []
