"""Mistakes that newcomers make: each is answered in one line that says what is wrong, which value, and the remedy."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ipcbench.cli import main
from tests.end_to_end.shell import Shell
from tests.trace.made import both_sides
from tests.unit.builders import Cell, make_run

RUN = "results/20260102T030405Z-0a1b2c"
ANALYZE, REPORT = "`ipcbench analyze run`", "`ipcbench trace report trace`"
HELP_OF_RUN = "see `ipcbench run --help`"

MISTAKES = {
    # commands and options
    "rum": ["'rum'", "did you mean 'run'?"],
    "analyse run": ["did you mean 'analyze'?"],
    "measure": ["'measure'", "allowed: run, list"],
    "trace repport trace": ["'repport'", "did you mean 'report'?"],
    "run --reader 2": ["'--reader'", "did you mean '--readers'?", HELP_OF_RUN],
    "run --payload bytes --size 64": ["'--size'", "did you mean '--sizes'?"],
    "run --verbose": ["'--verbose'", HELP_OF_RUN],
    "list --json": ["'--json'", "see `ipcbench list --help`"],
    "export run --format osu": ["'--format'", "see `ipcbench export --help`"],
    "recommend run --size 64 --optimize cpu": ["'--optimize'", "did you mean '--optimise'?"],
    "run --format jsn": ["--format", "'jsn'", "did you mean 'json'?", "markdown"],
    "analyze run --format html": ["--format", "'html'", "allowed: text, markdown, csv or json"],
    "recommend run --size 64 --optimise speed": ["'speed'", "allowed: latency, throughput or cpu"],
    "trace report trace --lang de": ["--lang", "'de'", "allowed: en or zh"],
    "trace export trace --to jaeger": ["--to", "'jaeger'", "otlp"],
    "run --rounds": ["--rounds", "requires an argument"],
    "check": ["Missing argument", "see `ipcbench check --help`"],
    "trace report": ["Missing argument", "see `ipcbench trace report --help`"],
    "trace diff trace": ["Missing argument 'B'", "see `ipcbench trace diff --help`"],
    "export run": ["Missing option '--to'", "osu"],
    "recommend run": ["Missing option '--size'", "such as 4KiB", "see `ipcbench recommend --help`"],
    "doctor shm": ["(shm)", "see `ipcbench doctor --help`"],
    # what to measure: sweeps and backends
    "run smal": ["'smal'", "did you mean 'small'?"],
    "run shm": ["'shm'", "--backends shm"],
    "run shm zmq": ["'shm zmq'", "--backends shm,zmq"],
    "run --backends shm zmq": ["'zmq'", "--backends shm,zmq"],
    "run --backends shm, zmq": ["'zmq'", "--backends shm,zmq"],
    "run --backends 'shm zmq'": ["'shm zmq'", "joined by commas: shm,zmq"],
    "run --backends SHM": ["'SHM'", "did you mean 'shm'?"],
    "run --backends zeromq": ["'zeromq'", "did you mean 'zmq'?", "known: zmq"],
    "run --backends shm,shm": ["--backends", "'shm,shm'", "each once"],
    "run --backends pip": ["did you mean 'pipe'?"],
    "replay trace --backends shm zmq": ["(zmq)", "joined by commas: shm,zmq"],
    "check mine": ["'mine'", "or your own, module:Class"],
    "check mine:Missing": ["'mine:Missing'", "a name that exists", "'Missing' is not in mine"],
    "check mine:NotABackend": ["'mine:NotABackend'", "a subclass of ipcbench.Backend"],
    "check nowhere:Backend": ["'nowhere:Backend'", "a module that can be imported"],
    "check shm --laws 7": ["'7'", "did you mean 'C7'?"],
    "list shmm": ["'shmm'", "did you mean 'shm'?"],
    # values
    "run --sizes 1KiB": ["--sizes", "'1KiB'", "a number of entries", "need --payload bytes"],
    "run --payload bytes --sizes 1.5": ["--sizes", "'1.5'", "a whole number of bytes"],
    "run --payload bytes --sizes 64bytes": ["--sizes", "'64bytes'", "64, 1KiB"],
    "run --payload byte": ["--payload", "'byte'", "did you mean 'bytes'?"],
    "run --payload bytes --codec numpy": ["--codec", "'numpy'", "pickle, pickle5, msgpack, raw", "for payload bytes"],
    "run --payload dict --codec raw": ["--codec", "'raw'", "msgpack", "for payload dict"],
    "run --payload mine:missing": ["'mine:missing'", "a name that exists"],
    "run --sample missing.json": ["--sample", "'missing.json'", "a file that can be read", "No such file"],
    "run --sample broken.json": ["'broken.json'", "a file with what its name says"],
    "run --backends shm,": ["--backends: 'shm,'", "without one at either end"],
    "run --sizes 64,": ["--sizes: '64,'", "without one at either end"],
    "run --readers 0": ["--readers", "0", "allowed: 1 to 1,024"],
    "run --readers two": ["--readers", "'two'", "a whole number"],
    "run --mode ping-pong": ["--mode", "did you mean 'pingpong'?"],
    "run --budget 2d": ["--budget", "'2d'", "2min"],
    "run --budget 5 min": ["'min'", "--budget 5min"],
    "run --rate 1k/sec": ["--rate", "'1k/sec'", "2k/s"],
    "run --precision 5%%": ["--precision", "'5%%'", "such as 5% or 5"],
    "run --control true": ["--control", "'true'", "yes or no"],
    "run --delivery latest": ["--delivery", "did you mean 'latest_value'?"],
    "run --delivery latest_value --mode pingpong": ["--mode", "'pingpong'", "paced or saturate"],
    "run --pin 0-3": ["--pin", "'0-3'", "cores such as 0,1"],
    "recommend run --size 64 --needs loss-less": ["--needs", "did you mean 'lossless'?"],
    "recommend run --size 64 --needs lossless,latest-value": ["--needs", "either lossless or latest-value"],
    "recommend run --size 64k --rate 5/min": ["--rate", "'5/min'", "500/s"],
    "compare run run --gate 5%%": ["--gate", "'5%%'", "such as 5% or 5"],
    "compare run run --gate 0": ["--gate", "'0'", "such as 5%"],
    "recommend run --size 64 --rate 1e9": ["--rate: '1e9'", "allowed: 0.1 to 1,000,000"],
    "compare run run --metrics latency": ["'latency'", "did you mean 'latency-p50'?"],
    "compare run run --metrics p99": ["--metrics", "'p99'", "latency-p99"],
    "replay trace --rounds two": ["--rounds", "'two'", "integer"],
    "replay trace --budget 2d": ["--budget", "'2d'", "2min"],
    "selftest --slowdowns 5%": ["--slowdowns", "'5%'", "5,10,20"],
    "trace check trace --fail-if Matmul.p99>5": ["--fail-if", "'Matmul.p99>5'", "Matmul.p99_ms>5"],
    "trace check trace --fail-if Matmull.p99_ms>5": ["'Matmull.p99_ms>5'", "did you mean 'Matmul'?"],
    "explain thruput": ["'thruput'", "did you mean 'throughput'?"],
    "explain qwerty": ["'qwerty'", "a word that `ipcbench explain` lists"],
    # files and folders
    "run run": ["'run'", ANALYZE],
    "run mysweep.toml": ["mysweep.toml", "a file that can be read", "No such file"],
    "run --out run": ["run: exists already", "choose another folder"],
    "run --out notes.txt": ["notes.txt", "File exists", "choose another one"],
    "run --out /proc/new/run": ["/proc/new", "cannot be made", "choose another one"],
    "run --resume results": ["results: not a folder of results", f"such as {RUN}"],
    "run --resume run --rounds 9": ["--rounds", "nothing beside --resume"],
    "analyze results": ["results: not a folder of results", f"such as {RUN}"],
    "analyze run/run.json": ["run/run.json: not a folder of results", "name run"],
    "analyze nowhere": ["nowhere: not a folder of results", "no such folder", "`ipcbench run` makes one"],
    "analyze trace": ["trace: a trace", REPORT],
    "export run --to osu --out new/run.txt": ["new/run.txt: there is no folder new; make it"],
    "trace export trace --to csv --out new/t.csv": ["new/t.csv: there is no folder new"],
    "analyze run --out notes.txt": ["--out", "'notes.txt'", "the path of a folder"],
    "compare run trace": ["trace: a trace", REPORT],
    "compare run": ["a run with variants", "a second run, B"],
    "recommend trace --size 64": ["trace: a trace", REPORT],
    "export trace --to osu": ["trace: a trace", REPORT],
    "trace report run": ["run: a folder of results", ANALYZE],
    "trace diff trace run": ["run: a folder of results", ANALYZE],
    "trace check run --fail-if *.errors>0": ["run: a folder of results", ANALYZE],
    "trace export run --to csv": ["run: a folder of results", ANALYZE],
    "trace top run --once": ["run: a folder of results", ANALYZE],
    "trace top nowhere --once": ["nowhere: there is no such folder", "`ipcbench trace top` waits for it"],
    "trace tail run": ["run: a folder of results", ANALYZE],
    "trace tail notes.txt --follow": ["notes.txt: a file", "`ipcbench trace report notes.txt`"],
    "trace serve-metrics run": ["run: a folder of results", ANALYZE],
    "trace report nowhere": ["nowhere: No such file", "`ipcbench trace run` makes"],
    "replay nowhere": ["nowhere: No such file", "`ipcbench trace run` makes"],
    "analyze cut": ["cut/run.json: malformed: ", "restore the file"],
    "analyze edited": ["edited/trials.jsonl: line 1 is malformed: ", "restore the file"],
    "replay run": ["run: a folder of results", ANALYZE],
    "trace report notes.txt": ["notes.txt: no calls found", "known are", "zmq_performance.log"],
}
"""Command line → what its one line must say."""

REMEDY = re.compile(
    "did you mean '|allowed: |known: |known are |Choose from|requires an argument|"
    "see `ipcbench |`ipcbench (?:trace )?run` makes|reads it|reads a log|waits for it|; name |; choose |"
    "; make it, or choose |restore the file, or |joined by single commas|such as "
)
"""What a line has at least one of."""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a newcomer has it after a first run and a first trace."""
    folder = tmp_path_factory.mktemp("newcomer")
    make_run(folder / "run", {("shm", 10): Cell()})
    make_run(folder / RUN, {("shm", 10): Cell()})
    for name, file, text in (("cut", "run.json", "{"), ("edited", "trials.jsonl", "{}\n")):
        make_run(folder / name, {("shm", 10): Cell()})
        (folder / name / file).write_text(text, encoding="utf-8")
    both_sides(folder / "trace", 5)
    (folder / "mine.py").write_text("class NotABackend: ...\n", encoding="utf-8")
    (folder / "broken.json").write_text("{not json", encoding="utf-8")
    (folder / "notes.txt").write_text("nothing\n", encoding="utf-8")
    return folder


