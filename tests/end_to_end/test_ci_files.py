"""What others build on: the action does what it says, its files obey their schemas, the recipe needs what the package
needs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipcbench import __version__
from tests.unit.test_pixi import CONDA_NAMES

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TINY = (
    "--backends shm --payload bytes --codec raw --sizes 10 --readers 1 --rounds 3 --window 20ms --warmup 5ms --look no"
)


def step(folder: Path, **inputs: str) -> tuple[int, str, dict[str, str], str]:
    """Run the action's step as the service does; return exit code, summary, outputs and standard error."""
    (measure,) = ACTION["runs"]["steps"]
    values = {name: entry["default"] for name, entry in ACTION["inputs"].items()} | {"package": ""} | inputs
    variables = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: values[match[1]], text)
        for name, text in measure["env"].items()
    }
    files = {"GITHUB_STEP_SUMMARY": folder / "summary.md", "GITHUB_OUTPUT": folder / "outputs"}
    for path in files.values():
        path.touch()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-e", "-c", measure["run"]],
        cwd=folder,
        env={**os.environ, **variables, **{name: str(path) for name, path in files.items()}, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return done.returncode, files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"), outputs, done.stderr


def test_the_action_measures_and_sums_up(tmp_path: Path) -> None:
    code, summary, outputs, said = step(tmp_path, arguments=TINY)
    assert code == 0, said
    assert outputs == {"run": "ipcbench-run"}
    assert (tmp_path / "ipcbench-run" / "trials.jsonl").exists()
    assert "shm" in summary


@pytest.mark.parametrize(("gate", "codes"), [("", {0}), ("900%", {0, 1})])
def test_the_action_compares_two_versions(tmp_path: Path, gate: str, codes: set[int]) -> None:
    python = sys.executable
    code, summary, outputs, said = step(tmp_path, arguments=TINY, base=python, head=python, gate=gate)
    assert code in codes, said
    assert outputs == {"run": "ipcbench-run", "exit-code": str(code)}
    assert "head" in summary
    assert "Traceback" not in said


def test_an_input_is_no_code(tmp_path: Path) -> None:
    code, _, _, said = step(tmp_path, arguments="small --rounds $(touch${IFS}evil)", out="x; touch evil")
    assert code == 2
    assert "--rounds" in said
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ("vendor.github-actions", ["action.yml"]),
        ("vendor.github-workflows", [".github/workflows/*.yml", "examples/ci/*.yml"]),
        ("vendor.citation-file-format", ["CITATION.cff"]),
    ],
)
def test_files_obey_their_schemas(schema: str, names: list[str]) -> None:
    files = [str(path) for name in names for path in ROOT.glob(name)]
    assert len(files) >= len(names)
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_page_describes_every_input_and_output() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    for name, entry in ACTION["inputs"].items():
        shown = re.search(rf"^\| `{name}` \|(.*?)\|", page, re.MULTILINE)
        assert shown is not None, name
        assert shown[1].strip("` ") == entry["default"], name
    assert all(f"| `{name}` |" in page for name in ACTION["outputs"])


def test_the_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    wanted = {f"python {PROJECT['project']['requires-python']}"}
    for requirement in PROJECT["project"]["dependencies"]:
        name, _, version = requirement.partition(">=")
        wanted.add(f"{CONDA_NAMES.get(name, name)} >={version}")
    assert set(recipe["requirements"]["run"]) == wanted
    assert recipe["context"]["version"] == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__
