"""What no linter of single files can say: who may import whom, what may be named where, how long a function may be."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import ipcbench
from ipcbench.registry import names

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ipcbench"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MAX_FUNCTION_LINES = 40

TRANSPORT_HOMES = {
    "zmq": "zmq",
    "lmdb": "lmdb",
    "mpi4py": "mpi",
    "grpc": "grpc",
    "nats": "nats",
    "redis": "redis",
    "pynng": "nng",
    "zenoh": "zenoh",
    "iceoryx2": "iox2",
    "hiredis": "redis",
    "multiprocessing.shared_memory": "shm",
}
"""Library of a transport → folder or file of the backends that may import it."""

OBSERVERS = ("trace/adapters/", "diagnose/stepwise", "diagnose/ladder/links",
             "diagnose/empty_call")  # fmt: skip
"""Files that record what a user does with such a library, talk to a user's own server, or do as users do; no backend is
among them."""


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def every_node(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def nodes_of(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    """Return the parts of a file that are of one of these kinds."""
    return [node for node in every_node(path) if isinstance(node, kinds)]


def imports_of(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, also inside functions; `from a import b` yields `a` and `a.b`."""
    for node in nodes_of(path, ast.Import):
        yield from (alias.name for alias in node.names)
    for node in nodes_of(path, ast.ImportFrom):
        assert node.level == 0, f"{path}: a relative import hides its layer"
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_layers() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    command = str(linter) if linter.exists() else shutil.which("lint-imports")
    assert command is not None, "import-linter belongs to the development tools"
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def users_of(package: str) -> list[str]:
    return [name_of(path) for path in SOURCES if any(is_within(module, package) for module in imports_of(path))]


@pytest.mark.parametrize("library", TRANSPORT_HOMES)
def test_a_transport_has_one_home(library: str) -> None:
    users = [name for name in users_of(library) if not name.startswith(OBSERVERS)]
    assert users, f"nothing imports {library}: is this table out of date?"
    assert [user for user in users if not f"{user}/".startswith(f"backends/{TRANSPORT_HOMES[library]}/")] == []
    assert len(users) <= 2


def test_nobody_imports_a_backend() -> None:
    assert [user for user in users_of("ipcbench.backends") if not user.startswith("backends/")] == []


def test_a_backend_imports_only_its_own_family() -> None:
    """Each family of transports is a folder (`null` is a file), and none knows another."""
    for path in (PACKAGE / "backends").rglob("*.py"):
        family = path.relative_to(PACKAGE / "backends").with_suffix("").parts[0]
        for module in imports_of(path):
            if is_within(module, "ipcbench.backends"):
                assert is_within(module, f"ipcbench.backends.{family}"), f"{name_of(path)} imports {module}"


