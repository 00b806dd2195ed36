"""Which tests run: a share of each exhaustive product, and with `pytest --changed` what a change can have broken.

With `--changed`, test modules are left out of which nothing has changed since all of their tests passed. What a module
depends on is found in the source: what it imports, and what that imports, also within functions; modules that strings
name; in tests, backends by their registered names; and the other files beside all of these. A digest of that is written
to passed.json by `pytest --record`. Only what is in `FAMILIES` can be left out: the rest tells whether the product
works as a whole on this machine.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from ipcbench import _HOMES
from ipcbench.registry import _BUILT_IN

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PASSED = TESTS / "passed.json"
FAMILIES = tuple(
    f"tests/{room}/"
    for room in (
        "channels",
        "conformance",
        "diagnose",
        "harness",
        "hosts",
        "profile",
        "replay",
        "ring",
        "rpc",
        "system_calls",
        "trace",
    )
)
_WITH_TORCH = find_spec("torch") is not None
TORCH = ("tests/profile", "tests/conformance/test_gloo.py", "tests/conformance/test_ray.py")
"""Tests of which many are skipped without torch, or ray, so that each way passes for itself."""
_ALWAYS = (TESTS / "conftest.py", Path(__file__))
_MADE = {".pyc", ".so"}
_READ = {"benchmarks", "docs", "examples", "results"}
"""Folders that a test reads, if it names them."""
_TABLES = (ROOT / "ipcbench" / "registry.py", ROOT / "ipcbench" / "__init__.py")
"""They name every module of a kind; who uses one of these does not depend on the others."""
_GATHERING = ROOT / "ipcbench" / "sync" / "__init__.py"
"""It only gathers names of its modules; who uses one depends on the module that it is of."""
_NAMED = re.compile(r"\b(?:ipcbench|tests)(?:\.\w+)+")


def one_in(share: int, cases: Sequence[Any], name: Callable[[Any], str] = str) -> list[ParameterSet]:
    """Return the cases, tuples or single values, as parameters; all but every so-manyth have the mark `soak`."""
    found = []
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, id=name(case), marks=pytest.mark.soak if number % share else ()))
    return found


def _module(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split("."))
    return next((found for found in (path.with_suffix(".py"), path / "__init__.py") if found.is_file()), None)


def _strings(tree: ast.Module) -> Iterator[str]:
    """Yield the strings in a module that are no documentation."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def _names(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names that a module mentions; not all are modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for text in _strings(tree) if path not in _TABLES else ():
        yield from _NAMED.findall(_BUILT_IN.get(text, text) if path.is_relative_to(TESTS) else text)


def _folders(path: Path, tree: ast.Module) -> Iterator[Path]:
    """Yield the folders of the project that a test module names."""
    for text in set(_strings(tree)) if path.is_relative_to(TESTS) and path not in _ALWAYS else ():
        folder = text if text in _READ else text.rpartition("/")[0]
        if re.fullmatch(r"[a-z_]+(/[a-z_]+)*", folder) and (ROOT / folder).is_dir():
            yield ROOT / folder


@cache
def _gathered() -> dict[str, str]:
    """Return name → module, of what `_GATHERING` gathers."""
    lines = ast.parse(_GATHERING.read_bytes()).body
    return {alias.name: str(line.module) for line in lines if isinstance(line, ast.ImportFrom) for alias in line.names}


@cache
def _mentioned(path: Path) -> frozenset[Path]:
    """Return the files that a module mentions, and the packages that they are in, but for the whole package itself."""
    if path == _GATHERING:
        return frozenset()
    tree = ast.parse(path.read_bytes())
    found = {file for folder in _folders(path, tree) for file in folder.rglob("*") if file.is_file()}
    for name in _names(path, tree):
        words = name.split(".")
        if words[0] == "ipcbench" and words[1:2] and words[1] in _HOMES:  # the whole package loads it from there
            words = _HOMES[words[1]].split(".")
        if words[:2] == ["ipcbench", "sync"] and words[2:3] and words[2] in _gathered():
            words = _gathered()[words[2]].split(".")
        found |= {_module(".".join(words[:count])) for count in range(min(2, len(words)), len(words) + 1)}
    return frozenset(file for file in found if file is not None and file.suffix not in _MADE)


def inputs(test: Path) -> set[Path]:
    """Return all files that a test module depends on, as far as they are in this project."""
    found: set[Path] = set()
    waiting = {test, *_ALWAYS}
    while waiting:
        path = waiting.pop()
        found.add(path)
        if path.suffix == ".py":
            waiting |= _mentioned(path) - found
    folders = {path.parent for path in found} - {ROOT}
    beside = {file for folder in folders for file in folder.iterdir() if file.is_file() and file.suffix != ".py"}
    return {file for file in found | beside if file.suffix not in _MADE and file.name != PASSED.name}


def digest(test: Path) -> str:
    """Return what changes with any of a test module's inputs, and with the version of Python."""
    whole = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for path in sorted(inputs(test)):
        whole.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def unchanged(modules: Iterable[str]) -> set[str]:
    """Return those of the test modules, named by their paths below the project, that passed as they are."""
    passed = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    return {name for name in modules if (key := _key(name)) in passed and passed[key] == digest(ROOT / name)}


def _key(name: str) -> str:
    return f"{name} with torch" if _WITH_TORCH and name.startswith(TORCH) else name


class Recorder:
    """Writes down whose tests all passed: of all tests, or of those that need torch."""

    def __init__(self, config: pytest.Config) -> None:
        wanted = [*TORCH] if _WITH_TORCH else config.getini("testpaths")
        whole = config.args == wanted and not config.getoption("keyword")
        if not whole or config.getoption("changed") or os.environ.get("IPCBENCH_EXPECT") != "all":
            which = f"run all tests (with torch: {' '.join(TORCH)})"
            raise pytest.UsageError(f"--record: {which} with IPCBENCH_EXPECT=all, so that none is left out")
        self._outcomes: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcomes.setdefault(report.nodeid.partition("::")[0], set()).add(report.outcome)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            passed = [name for name, outcomes in self._outcomes.items() if "failed" not in outcomes]
            rows = {_key(name): digest(ROOT / name) for name in passed if name.startswith(FAMILIES)}
            before = json.loads(PASSED.read_text()) if PASSED.exists() else {}
            kept = {key: row for key, row in before.items() if key.endswith(" with torch") != _WITH_TORCH}
            PASSED.write_text(json.dumps(dict(sorted({**kept, **rows}.items())), indent=0) + "\n")
