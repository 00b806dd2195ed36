"""The library that lets a system call fail, built once for all tests of a session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("inject.c")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the built library."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler, and Linux")
    path = tmp_path_factory.mktemp("library") / "inject.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(path), str(SOURCE), "-ldl"], check=True)
    return path


@pytest.fixture
def loaded(library: Path) -> Callable[..., dict[str, str]]:
    """Return what makes an environment in which every process loads the library."""
    return lambda **variables: {**os.environ, "LD_PRELOAD": str(library), **variables}
