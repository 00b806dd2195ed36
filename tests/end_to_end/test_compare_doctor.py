"""`ipcbench compare` and `ipcbench doctor` as a user runs them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.spec import SweepSpec
from tests.end_to_end.shell import TINY, Shell
from tests.harness.interpreters import two
from tests.unit.builders import MACHINE, Cell, make_run

CALM = Cell(factors=(1.0, 1.01, 0.99, 1.005, 0.995))
SWEEP = SweepSpec(backends=("shm",), sizes=(10,), readers=1, rounds=5, modes=("saturate",))


@pytest.fixture
def runs(shell: Shell) -> Shell:
    """A folder with a run `a`, and others that are equal to it, slower, or of another machine."""
    others = {"equal": CALM, "slow": replace(CALM, rate_per_s=50_000.0), "elsewhere": CALM}
    for name, cell in {"a": CALM, **others}.items():
        machine = {**MACHINE, "kernel": "Linux 5.4"} if name == "elsewhere" else MACHINE
        make_run(shell.folder / name, {("shm", 10): cell}, SWEEP, machine=machine)
    return shell


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("equal", 0),
        ("slow", 0),
        ("equal --gate 10%", 0),
        ("slow --gate 10%", 1),
        ("equal --gate 0.1%", 3),
        ("elsewhere --across-machines --gate 10%", 0),
    ],
)
def test_the_exit_code_says_what_the_gate_says(runs: Shell, arguments: str, code: int) -> None:
    done = runs("compare", "a", *arguments.split())
    assert done.returncode == code, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("ipcbench: B against A")
    assert {path.name for path in (runs.folder / "a").iterdir()} == {"run.json", "trials.jsonl", "samples"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("equal --gate 0.1% --inconclusive ok", 0),
        ("equal --gate 0.1% --inconclusive fail", 1),
        ("slow --gate 10% --inconclusive ok", 1),
        ("equal --gate 10% --inconclusive fail", 0),
    ],
)
def test_the_exit_code_of_what_is_not_decided_can_be_chosen(runs: Shell, arguments: str, code: int) -> None:
    assert runs("compare", "a", *arguments.split()).returncode == code


def test_the_smallest_gate_is_one_that_is_decided(runs: Shell) -> None:
    shown = runs("compare", "a", "equal", "--smallest-gate").stdout
    smallest = re.search(r"the smallest gate that all figures decide: (\S+) %", " ".join(shown.split()))
    assert smallest, shown
    assert runs("compare", "a", "equal", "--gate", f"{smallest[1]}%").returncode == 0


def test_variants_from_a_run_to_a_gate(shell: Shell, tmp_path: Path) -> None:
    options = [f"--variant={variant}" for variant in two(tmp_path / "variants")]
    done = shell("run", *options, "--backends", "shm", *TINY, "--rounds", "3", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "variants base and head in turns; 3 rounds" in " ".join(done.stdout.split())
    assert "shm@base" in done.stdout
    found = json.loads(shell("compare", "run", "--format", "json").stdout)
    assert {change["cell"]["backend"] for change in found["changes"]} == {"shm@head"}
    assert shell("compare", "run", "--gate", "1000%", "--inconclusive", "ok").returncode in {0, 1}


def test_markdown_and_json_of_a_comparison(runs: Shell) -> None:
    markdown = runs("compare", "a", "slow", "--format", "markdown").stdout
    assert markdown.startswith("**ipcbench: B against A: 1 slower,")
    document = json.loads(runs("compare", "a", "slow", "--format", "json", "--metrics", "throughput").stdout)
    assert [change["verdict"] for change in document["changes"]] == ["slower"]


def test_a_measured_run_is_equal_to_itself(shell: Shell, finished_run: Path) -> None:
    done = shell("compare", str(finished_run), str(finished_run))
    assert done.returncode == 0, done.stderr
    assert "0 slower, 0 faster" in done.stdout


def test_doctor_describes_this_machine(shell: Shell) -> None:
    done = shell("doctor")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for word in ("cores", "python", "clock", "busy second", "ipcbench"):
        assert word in done.stdout
    assert list(shell.folder.iterdir()) == []


def test_doctor_for_other_programs(shell: Shell) -> None:
    done = shell("doctor", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["format"], document["version"]) == ("ipcbench doctor", 1)
    facts = document["facts"]
    assert facts["longest_pause_ns"] > 0
    assert 0 < facts["clock_ns"] < 1e5
    assert [advice["rank"] for advice in document["advice"]] == list(range(1, len(document["advice"]) + 1))
    assert all(advice["title"] and advice["fact"] and advice["action"] for advice in document["advice"])
    assert all(facts.get(name) is None for name in document["unreadable"])
    assert ("fewer cores" in json.dumps(document["advice"])) == (facts["usable_cores"] < 4)
