"""A run as a user sees it: stdout, stderr and disk; interruption and resumption."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.shell import TINY, Shell

TRIALS_OF_LONG_RUN = 6


def trials_in(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "trials.jsonl").read_text(encoding="utf-8").splitlines()]


def test_data_on_stdout_progress_on_stderr_and_a_new_folder(shell: Shell) -> None:
    done = shell("run", "--backends", "zmq", *TINY, "--format", "csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert rows
    (run,) = (shell.folder / "results").iterdir()
    assert "[1/2]" in done.stderr
    assert "[2/2]" in done.stderr
    assert f"results in results/{run.name}" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert {trial["status"] for trial in trials_in(run)} == {"ok"}
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert info["status"] == "complete"
    assert info["command"] == ["ipcbench", "run", "--backends", "zmq", *TINY, "--format", "csv"]


@pytest.mark.parametrize("form", ["text", "markdown", "csv", "json"])
def test_analyze_gives_the_same_run_in_every_form(shell: Shell, finished_run: Path, form: str) -> None:
    done = shell("analyze", str(finished_run), "--no-report", "--format", form)
    assert done.returncode == 0, done.stderr
    for word in ("shm", "zmq"):
        assert word in done.stdout
    if form == "json":
        json.loads(done.stdout)


def test_analyze_writes_its_files_and_changes_no_other(shell: Shell, finished_run: Path) -> None:
    before = {name: (finished_run / name).read_bytes() for name in ("run.json", "trials.jsonl")}
    assert shell("analyze", str(finished_run)).returncode == 0
    assert {name: (finished_run / name).read_bytes() for name in before} == before
    assert "shm" in (finished_run / "tables.md").read_text(encoding="utf-8")
    assert list(csv.DictReader(io.StringIO((finished_run / "summary.csv").read_text(encoding="utf-8"))))


def test_analyze_takes_the_latest_run(shell: Shell) -> None:
    for backend in ("shm", "zmq"):
        assert shell("run", "--backends", backend, *TINY, "--mode", "saturate").returncode == 0
    done = shell("analyze", "--no-report", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert "zmq" in done.stdout
    assert "shm" not in done.stdout


OWN = """
from ipcbench import errors, get_backend
from ipcbench.testing import faulty

class Absent(get_backend("shm")):
    @classmethod
    def probe(cls):
        raise errors.BackendUnavailable("mine:Absent", "no such hardware", "buy some")

class Failing(get_backend("shm")):
    def open_writer(self, address):
        raise errors.TransportError("the cable is out")

Forgetful = faulty("C4", get_backend("shm"))
"""


@pytest.fixture
def own(shell: Shell) -> Shell:
    """A folder with a module of third-party backends."""
    (shell.folder / "mine.py").write_text(OWN, encoding="utf-8")
    return shell


def test_a_backend_that_cannot_run_is_left_out_and_named(own: Shell) -> None:
    """While measuring and with the tables, so that its absence is not mistaken for a result."""
    done = own("run", "--backends", "shm,mine:Absent", *TINY, "--mode", "saturate")
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, done.stderr):
        assert "mine:Absent" in text
        assert "no such hardware; buy some" in text


def test_when_no_backend_can_run_nothing_is_measured(own: Shell) -> None:
    done = own("run", "--backends", "mine:Absent", *TINY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such hardware" in done.stderr
    assert not (own.folder / "results").exists()


def test_when_every_trial_fails_the_reason_is_shown_and_the_exit_code_says_so(own: Shell) -> None:
    done = own("run", "--backends", "mine:Failing", *TINY, "--mode", "saturate")
    assert done.returncode == 1, done.stderr
    for text in (done.stdout, done.stderr):
        assert "the cable is out" in text


def test_check_names_the_law_that_is_broken(own: Shell) -> None:
    done = own("check", "mine:Forgetful", "--laws", "C2,C4", "--quick")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line[:8].split() for line in lines if not line.startswith(" ")][:2] == [["ok", "C2"], ["FAIL", "C4"]]
    assert lines[-1] == "mine:Forgetful: 1 passed, 1 failed, 0 skipped"


def start_long_run(shell: Shell) -> subprocess.Popen[str]:
    """Start a run of six trials and return once the first has ended."""
    options = (
        "--readers",
        "1",
        "--sizes",
        "10,20,30",
        "--rounds",
        "2",
        "--window",
        "400ms",
        "--mode",
        "saturate",
        "--control",
        "no",
    )
    process = shell.start("run", "--backends", "zmq", *options, "--out", "run")
    assert process.stderr is not None
    assert f"[1/{TRIALS_OF_LONG_RUN}]" in process.stderr.readline()
    return process


Interrupt = Callable[[subprocess.Popen[str]], tuple[str, str]]


def test_an_interrupted_run_keeps_what_is_done_and_can_go_on(shell: Shell, interrupt: Interrupt) -> None:
    process = start_long_run(shell)
    _, said = interrupt(process)
    assert process.returncode == 130
    assert "ipcbench run --resume run" in said
    assert "Traceback" not in said
    kept = trials_in(shell.folder / "run")
    assert 1 <= len(kept) < TRIALS_OF_LONG_RUN
    assert json.loads((shell.folder / "run" / "run.json").read_text(encoding="utf-8"))["status"] == "interrupted"

    done = shell("run", "--resume", "run", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert trials_in(shell.folder / "run")[: len(kept)] == kept, "what was measured is not measured again"
    assert len(trials_in(shell.folder / "run")) == TRIALS_OF_LONG_RUN
    assert json.loads((shell.folder / "run" / "run.json").read_text(encoding="utf-8"))["status"] == "complete"
    json.loads(done.stdout)


def test_a_run_that_is_told_to_end_tidies_up(shell: Shell) -> None:
    process = start_long_run(shell)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said


def test_list_names_every_backend_in_both_forms(shell: Shell) -> None:
    text, data = shell("list"), shell("list", "--format", "json")
    assert (text.returncode, data.returncode) == (0, 0)
    rows = json.loads(data.stdout)
    for row in rows:
        assert row["name"] in text.stdout
        assert row["capabilities"]["deliveries"]
        assert row["available"] or row["hint"]
    assert {"zmq", "shm", "lmdb", "mpi"} <= {row["name"] for row in rows}


def test_check_passes_a_sound_backend(shell: Shell) -> None:
    done = shell("check", "null", "--laws", "C1,C2", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "null: 2 passed, 0 failed, 0 skipped"


def test_help_of_every_command(shell: Shell) -> None:
    shown = shell("--help").stdout
    for command in ("run", "list", "check", "analyze", "clean"):
        assert command in shown
        page = shell(command, "--help")
        assert page.returncode == 0
        assert page.stdout.startswith("Usage: ipcbench " + command)
    assert shell().stdout == shown
    assert shell("--version").stdout.startswith("ipcbench ")
