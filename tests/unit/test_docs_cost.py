"""docs/cost.md: its tables are whole, and the program that writes them puts them where they are."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest

from tests.docs_blocks import ROOT

SCRIPTS = ROOT / "benchmarks" / "peers"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    pytest.importorskip("lmdb")
    pytest.importorskip("zmq")
    monkeypatch.syspath_prepend(SCRIPTS)
    return runpy.run_path(str(SCRIPTS / "contract_cost.py"))


def test_both_tables_have_every_backend_size_and_number_of_readers(script: dict[str, Any]) -> None:
    """A defect: a backend that was not available when the page was written is silently absent."""
    text = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    sizes = [f"{int(size):,} B" for size in script["SIZES"].split(",")]
    assert text.count(f"| backend | readers | {' | '.join(sizes)} |") == 2
    ratio = r"\d+\.\d\d \(\d+\.\d\d–\d+\.\d\d\)"
    rows = re.findall(rf"^\| `([\w-]+)` \| (\d) \|(?: {ratio} \|){{{len(sizes)}}}$", text, re.MULTILINE)
    assert rows == [(name, readers) for name in script["BACKENDS"] for readers in "13"] * 2


def test_writing_the_page_again_changes_only_the_tables(script: dict[str, Any], tmp_path: Any) -> None:
    """A defect: the marks are written twice, or text around them is lost."""
    page = tmp_path / "cost.md"
    page.write_text("before\n<!-- from benchmarks/peers/contract_cost.py -->\nold\n<!-- end -->\nafter\n")
    write = script["write_page"]
    write.__globals__["PAGE"] = page
    write("new")
    first = page.read_text()
    write("new")
    assert page.read_text() == first
    assert first.startswith("before\n")
    assert first.endswith("<!-- end -->\nafter\n")
    assert "\nnew\n" in first
    assert "old" not in first
