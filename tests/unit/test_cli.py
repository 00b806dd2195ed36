"""The command line in one process: options are keys, errors are exit codes and one line, progress is lines or a bar."""

from __future__ import annotations

import errno
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ipcbench import errors, registry
from ipcbench.cli import main
from ipcbench.cli.output import tell
from ipcbench.cli.progress import progress_display
from ipcbench.cli.run import command as run_command
from ipcbench.harness.sweep import Progress
from ipcbench.spec import SweepSpec
from ipcbench.sweeps.load import KEYS, builtin_sweeps
from tests.end_to_end.shell import ROOT
from tests.unit.builders import CELLS, Terminal, make_run


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what `main` changes in its process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def test_every_key_of_a_sweep_is_an_option_and_every_other_option_says_where_or_how() -> None:
    options = {name for option in run_command.params if isinstance(option, click.Option) for name in option.opts}
    assert options - {
        "--out",
        "--resume",
        "--hosts",
        "--place",
        "--launch",
        "--format",
        "--quick",
        "--rigorous",
        "--insecure",
        "--full",
        "--quiet",
        "-q",
        "--no-progress",
    } == {f"--{key.name}" for key in KEYS}


def test_insecure_measures_zmq_tcp_with_and_without_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured: list[SweepSpec] = []
    monkeypatch.setattr("ipcbench.cli.run._measure", lambda spec, *_, **__: measured.append(spec))
    monkeypatch.setattr("ipcbench.cli.run.show_run", lambda *_, **__: True)
    out = ["--out", str(tmp_path / "run")]
    assert main(["run", "--backends", "zmq-tcp,shm", "--insecure", *out]) == 0
    assert measured[0].backends == ("zmq-tcp", "zmq-tcp-insecure", "shm")


def test_insecure_needs_a_backend_with_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--backends", "zmq,shm", "--insecure"]) == 2
    assert "--insecure: 'zmq, shm' is not valid; allowed: a sweep with zmq-tcp" in capsys.readouterr().err
    assert main(["run", "--resume", "nowhere", "--insecure"]) == 2
    assert "nothing beside --resume" in capsys.readouterr().err


def test_help_of_run_explains_every_key_and_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in (*(f"--{key.name} {key.metavar}" for key in KEYS), *builtin_sweeps()):
        assert word in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("readers", -1, "1 to 1,024"), 2),
        (errors.UnknownBackend("x", ("shm",)), 2),
        (errors.BackendUnavailable("mpi", "no mpi4py", "install it"), 2),
        (errors.Unsupported("no latest_value"), 2),
        (errors.StoreError("no such folder"), 2),
        (errors.SchemaMismatch("format 9"), 2),
        (errors.TransportError("no space"), 1),
        (errors.WorkerCrashed("writer ended\nlast words: one\n  two"), 1),
        (errors.IntegrityError("2 lost"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> tuple[str, ...]:
        raise error

    monkeypatch.setattr(registry, "names", fail)
    assert main(["list"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = filter(None, shown.err.splitlines())  # click ends the line of `^C`
    assert line.startswith("ipcbench: error: ")
    assert " ".join(str(error).split()) in line


def test_an_interrupt_that_python_wraps_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it does, before Python 3.12, with what `__set_name__` raises."""

    def fail() -> tuple[str, ...]:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(registry, "names", fail)
    assert main(["list"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "try again")])
def test_too_few_processes_are_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> tuple[str, ...]:
        raise error

    monkeypatch.setattr(registry, "names", fail)
    assert main(["list"]) == 1
    assert "no further process or thread may be started; raise the limit (`ulimit -u`)" in capsys.readouterr().err


def test_commands_to_copy_quote_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "b run"

    def measure(*_: object, **__: object) -> None:
        make_run(folder, CELLS)
        raise KeyboardInterrupt

    monkeypatch.setattr("ipcbench.cli.run._measure", measure)
    assert main(["run", "--out", str(folder)]) == 130
    said = capsys.readouterr().err
    assert f"show it:      ipcbench analyze '{folder}'" in said
    assert f"continue it:  ipcbench run --resume '{folder}'" in said
    assert main(["run", str(folder)]) == main(["trace", "report", str(folder)]) == 2
    assert capsys.readouterr().err.count(f"`ipcbench analyze '{folder}'`") == 2


def test_nobody_needs_to_read_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "broken pipe")

    monkeypatch.setattr(click, "echo", fail)
    tell("a line")


def test_a_defect_of_ours_is_not_dressed_up_as_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "names", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["list"])


def test_a_broken_third_party_backend_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "names", lambda: ("shm", "theirs"))
    monkeypatch.setattr(registry, "_targets", lambda: {"theirs": "no_such_module:Thing"})
    assert main(["list", "--format", "json"]) == 0
    sound, broken = json.loads(capsys.readouterr().out)["backends"]
    assert (sound["available"], broken["available"]) == (True, False)
    assert "no_such_module" in broken["reason"]
    assert main(["list"]) == 0
    assert "theirs   broken" in capsys.readouterr().out


PROGRESS = Progress(3, 0, 3, "shm dict 10 paced", "p50 14.2 µs", 1.5, 83.0, warning="zmq failed: [why]")


def test_progress_in_a_pipe_is_a_line_every_few_seconds_and_each_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display() as show:
        show(PROGRESS)
        show(PROGRESS)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "round 1/3, trial 3, 1:23 left  shm dict 10 paced  p50 14.2 µs",
        "warning: zmq failed: [why]",
        "warning: zmq failed: [why]",
    ]


@pytest.mark.parametrize(
    ("said", "words"), [({"progress": False}, ["warning: zmq failed: [why]"]), ({"quiet": True}, [])]
)
def test_progress_can_be_left_out(said: dict[str, bool], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(**said) as show:
        show(PROGRESS)
    assert capsys.readouterr().err.splitlines() == words


@pytest.mark.parametrize("colour", [True, False])
def test_progress_on_a_terminal_is_a_bar_and_its_colour_can_be_forbidden(
    colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "120", **({} if colour else {"NO_COLOR": "1"})}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_display() as show:
        show(PROGRESS)
    text = terminal.getvalue()
    for words in ("round 1/3, trial 3, 1:23 left", "shm dict 10 paced  p50 14.2 µs", "warning: zmq failed: [why]"):
        assert words in text
    assert ("\x1b[33m" in text) == colour


def test_prose_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    reference = str(ROOT / "results" / "reference")
    for command in (["explain", "one-way"], ["explain"], ["doctor"], ["compare", reference, reference]):
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert main(command) == 0
        lines = [line for line in sys.stdout.getvalue().splitlines() if not re.search(r"\S {2,}\S", line)]  # no rows
        assert len(lines) > 3
        assert max(map(len, lines)) <= 60


def test_help_after_list_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Importing the module `ipcbench.cli.list` hides the built-in of that name in its package."""
    assert main(["list", "--help"]) == 0
    assert main(["--help"]) == 0
    assert "recommend" in capsys.readouterr().out


def test_a_want_of_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def starved(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("ipcbench.cli._group.main", starved)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith("ipcbench: error: out of memory; raise the limit")
