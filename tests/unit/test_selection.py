"""What `pytest --changed` leaves out, and what it must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import selection
from tests.selection import FAMILIES, ROOT, digest, inputs, unchanged

SHM = ROOT / "tests" / "conformance" / "test_shm.py"
NULL = "tests/conformance/test_null.py"


def named(test: Path) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in inputs(test)}


def test_laws_of_a_backend_depend_on_it_the_contract_and_the_suite_and_on_no_other_backend() -> None:
    found = named(SHM)
    assert {"ipcbench/backends/shm/backend.py", "ipcbench/sync/native/ring.h"} <= found
    assert {"ipcbench/backend.py", "ipcbench/testing/laws/delivery.py", "ipcbench/processes/worker.py"} <= found
    assert {"tests/conftest.py", "tests/selection.py"} <= found
    assert not {name for name in found if name.startswith(("ipcbench/backends/lmdb", "ipcbench/diagnose", "docs"))}


def test_what_a_test_names_in_strings_counts() -> None:
    assert "examples/ipcbench-file/ipcbench_file.py" in named(ROOT / "tests/conformance/test_example.py")
    assert "tests/trace/test_recorder.py" in named(ROOT / "tests/trace/test_hot.py"), "they are run in a process"
    assert "ipcbench/channels/connect.py" in named(ROOT / "tests/channels/test_channels.py")
    assert "tests/conformance/streams.py" in named(ROOT / "tests/conformance/test_streams.py")
    measured = {"ipcbench/processes/worker.py", "ipcbench/harness/loops.py", "ipcbench/sync/native_ring.py"}
    assert measured <= named(ROOT / "tests/harness/test_sweep.py")


def test_who_takes_one_name_of_the_kit_depends_on_the_module_that_it_is_of() -> None:
    kit = "ipcbench/sync/carried.py"
    assert "ipcbench/sync/cursors.py" in named(SHM)
    assert kit not in named(SHM)
    assert kit in named(ROOT / "tests/conformance/test_nng.py")


def test_only_what_passed_as_it_is_now_and_is_of_a_family_is_left_out(tmp_path, monkeypatch) -> None:
    other = "tests/conformance/test_lmdb.py"
    passed = {NULL: digest(ROOT / NULL), other: "0" * 16}
    (tmp_path / "passed.json").write_text(json.dumps(passed))
    monkeypatch.setattr(selection, "PASSED", tmp_path / "passed.json")
    assert unchanged([NULL, other, "tests/conformance/test_shm.py"]) == {NULL}
    monkeypatch.setattr(selection, "PASSED", tmp_path / "none.json")
    assert unchanged([NULL]) == set()


def test_any_input_changes_the_digest(monkeypatch) -> None:
    before = digest(SHM)
    lacking = inputs(SHM) - {ROOT / "ipcbench" / "sync" / "native" / "ring.h"}
    monkeypatch.setattr(selection, "inputs", lambda _: lacking)
    assert digest(SHM) != before


def test_what_is_recorded_is_of_a_family_and_still_there() -> None:
    names = json.loads(selection.PASSED.read_text())
    assert names
    assert all(name.startswith(FAMILIES) and (ROOT / name.partition(" ")[0]).is_file() for name in names)


@pytest.mark.parametrize("with_torch", [True, False])
def test_with_torch_and_without_tests_pass_for_themselves(tmp_path, monkeypatch, with_torch: bool) -> None:
    name = "tests/profile/exchange/test_traces.py"
    monkeypatch.setattr(selection, "PASSED", tmp_path / "passed.json")
    monkeypatch.setattr(selection, "_WITH_TORCH", with_torch)
    (tmp_path / "passed.json").write_text(json.dumps({selection._key(name): digest(ROOT / name)}))
    assert unchanged([name]) == {name}
    monkeypatch.setattr(selection, "_WITH_TORCH", not with_torch)
    assert unchanged([name]) == set()


@pytest.mark.parametrize("arguments", [("--record", NULL), ("--record", "-k", "c01"), ("--record", "--changed")])
def test_a_part_of_the_tests_is_not_recorded(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "IPCBENCH_EXPECT": "all"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "run all tests" in done.stderr


_TOLD = "TOLD_BY_A_TEST"


def test_a_worker_knows_what_its_run_was_told(pytestconfig: pytest.Config) -> None:
    if _TOLD in os.environ:
        assert pytestconfig.getoption("changed")
        assert "PYTEST_ADDOPTS" not in os.environ
        return
    command = [sys.executable, "-m", "pytest", "-q", "-n1", "-p", "no:cacheprovider", "tests/unit/test_selection.py"]
    environment = {**os.environ, "PYTEST_ADDOPTS": "--changed -k a_worker_knows", _TOLD: "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