@pytest.fixture
def newcomer(shell: Shell, material: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(material, shell.folder, dirs_exist_ok=True)
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # importing mine.py must leave nothing


@pytest.mark.parametrize("command", MISTAKES)
def test_the_answer_is_one_line_with_the_remedy(command: str, newcomer: None, refused: Callable[..., str]) -> None:
    line = refused(*shlex.split(command))
    assert [part for part in MISTAKES[command] if part not in line] == [], line
    assert REMEDY.search(line), f"no remedy: {line}"


def test_mpi_without_its_launcher_says_how_to_get_it(
    newcomer: None, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    line = refused("run", "--backends", "mpi")
    assert "backend 'mpi' is not available: there is no mpiexec beside this Python or in PATH" in line
    assert "pip install" in line


def test_a_group_without_a_command_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ([], ["trace"]):
        assert main(group) == 0
        shown = capsys.readouterr()
        assert "Commands:" in shown.out
        assert shown.err == ""


def test_a_finished_run_that_is_resumed_says_that_nothing_is_left(shell: Shell, finished_run: Path) -> None:
    shutil.copytree(finished_run, shell.folder / "run")
    before = (shell.folder / "run" / "trials.jsonl").read_bytes()
    done = shell("run", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert "run is complete; for more rounds begin a new run" in done.stderr
    assert (shell.folder / "run" / "trials.jsonl").read_bytes() == before
