"""The example packages, and what `ipcbench new-backend` writes: they obey the contract, are known by their entry
points, and are what docs/add-a-backend.md shows.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipcbench.cli.new_backend import package_files
from ipcbench.registry import get_backend, names
from ipcbench.testing import LAWS, ConformanceSuite
from tests.conformance.example import EXAMPLES, install
from tests.end_to_end.shell import TINY, Shell

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "add-a-backend.md").read_text(encoding="utf-8")
EXAMPLE = EXAMPLES / "ipcbench-file"
SOURCE = (EXAMPLE / "ipcbench_file.py").read_text(encoding="utf-8")
NNG = DOCS.parent / "ipcbench" / "backends" / "nng.py"
STATEMENTS = {"file": (EXAMPLE / "ipcbench_file.py", 32), "nng": (NNG, 37)}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example, and a package as new as can be, in a folder on the path of this process."""
    folder, made = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("new")
    for file, text in package_files("new-one", sockets=True).items():
        (made / file).write_text(text, encoding="utf-8")
    for package in (EXAMPLE, made):
        install(package, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.mark.usefixtures("installed")
class TestExample(ConformanceSuite):
    backend = "file"
    quick = True


@pytest.mark.usefixtures("installed")
class TestNewOnSockets(ConformanceSuite):
    backend = "new-one"
    quick = True


def test_the_example_is_what_new_backend_writes(tmp_path: Path) -> None:
    own = Shell(tmp_path)
    done = own("new-backend", "file")
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "ipcbench-file").iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLE.iterdir() if path.is_file()}
    assert written == kept
    assert "ipcbench check ipcbench_file:File --quick" in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shm", "a name that no backend has yet"),
        ("My_Queue", "small letters, digits and single dashes"),
        ("../evil", "small letters, digits and single dashes"),
        ("taken", "a folder that does not exist yet"),
    ],
)
def test_a_name_or_a_folder_that_is_not_free_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "ipcbench-taken").mkdir()
    done = Shell(tmp_path)("new-backend", name)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["ipcbench-taken"]


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
    listed, described = shell("list"), shell("list", "file")
    assert (listed.returncode, described.returncode) == (0, 0), listed.stderr + described.stderr
    assert re.search(r"^file\s+yes", listed.stdout, re.MULTILINE), listed.stdout
    assert re.match(r"file: one file a message", described.stdout), described.stdout
    done = shell("run", "--backends", "file,shm", *TINY, "--out", "run", "--format", "json")
    assert done.returncode == 0, done.stderr
    (setting,) = json.loads(done.stdout)["settings"]
    cells = {cell["backend"]: cell for cell in setting["cells"]}
    assert {name: one["status"] for name, one in cells.items()} == {"file": "ok", "shm": "ok"}
    assert cells["file"]["throughput_messages_per_s"] > 0
    answer = shell("recommend", "--size", str(setting["payload_bytes"]), "--needs", "persistent,no-deps", "run")
    assert answer.returncode == 0, answer.stderr
    assert ": file, the only " in answer.stdout.splitlines()[0]


def test_the_page_shows_this_very_code() -> None:
    shown = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert ("python", SOURCE) in shown
    assert ("python", NNG.read_text(encoding="utf-8")) in shown
    assert ("python", (EXAMPLE / "test_ipcbench_file.py").read_text(encoding="utf-8")) in shown
    assert any(language == "toml" and part in (EXAMPLE / "pyproject.toml").read_text() for language, part in shown)


@pytest.mark.parametrize("name", STATEMENTS)
def test_it_is_as_short_as_is_said(name: str) -> None:
    """Statements inside functions; what only describes the transport is not counted."""
    file, said = STATEMENTS[name]
    count = 0
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        inside = [node for part in function.body for node in ast.walk(part) if isinstance(node, ast.stmt)]
        count += sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in inside)
    assert count == said
    assert f"{count} statements" in PAGE


def test_the_contract_states_each_law_that_is_checked_by_the_same_title() -> None:
    stated = re.findall(r"^\| (C\d+) \| (.*?) \|", (DOCS / "contract.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert stated == [(law.number, law.title) for law in LAWS.values()]
