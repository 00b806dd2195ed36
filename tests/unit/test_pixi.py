"""pixi.toml is valid, explains every task, and has the same commands as the docs and .ci/run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).parents[2]
MANIFEST: dict[str, Any] = tomllib.loads((ROOT / "pixi.toml").read_text(encoding="utf-8"))
TASKS: dict[str, dict[str, str]] = MANIFEST["tasks"]

VERSIONS = {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^>=\d+(\.\d+)*$"}}
TEXT = {"type": "string", "minLength": 1}
TASK = {
    "type": "object",
    "additionalProperties": False,
    "required": ["cmd", "description"],
    "properties": {"cmd": TEXT, "description": TEXT},
}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["workspace", "dependencies", "pypi-dependencies", "tasks"],
    "properties": {
        "workspace": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "channels", "platforms"],
            "properties": {
                "name": {"const": "ipcbench"},
                "channels": {"const": ["conda-forge"]},
                "platforms": {
                    "type": "array",
                    "uniqueItems": True,
                    "items": {"enum": ["linux-64", "linux-aarch64", "osx-arm64"]},
                },
            },
        },
        "dependencies": VERSIONS,
        "pypi-dependencies": {
            "type": "object",
            "required": ["ipcbench"],
            "properties": {"ipcbench": {"const": {"path": ".", "editable": True}}},
            "additionalProperties": {"type": "string", "pattern": r"^>=\d+(\.\d+)*$"},
        },
        "tasks": {"type": "object", "additionalProperties": TASK},
    },
}
"""The part of pixi's own schema that this file uses, but stricter: an unknown key is an error."""

CONDA_NAMES = {"lmdb": "python-lmdb", "matplotlib": "matplotlib-base", "msgpack": "msgpack-python", "redis": "redis-py"}
"""Packages whose name on conda-forge differs from PyPI."""


def test_the_manifest_is_valid() -> None:
    jsonschema.validate(MANIFEST, SCHEMA)


def test_the_tasks() -> None:
    bench = {"bench-small", "bench", "bench-large", "bench-shared", "bench-streaming"}
    assert set(TASKS) == bench | {"analyze", "profile", "test", "lint", "clean"}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_a_command_of_the_readme_or_of_ci(task: str) -> None:
    """What pixi runs is what the README and the reference show or what CI runs."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/quick-reference.md", ".ci/run")]
    lines = {re.sub(r"^(timeout .*)?uv run (--group \w+ )?", "", line.strip()) for line in "".join(texts).splitlines()}
    for command in TASKS[task]["cmd"].split(" && "):
        sweep = command.removeprefix("ipcbench run ")
        assert command in lines or f"`{sweep}`" in texts[1], f"{command!r} is in none of these files"


def test_it_installs_what_the_package_and_its_development_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["mpi"],
        *project["project"]["optional-dependencies"]["parquet"],
        *project["project"]["optional-dependencies"]["report"],
        *(each for group in ("test", "dev") for each in project["dependency-groups"][group] if isinstance(each, str)),
    ]
    provided = {**MANIFEST["dependencies"], **MANIFEST["pypi-dependencies"]}
    for requirement in (each for each in wanted if not each.startswith("ipcbench[")):
        name, _, version = requirement.partition(";")[0].strip().partition(">=")
        assert provided[CONDA_NAMES.get(name, name)] == f">={version}"
    assert MANIFEST["dependencies"]["python"] == project["project"]["requires-python"]
