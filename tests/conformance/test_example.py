"""The example package obeys the contract, is known by its entry point, and is what docs/add-a-backend.md shows."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipcbench.registry import get_backend, names
from ipcbench.testing import LAWS, ConformanceSuite
from tests.conformance.example import EXAMPLE, install
from tests.end_to_end.shell import TINY, Shell

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "add-a-backend.md").read_text(encoding="utf-8")
SOURCE = (EXAMPLE / "ipcbench_file.py").read_text(encoding="utf-8")
STATEMENTS = 35


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example in a folder of its own, on the path of this process."""
    folder = install(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.mark.usefixtures("installed")
class TestExample(ConformanceSuite):
    backend = "file"
    quick = True


def test_its_own_tests_bind_the_suite(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    namespace: dict[str, object] = {}
    exec((EXAMPLE / "test_ipcbench_file.py").read_text(encoding="utf-8"), namespace)
    (bound,) = (value for name, value in namespace.items() if name.startswith("Test"))
    assert isinstance(bound, type)
    assert issubclass(bound, ConformanceSuite)
    assert get_backend(bound.backend) is get_backend("file")  # type: ignore[arg-type]
    assert (installed / "ipcbench_file.py").read_text(encoding="utf-8") == SOURCE


def test_an_entry_point_is_all_it_takes(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "file" in names()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(installed), os.environ.get("PYTHONPATH", ""))))
    shell = Shell(tmp_path)
    listed = shell("list")
    assert listed.returncode == 0, listed.stderr
    assert re.search(r"^file\s.*one file a message", listed.stdout, re.MULTILINE), listed.stdout
    done = shell("run", "--backends", "file,shm", *TINY, "--out", "run", "--format", "json")
    assert done.returncode == 0, done.stderr
    (setting,) = json.loads(done.stdout)["settings"]
    cells = {cell["backend"]: cell for cell in setting["cells"]}
    assert {name: one["status"] for name, one in cells.items()} == {"file": "ok", "shm": "ok"}
    assert cells["file"]["throughput_messages_per_s"] > 0
    answer = shell("recommend", "--payload", str(setting["payload_bytes"]), "--needs", "persistent,no-deps", "run")
    assert answer.returncode == 0, answer.stderr
    assert ": file, the only " in answer.stdout.splitlines()[0]


def test_the_page_shows_this_very_code() -> None:
    shown = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert ("python", SOURCE) in shown
    assert ("python", (EXAMPLE / "test_ipcbench_file.py").read_text(encoding="utf-8")) in shown
    assert any(language == "toml" and part in (EXAMPLE / "pyproject.toml").read_text() for language, part in shown)


def test_it_is_as_short_as_is_said() -> None:
    """Statements inside functions; what only describes the transport is not counted."""
    count = 0
    for function in (node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.FunctionDef)):
        inside = [node for part in function.body for node in ast.walk(part) if isinstance(node, ast.stmt)]
        count += sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in inside)
    assert count == STATEMENTS
    for page in (PAGE, (DOCS.parent / "README.md").read_text(encoding="utf-8")):
        assert f"{count} statements" in page


def test_the_contract_states_each_law_that_is_checked_by_the_same_title() -> None:
    stated = re.findall(r"^\| (C\d+) \| (.*?) \|", (DOCS / "contract.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert stated == [(law.number, law.title) for law in LAWS.values()]
