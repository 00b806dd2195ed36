"""The ring without Python, between threads: order, bounds and every byte, with the compiler's checks of both."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ipcbench.backends.shm import native

HERE = Path(__file__).parent
CHECKED = {"thread": ["-Wno-tsan"], "address,undefined": []}
RUNS = [
    (1, 64, 104, 0, 104),
    (3, 5, 104, 8192, 5000),
    (2, 64, 40, 2**22, 300_000),
    (3, 2, 104, 5056, 5000),
]
"""Readers, entries, and bytes: inline, of the arena, of the largest message."""


def built(folder: Path, *options: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = folder / "driver"
    include = f"-I{Path(native.__file__).parent}"
    command = [compiler, "-std=c11", "-g", *options, include, str(HERE / "driver.c"), "-o", str(program), "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in done.stderr:
        pytest.skip(f"the compiler has no {options[0]}")
    assert (done.returncode, done.stderr) == (0, "")
    return program


def run(program: Path, messages: int, *numbers: int) -> None:
    command = [str(program), str(messages), *map(str, numbers), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("check", CHECKED)
def test_the_ring_is_in_order_and_in_bounds(check: str, tmp_path: Path) -> None:
    program = built(tmp_path, f"-fsanitize={check}", "-O1", *CHECKED[check])
    for numbers in RUNS:
        run(program, 30_000, *numbers)


@pytest.mark.soak
def test_a_thousand_million_messages(tmp_path: Path) -> None:
    run(built(tmp_path, "-O2"), 1_000_000_000, 1, 64, 104, 0, 64)
