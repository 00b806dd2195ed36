"""A wheel has the parts in C, or none and is for every machine; each of them works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
CHECK = Path(__file__).with_name("check.py")
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
IN_C = {"ipcbench/trace/record/hot/_c", "ipcbench/sync/native/_c"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: a build writes beside the sources, where other tests read the package's metadata."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(ROOT / "ipcbench", folder / "ipcbench", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    return folder


def built(sources: Path, folder: Path, pure: str) -> Path:
    if shutil.which("uv") is None:
        pytest.skip("there is no uv, which builds wheels")
    command = ["uv", "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(folder), str(sources)]
    done = subprocess.run(
        command, env={**os.environ, "IPCBENCH_BUILD_PURE": pure}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def parts_in_c(wheel: Path) -> set[str]:
    return {name.partition(".")[0] for name in ZipFile(wheel).namelist() if name.endswith((".so", ".c", ".h"))}


def check(wheel: Path, folder: Path, how: str) -> None:
    """Run the check with the wheel's own files, without those that the tests use."""
    ZipFile(wheel).extractall(folder)
    ours = {name: value for name, value in os.environ.items() if name != "IPCBENCH_PURE"}
    done = subprocess.run([sys.executable, str(CHECK), how], cwd=folder, env={**ours, "PYTHONPATH": str(folder)},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(str(folder))


def test_a_wheel_has_its_parts_in_c(sources: Path, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    wheel = built(sources, tmp_path, "")
    assert not wheel.name.endswith("-any.whl")
    assert parts_in_c(wheel) == IN_C
    check(wheel, tmp_path / "unpacked", "c")


def test_a_pure_wheel_is_for_every_machine(sources: Path, tmp_path: Path) -> None:
    wheel = built(sources, tmp_path, "1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert parts_in_c(wheel) == set()
    check(wheel, tmp_path / "unpacked", "python")


def test_wheels_are_for_the_versions_that_are_tested() -> None:
    """A version that has no wheel would silently get the pure one."""
    builds = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]["build"]
    versions = [f'"{each[2]}.{each[3:].removesuffix("-*")}"' for each in builds]
    assert f"python: [{', '.join(versions)}]" in (ROOT / ".github/workflows/tests.yml").read_text()