def import_graph(folder: Path, prefix: str = "") -> dict[str, set[str]]:
    """Return module → modules of `folder` that it imports, anywhere in its code; names are relative to `prefix`."""
    modules = {}
    for path in folder.rglob("*.py"):
        name = prefix + path.relative_to(folder).with_suffix("").as_posix().replace("/", ".")
        modules[name.removesuffix("__init__").removesuffix(".")] = path
    graph = {}
    for name, path in modules.items():
        imported = {alias.name for node in nodes_of(path, ast.Import) for alias in node.names}
        for node in nodes_of(path, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {member if member in modules else node.module for member in members}
        graph[name] = imported & modules.keys() - {name}
    return graph


def require_no_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import one another: {' <- '.join(error.args[1])}")


def test_no_module_of_the_package_imports_in_a_circle() -> None:
    """Imports inside functions and for type checkers count; the lazy tables of public names do not."""
    graph = import_graph(PACKAGE, "ipcbench.")
    assert graph["ipcbench.harness.sweep"], "the graph is empty"
    require_no_circle({**graph, "ipcbench": set(), "ipcbench.testing": set()})


def test_no_benchmark_of_peers_imports_in_a_circle() -> None:
    graph = import_graph(ROOT / "benchmarks" / "peers")
    assert any(graph.values()), "the graph is empty"
    require_no_circle(graph)


def test_a_circle_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    from b import g\n")
    (tmp_path / "b.py").write_text("import c\n")
    (tmp_path / "c.py").write_text("import a\n")
    with pytest.raises(pytest.fail.Exception, match="import one another"):
        require_no_circle(import_graph(tmp_path))


def texts_of(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


@pytest.mark.parametrize("layer", ["harness", "processes", "analysis", "stats", "machine", "cli"])
def test_nobody_asks_a_backends_name(layer: str) -> None:
    """Capabilities are asked for, names never: not compared, not matched, not looked up."""
    own_names = set(names()) - {"null"}
    for path in (PACKAGE / layer).rglob("*.py"):
        for node in nodes_of(path, ast.Compare, ast.MatchValue, ast.Subscript):
            assert not texts_of(node) & own_names, f"{path.name}:{node.lineno} asks for a backend by name"


def lines_of(node: Any) -> int:
    """Return how many lines a function has besides its docstring."""
    words = ast.get_docstring(node, clean=False)
    return (node.end_lineno or 0) - node.lineno + 1 - (len(words.splitlines()) if words else 0)


def test_functions_are_short() -> None:
    for path in SOURCES:
        long = [node.name for node in nodes_of(path, *FUNCTIONS) if lines_of(node) > MAX_FUNCTION_LINES]
        assert long == [], name_of(path)


def test_every_module_says_what_it_is() -> None:
    assert [name_of(path) for path in SOURCES if not ast.get_docstring(tree_of(path))] == []


def test_nothing_sleeps() -> None:
    """A wait has a condition and a deadline."""
    for path in (*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))):
        assert "time.sleep" not in imports_of(path), path
        assert [node.lineno for node in nodes_of(path, ast.Attribute) if ast.unparse(node) == "time.sleep"] == [], path


def test_only_the_command_line_prints_or_exits() -> None:
    ends = {"print", "sys.exit", "exit", "quit"}
    for path in SOURCES:
        is_program = path.name == "__main__.py" or '__name__ == "__main__"' in path.read_text(encoding="utf-8")
        if path.parent != PACKAGE / "cli" and not is_program:
            guilty = [call.lineno for call in nodes_of(path, ast.Call) if ast.unparse(call.func) in ends]
            assert guilty == [], name_of(path)


def modules_loaded_by(statement: str) -> set[str]:
    """Return the top-level names of all modules in a new process after `statement`, those at its start left out."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_nothing_from_outside() -> None:
    loaded = modules_loaded_by("import ipcbench")
    assert loaded - set(sys.stdlib_module_names) == {"ipcbench"}


def test_help_loads_neither_a_transport_nor_what_measures() -> None:
    loaded = modules_loaded_by("from ipcbench.cli import main; main(['--help'])") - set(sys.stdlib_module_names)
    assert "click" in loaded
    assert not loaded & {"numpy", "rich", "psutil", "msgpack", "msgspec", "zmq", "lmdb", "mpi4py", "grpc"}


@pytest.mark.parametrize("module", ["harness.worker", "replay.parts", "testing.agents.verbs"])
def test_a_worker_loads_neither_numpy_nor_a_reader_of_results(module: str) -> None:
    """Some processes of a trial need NumPy, and load it; it takes longer than all else at the start of the others."""
    loaded = modules_loaded_by(f"import ipcbench.{module}")
    assert "ipcbench" in loaded
    assert not loaded & {"msgspec", "numpy"}


def test_public_names_are_sorted_complete_and_there() -> None:
    assert ipcbench.__all__ == sorted(ipcbench.__all__)
    assert len(set(ipcbench.__all__)) == len(ipcbench.__all__)
    for name in ipcbench.__all__:
        assert getattr(ipcbench, name) is not None
        assert name in dir(ipcbench)
    path = PACKAGE / "__init__.py"
    functions = (node.name for node in tree_of(path).body if isinstance(node, ast.FunctionDef))
    defined = {name for name in functions if not name.startswith("_")}
    parts = (part for node in nodes_of(path, ast.If) for part in ast.walk(node))
    offered = {alias.asname or alias.name for part in parts if isinstance(part, ast.ImportFrom) for alias in part.names}
    assert defined | offered - {"Path", "StoredRun"} | {"__version__"} == set(ipcbench.__all__)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = ipcbench.nothing_like_it


def test_the_version_is_in_one_place() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert ipcbench.__version__.count(".") == 2
