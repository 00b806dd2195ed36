"""The backend that docs/add-a-backend.md shows obeys the contract, word for word as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ipcbench.registry import get_backend
from ipcbench.testing import LAWS, check_backend

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def shown_backend(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "add-a-backend.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "files_backend.py").write_text(blocks[0])
    monkeypatch.syspath_prepend(tmp_path)
    return get_backend("files_backend:Files")


def test_the_shown_backend_obeys_the_contract(shown_backend):
    results = check_backend(shown_backend, quick=True)
    assert {result.law: result.reason for result in results if result.outcome == "failed"} == {}
    assert [result.law for result in results if result.outcome == "skipped"] == ["C6"]


def test_the_contract_states_each_law_that_is_checked():
    stated = re.findall(r"^\| (C\d+) \|", (DOCS / "contract.md").read_text(), re.MULTILINE)
    assert stated == list(LAWS)
