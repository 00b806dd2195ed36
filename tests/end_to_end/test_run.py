"""A run as a user sees it: stdout, stderr and disk."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ipcbench.cli import main
from ipcbench.results.store import load_run
from tests.end_to_end.shell import TINY, Shell


def test_data_on_stdout_progress_on_stderr_and_a_new_folder(shell: Shell) -> None:
    done = shell("run", "--backends", "zmq", *TINY, "--format", "csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert rows
    (run,) = (shell.folder / "results").iterdir()
    assert "round 1/1, trial 1, " in done.stderr
    assert f"results in results/{run.name}" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    stored = load_run(run)
    assert {trial.status for trial in stored.trials} == {"ok"}
    assert stored.info.status == "complete"
    assert stored.info.command == ("ipcbench", "run", "--backends", "zmq", *TINY, "--format", "csv")


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


def test_list_names_every_backend_in_both_forms(shell: Shell) -> None:
    text, data = shell("list"), shell("list", "--format", "json")
    assert (text.returncode, data.returncode) == (0, 0)
    rows = json.loads(data.stdout)["backends"]
    for row in rows:
        assert row["name"] in text.stdout
        assert row["capabilities"]["deliveries"]
        assert row["available"] or row["hint"]
    assert {"zmq", "shm", "lmdb", "mpi"} <= {row["name"] for row in rows}


def test_check_passes_a_sound_backend(shell: Shell) -> None:
    done = shell("check", "null", "--laws", "C1,C2", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "null: 2 passed, 0 failed, 0 skipped"


@pytest.mark.usefixtures("process_state")
def test_help_of_every_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # as in the shell
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("run", "list", "check", "analyze", "clean"):
        assert command in shown
        assert main([command, "--help"]) == 0
        assert capsys.readouterr().out.startswith("Usage: ipcbench " + command)
    assert shell().stdout == shown
    assert shell("--version").stdout.startswith("ipcbench ")
