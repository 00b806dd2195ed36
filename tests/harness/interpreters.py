"""Interpreters to be measured as variants: this test's own, each finding first what is in a folder of its own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ipcbench.spec import Variant

ROOT = Path(__file__).parents[2]

MARKED = """
import os
from pathlib import Path

import ipcbench
from ipcbench.backends.shm.backend import Shm
from ipcbench.testing.wrapper import BackendWrapper


def note(what):
    with open(Path(__file__).parent / "notes", "a") as file:
        file.write(f"{what} {os.getpid()} {Path(ipcbench.__file__).parents[1]}\\n")


class Marked(BackendWrapper):
    inner, name, summary, capabilities = Shm, "marked:Marked", "notes who calls it", Shm.capabilities

    def create(self, channel):
        note("create")
        return super().create(channel)

    def open_reader(self, address, index):
        note("read")
        return super().open_reader(address, index)

    def destroy(self, address):
        note("destroy")
        super().destroy(address)
"""
"""A backend that writes down which process and which ipcbench it runs in, in its own folder."""


def interpreter(folder: Path, *, first: Path | None = None, options: str = "", **modules: str) -> str:
    """Make a program that is this interpreter and finds `modules` in its own `folder`; return its path.

    Args:
        folder: is made.
        first: where it finds ipcbench; None takes the package under test.
        options: of Python.
        modules: name → source.
    """
    folder.mkdir(parents=True)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    program = folder / "python"
    paths = f"{folder}:{first or ROOT}"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{paths}" exec "{sys.executable}" {options} "$@"\n')
    program.chmod(0o755)
    return str(program)


def two(folder: Path, **changes: object) -> tuple[Variant, ...]:
    """Return variants `base` and `head`, equal but for what is changed in `head`."""
    return Variant("base", interpreter(folder / "base")), Variant("head", interpreter(folder / "head", **changes))


def copied_package(folder: Path, module: str, old: str, new: str) -> Path:
    """Return a folder with a copy of ipcbench in which one line of a module is another."""
    ignored = shutil.ignore_patterns("__pycache__", "assets")
    shutil.copytree(ROOT / "ipcbench", folder / "ipcbench", ignore=ignored)
    path = folder / "ipcbench" / module
    source = path.read_text()
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))
    return folder
