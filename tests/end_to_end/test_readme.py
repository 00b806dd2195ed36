"""The commands and code of the README and of the first pages run as printed; options only make them shorter."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ipcbench.cli import main, run
from ipcbench.spec import SweepSpec
from tests.end_to_end.shell import ROOT, Shell

README, REFERENCE, LIBRARY = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/quick-reference.md", "docs/library.md")
)
SHORTER = {
    "run": "--sizes 64 --rounds 1 --mode saturate --window 50ms --warmup 10ms --readers 1",
    "check": "--quick",
    "analyze results/reference": "--no-report",
}
"""Command → options; test_same_figures.py writes the report of the reference run."""
SHORT_SWEEP = 'backends = ["shm"]\nreaders = 1\nsizes = [10]\nrounds = 1\nmode = ["saturate"]\nwindow = "50ms"\n'
INTERNAL = {"IPCBENCH_LAUNCH", "IPCBENCH_CONTROL", "IPCBENCH_CONTROL_KEY", "IPCBENCH_TRACE_RUN"}
"""Variables that a command sets for its own processes."""
BEYOND = {"pip install uv", "pytest"}
"""Commands that .ci/run runs itself: creating the environment, and these tests."""


def blocks(language: str, text: str) -> list[str]:
    """Return the contents of the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> Iterator[str]:
    """Yield each command of the `console` blocks, without the prompt and without `uv run` and its group."""
    for block in blocks("console", text):
        for line in block.splitlines():
            command = re.sub(r"^\$ |^uv run (--group \w+ )?", "", line.partition("#")[0].strip())
            if command:
                yield command


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with the files that the README's commands need from a clone."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    shutil.copytree(ROOT / "results", folder / "results", ignore=shutil.ignore_patterns("2*Z-*"))
    return Shell(folder)


def test_the_readme_sets_up_with_two_commands() -> None:
    assert list(commands(README)) == ["pip install uv", "ipcbench run", "pip install uv", "pytest"]


def test_the_reference_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    known = re.findall(r"^  ([a-z-]+)  ", capsys.readouterr().out.partition("Commands:")[2], flags=re.MULTILINE)
    assert len(known) > 10
    assert set(known) <= set(re.findall(r"`([a-z-]+)", REFERENCE))


def test_the_reference_has_every_variable() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "ipcbench").rglob("*.py"))
    ours = set(re.findall(r'"(IPCBENCH_[A-Z_]+)"', sources)) - INTERNAL
    assert ours == set(re.findall(r"^\| `(IPCBENCH_\w+)`", REFERENCE, flags=re.MULTILINE))


def test_every_command_works(checkout: Shell) -> None:
    """In order, in one folder: `analyze` shows what `run` has measured."""
    ran = []
    for command in dict.fromkeys((*commands(README), *commands(REFERENCE))):
        if command in BEYOND:
            continue
        program, *arguments = shlex.split(command)
        assert program == "ipcbench", f"what does {command!r} need?"
        shorter = " ".join(options for start, options in SHORTER.items() if " ".join(arguments).startswith(start))
        done = checkout(*arguments, *shorter.split())
        if arguments[:2] == ["profile", "run"] and find_spec("torch") is None:  # tests/profile runs it where there is
            assert (done.returncode, "pip install" in done.stderr) == (2, True), done.stderr
            continue
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), command
        ran.append(command)
    assert len(ran) >= 5


@pytest.mark.parametrize("path", ["benchmarks/README.md"])
def test_commands_of_other_pages_name_what_exists(path: str) -> None:
    for command in commands((ROOT / path).read_text(encoding="utf-8")):
        for word in shlex.split(command):
            assert not word.endswith(".toml") or (ROOT / word).is_file(), command


def _runs_of_the_docs() -> list[str]:
    """Return the commands of all pages that measure, but those of files that only their users have."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    found = re.findall(r"(?:^\$ |^    |`)(?:uv run (?:--\w+ \w+ )*)?(ipcbench run[^`\n#]*)", pages, flags=re.MULTILINE)
    theirs = re.compile("my_module|state.npy|--variant|--resume|--help|/results")
    return [command for command in dict.fromkeys(map(str.strip, found)) if not theirs.search(command)]


@pytest.mark.parametrize("command", _runs_of_the_docs())
def test_what_the_docs_measure_can_be_measured(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[SweepSpec] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "_measure", lambda spec, *_, **__: made.append(spec))
    monkeypatch.setattr(run, "show_run", lambda *_, **__: True)
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert len(made) == 1


def test_what_ci_and_contributing_run_is_what_the_readme_says() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert ci[-1].endswith(" uv run --group test pytest"), "the tests' summary must be the last line printed"
    assert "uv run --group test pytest" in README
    for command in commands((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        assert command in BEYOND or f"uv run --group dev {command}" in ci


@pytest.mark.parametrize("code", blocks("python", LIBRARY), ids=lambda code: re.sub(r"\W+", " ", code)[:40])
def test_the_code_of_the_readme_runs(checkout: Shell, code: str) -> None:
    short = checkout.folder / "short.toml"
    short.write_text(SHORT_SWEEP, encoding="utf-8")
    done = checkout.python("-c", code.replace('ipcbench.run("small")', f"ipcbench.run({str(short)!r})"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
