"""The ring without Python, between threads: order, bounds and every byte, with the compiler's checks of both."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from ipcbench.sync import native

HERE = Path(__file__).parent
CHECKED = {"thread": ["-Wno-tsan"], "address,undefined": []}
RUNS = [
    (1, 64, 104, 0, 104),
    (3, 5, 104, 8192, 5000),
    (2, 64, 40, 2**22, 300_000),
    (3, 2, 104, 5056, 5000),
]
"""Readers, entries, and bytes: inline, of the arena, of the largest message."""


AARCH64 = "aarch64-linux-gnu"


def tool(name: str, what: str) -> str:
    found = shutil.which(name)
    if found is None and os.environ.get("IPCBENCH_EXPECT") == "all":
        pytest.fail(f"there is no {name}, {what}")
    if found is None:
        pytest.skip(f"there is no {name}, {what}")
    return found


def built(folder: Path, *options: str, compiler: str = "cc") -> Path:
    program = folder / "driver"
    command = [tool(compiler, "a C compiler"), "-std=c11", "-g", *options, f"-I{Path(native.__file__).parent}"]
    command += [str(HERE / "driver.c"), "-o", str(program), "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in done.stderr:
        pytest.skip(f"the compiler has no {options[0]}")
    assert (done.returncode, done.stderr) == (0, "")
    return program


def run(program: Path, messages: int, *numbers: int, by: tuple[str, ...] = ()) -> None:
    command = [*by, str(program), str(messages), *map(str, numbers), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("check", CHECKED)
def test_the_ring_is_in_order_and_in_bounds(check: str, tmp_path: Path) -> None:
    program = built(tmp_path, f"-fsanitize={check}", "-O1", *CHECKED[check])
    for numbers in RUNS:
        run(program, 30_000, *numbers)


@pytest.mark.skipif(platform.machine() == "aarch64", reason="the other tests run on this processor itself")
def test_the_ring_works_in_the_instructions_of_aarch64(tmp_path: Path) -> None:
    """Emulated: the code that the compiler makes for aarch64, its atomic instructions, and the alignment they ask for,
    which x86 does not. It does not show that the order suffices: on an x86, memory is as strict as the host's.
    The thread sanitizer above checks the order, by the rules of C, for every processor."""
    emulator = tool("qemu-aarch64", "an emulator")
    program = built(tmp_path, "-O2", compiler=f"{AARCH64}-gcc")
    for numbers in RUNS:
        run(program, 10_000, *numbers, by=(emulator, "-L", f"/usr/{AARCH64}"))


@pytest.mark.soak
def test_a_thousand_million_messages(tmp_path: Path) -> None:
    run(built(tmp_path, "-O2"), 1_000_000_000, 1, 64, 104, 0, 64)
