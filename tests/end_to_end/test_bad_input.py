"""Bad input: one line that says what is wrong and what is allowed, exit 2, nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.end_to_end.shell import TINY, Shell


def refused(shell: Shell, *arguments: str) -> str:
    """Run the command, require a refusal in one line, and return that line."""
    done = shell(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ipcbench: error: ")
    assert list(shell.folder.glob("results*")) == [], "bad input must measure nothing"
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "--backends", "nope"], ["unknown backend 'nope'", "zmq", "shm", "lmdb", "mpi"]),
        (["run", "--backends", "no.such:Thing"], ["no.such:Thing", "can be imported"]),
        (["run", "--payload", "bytes", "--sizes", "1Kb?"], ["--sizes", "'1Kb?'", "1KiB"]),
        (["run", "--sizes", "1KiB"], ["--sizes", "'1KiB'", "dict entries"]),
        (["run", "--readers", "0"], ["--readers", "1 to 1,024"]),
        (["run", "--readers", "-1"], ["--readers", "-1", "1 to 1,024"]),
        (["run", "--mode", "fast"], ["--mode", "'fast'", "paced"]),
        (["run", "--rounds", "many"], ["--rounds", "whole number"]),
        (["run", "nope"], ["'nope'", "default", "streaming", ".toml"]),
        (["run", "missing.toml"], ["missing.toml", "No such file"]),
        (["run", "--no-such-option"], ["--no-such-option"]),
        (["run", "--format", "xml"], ["xml", "text", "json"]),
        (["run", "--resume", "missing"], ["missing", "not a folder of results"]),
        (["analyze"], ["results"]),
        (["analyze", "missing"], ["missing", "not a folder of results"]),
        (["check", "nope"], ["unknown backend 'nope'", "shm"]),
        (["check", "shm", "--laws", "C99"], ["C99", "C19"]),
        (["check"], ["NAME"]),
        (["run", "--precision", "good"], ["--precision", "'good'", "2%"]),
        (["run", "--control", "maybe"], ["--control", "'maybe'", "yes or no"]),
        (["selftest", "--pairs", "0"], ["--pairs", "1 to 10,000"]),
        (["selftest", "--backend", "nope"], ["unknown backend 'nope'", "shm"]),
        (["measure"], ["measure"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_line_says_what_is_wrong(shell: Shell, arguments: list[str], parts: list[str]) -> None:
    line = refused(shell, *arguments)
    for part in parts:
        assert part in line


def test_a_sweep_with_an_unknown_key_names_key_file_and_the_known(shell: Shell) -> None:
    (shell.folder / "mine.toml").write_text("readerz = 3\n", encoding="utf-8")
    line = refused(shell, "run", "mine.toml")
    for part in ("'readerz'", "mine.toml", "readers", "warmup"):
        assert part in line


def test_a_sweep_that_is_not_toml(shell: Shell) -> None:
    (shell.folder / "mine.toml").write_text("readers: 3\n", encoding="utf-8")
    assert "mine.toml" in refused(shell, "run", "mine.toml")


def test_resume_takes_nothing_beside_it(shell: Shell, finished_run: Path) -> None:
    assert "--rounds" in refused(shell, "run", "--resume", str(finished_run), "--rounds", "9")
    assert "SWEEP" in refused(shell, "run", "small", "--resume", str(finished_run))


def test_a_results_folder_that_is_in_use_by_other_things(shell: Shell) -> None:
    (shell.folder / "mine").mkdir()
    (shell.folder / "mine" / "thesis.txt").touch()
    done = shell("run", "--backends", "shm", *TINY, "--out", "mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not empty" in done.stderr
    assert [path.name for path in (shell.folder / "mine").iterdir()] == ["thesis.txt"]


def test_a_folder_that_holds_something_else(shell: Shell) -> None:
    (shell.folder / "mine").mkdir()
    assert "not a folder of results" in refused(shell, "analyze", "mine")
    (shell.folder / "mine" / "run.json").write_text("[]", encoding="utf-8")
    assert "run.json" in refused(shell, "analyze", "mine")


def test_results_of_another_format(shell: Shell, finished_run: Path) -> None:
    shutil.copytree(finished_run, shell.folder / "old")
    info = json.loads((shell.folder / "old" / "run.json").read_text(encoding="utf-8"))
    (shell.folder / "old" / "run.json").write_text(json.dumps({**info, "schema_version": 0}), encoding="utf-8")
    line = refused(shell, "analyze", "old")
    assert "format 0" in line


def test_a_line_that_is_not_a_trial_names_file_and_line(shell: Shell, finished_run: Path) -> None:
    shutil.copytree(finished_run, shell.folder / "bad")
    trials = shell.folder / "bad" / "trials.jsonl"
    trials.write_text("{}\n" + trials.read_text(encoding="utf-8"), encoding="utf-8")
    line = refused(shell, "analyze", "bad")
    assert "trials.jsonl" in line
    assert "line 1" in line


def test_a_torn_last_line_costs_that_line_alone(shell: Shell, finished_run: Path) -> None:
    shutil.copytree(finished_run, shell.folder / "torn")
    trials = shell.folder / "torn" / "trials.jsonl"
    data = trials.read_bytes()
    whole = data.count(b"\n")
    trials.write_bytes(data[:-30])
    done = shell("analyze", "torn", "--no-report")
    assert done.returncode == 0, done.stderr
    assert f"{whole - 1} whole lines were read" in done.stderr
    assert done.stdout
