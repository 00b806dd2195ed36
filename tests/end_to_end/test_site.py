"""The docs build as a site without a warning, and no page of it loads anything from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.shell import ROOT

LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_the_docs_is_in_the_menu(site: Path) -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    listed = [Path(str(page)).name for page in _leaves(yaml.safe_load(menu))]
    assert sorted(listed) == sorted(pages)
    assert (site / "troubleshooting" / "index.html").is_file()


def _leaves(menu: object) -> list[object]:
    if isinstance(menu, dict):
        return [leaf for part in menu.values() for leaf in _leaves(part)]
    return [leaf for part in menu for leaf in _leaves(part)] if isinstance(menu, list) else [menu]


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    assert [
        (page.name, LOADED.findall(page.read_text(encoding="utf-8"))[:1])
        for page in pages
        if LOADED.search(page.read_text(encoding="utf-8"))
    ] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(?:url\(|@import\s+)[\"']?(?:https?:)?//", styles)


def test_no_link_of_a_page_is_left_as_a_path_of_the_repository(site: Path) -> None:
    for page in site.rglob("index.html"):
        links = re.findall(r'href="([^"#]+)', page.read_text(encoding="utf-8"))
        inside = [link for link in links if not link.startswith(("http", "data:", "mailto:", "/"))]
        assert [link for link in inside if not (page.parent / link).resolve().exists()] == [], page


def test_what_the_page_of_symptoms_quotes_is_what_is_said() -> None:
    """A symptom in quotes is a text of the package; pieces of f-strings are compared word by word."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sources = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "ipcbench").rglob("*.py"))
    said = re.sub(r'["\s]+', " ", re.sub(r'"\s*f?"', "", sources))
    quoted = [
        phrase for row in re.findall(r"^\| (.*?) \|", page, re.MULTILINE) for phrase in re.findall(r'"(.+?)"', row)
    ]
    assert len(quoted) > 8
    assert [phrase for phrase in quoted if phrase not in said] == []
