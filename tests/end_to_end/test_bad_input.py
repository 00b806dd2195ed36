"""Bad input: one line that says what is wrong and what is allowed, exit 2, nothing left behind."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ipcbench.analysis.exporters import EXPORTERS
from tests.end_to_end.shell import TINY, Shell
from tests.trace.logs import V1, head, v1_row
from tests.trace.made import both_sides
from tests.unit.builders import MACHINE, Cell, make_run
from tests.unit.pattern_runs import make_pattern_run, pattern_sweep

ABSENT = "missing: not a folder of results"
FILES = {
    "key.toml": "readerz = 3\n",
    "colon.toml": "readers: 3\n",
    "deep.toml": "sizes = " + "[" * 3000 + "]" * 3000,
    "digits.toml": "readers = " + "9" * 5000,
    "other/thesis.txt": "",
    "empty.log": "nothing\n",
    "good.log": head(V1) + v1_row(1),
}
REFUSED = {
    "run --backends nope": ["unknown backend 'nope'", "zmq", "shm", "lmdb", "mpi"],
    "run --backends no.such:Thing": ["no.such:Thing", "can be imported"],
    "run --payload bytes --sizes 1Kb?": ["--sizes", "'1Kb?'", "1KiB"],
    "run --sizes 1KiB": ["--sizes", "'1KiB'", "a number of entries", "--payload bytes"],
    "run --readers 0": ["--readers", "1 to 1,024"],
    "run --readers -1": ["--readers", "-1", "1 to 1,024"],
    "run --mode fast": ["--mode", "'fast'", "paced"],
    "run --rounds many": ["--rounds", "whole number"],
    "run nope": ["'nope'", "default", "streaming", ".toml"],
    "run missing.toml": ["missing.toml", "No such file"],
    "run key.toml": ["'readerz'", "key.toml", "readers", "warmup"],
    "run colon.toml": ["colon.toml"],
    "run deep.toml": ["deep.toml", "a TOML file"],
    "run digits.toml": ["digits.toml", "a TOML file"],
    "run --no-such-option": ["--no-such-option"],
    "run --backends pipe --out \udcff": ["run.json", "\\udcff", "UTF-8"],
    "run --format xml": ["xml", "text", "json"],
    "run --precision good": ["--precision", "'good'", "5%"],
    "run --control maybe": ["--control", "'maybe'", "yes or no"],
    "run --variant base=/bin/true": ["--variant", "'base=/bin/true'", "two or more"],
    "run --variant a=/bin/true --variant a=/bin/true": ["--variant", "'a'", "each name once"],
    "run --variant a/b=x --variant c=y": ["--variant", "'a/b=", "letters, digits"],
    "run --variant base --variant head": ["--variant", "'base'", "NAME=PYTHON"],
    "run --variant a=nowhere/python --variant b=/bin/true": ["--variant", "nowhere/python", "No such file"],
    "run --variant a=/bin/true --variant b=/bin/true": ["--variant", "'a=/bin/true'", "it answered something else"],
    "run --backends shm@head": ["--backends", "'shm@head'", "without '@'"],
    "run rpc --in-flight 0": ["--in-flight", "1 to 1,024"],
    "run rpc --p99-limit soon": ["--p99-limit", "'soon'", "a time above zero"],
    "run rpc --service 5s": ["--service", "5.00 s", "0 to 200ms"],
    "run rpc --reply same,64": ["--reply", "'same,64'", "sizes such as"],
    "run rpc --reply 64,64": ["--reply", "each once"],
    "run rpc --codec pickle": ["--codec", "raw for rpc"],
    "run small --in-flight 2": ["--in-flight", "nothing beside pattern broadcast"],
    "run queue --p99-limit 3ms": ["--p99-limit", "nothing beside pattern queue"],
    "run rpc --touch all": ["--touch", "nothing beside pattern rpc"],
    "run --resume missing": [ABSENT],
    "run --resume a --rounds 9": ["--rounds"],
    "run small --resume a": ["SWEEP"],
    "analyze": ["results"],
    "analyze missing": [ABSENT],
    "analyze other": ["other: not a folder of results"],
    "check": ["NAME"],
    "check nope": ["unknown backend 'nope'", "shm"],
    "check shm --laws C99": ["C99", "C19"],
    "selftest --pairs 0": ["--pairs", "1 to 10,000"],
    "selftest --backend nope": ["unknown backend 'nope'", "shm"],
    "measure": ["measure", "run", "recommend"],
    "recomend a --size 64": ["did you mean 'recommend'?"],
    "trace reprot good.log": ["did you mean 'report'?"],
    "run --backends shmem": ["did you mean 'shm'?"],
    "run smal": ["did you mean 'small'?"],
    "run --codec pikle": ["did you mean 'pickle'?"],
    "run --mode pased": ["did you mean 'paced'?"],
    "run --budgett 5min": ["--budgett", "--budget"],
    "recommend a --size 64 --needs loss-less": ["did you mean 'lossless'?"],
    "compare a a --metrics latency-p5": ["did you mean 'latency-p50'?"],
    "check shm --laws c1": ["did you mean 'C1'?"],
    "list smh": ["did you mean 'shm'?"],
    "compare a": ["A", "a run with variants", "second run"],
    "compare a a --inconclusive ok": ["--inconclusive", "'ok'", "--gate"],
    "compare a a --gate 5% --inconclusive maybe": ["maybe", "ok", "fail"],
    "compare a missing": [ABSENT],
    "compare a elsewhere": ["kernel: Linux 6.1 / Linux 5.4", "--across-machines"],
    "compare a a --gate five": ["--gate", "'five'", "5%"],
    "compare a a --gate 0%": ["--gate", "'0%'"],
    "compare a a --metrics speed": ["--metrics", "'speed'", "latency-p50"],
    "recommend a": ["--size"],
    "recommend rpc --size 64": ["a run of rpc", "ipcbench analyze"],
    "recommend --size 1x a": ["--size", "'1x'", "1KiB"],
    "recommend --size 64 --readers 0 a": ["--readers", "1 to 1,024"],
    "recommend --size 64 --rate fast a": ["--rate", "'fast'", "500/s"],
    "recommend --size 64 --needs speed a": ["--needs", "'speed'", "lossless", "zero-copy"],
    "recommend --size 64 --optimise speed a": ["speed", "latency", "cpu"],
    "recommend --size 64 --format html a": ["html", "markdown"],
    "recommend --size 64 missing": [ABSENT],
    "recommend --size 64 --needs cross-host,persistent": ["cross-host", "do not leave the host", "lmdb"],
    "recommend a --size 64 --needs cross-host,persistent": ["cross-host", "do not leave the host", "lmdb"],
    "export a": ["--to"],
    "export a --to xml": ["'xml'", *EXPORTERS],
    "export missing --to osu": [ABSENT],
    "export --to osu": ["results"],
    "export a --to osu --out .": ["--out"],
    "export a --to osu --out /dev/null": ["--out"],
    "export a --to osu --out no/such/file": ["no/such"],
    "replay nowhere": ["nowhere: No such file"],
    "replay empty.log": ["no calls to replay"],
    "replay good.log --backends nope": ["unknown backend 'nope'"],
    "replay good.log --backends ''": ["backends"],
    "replay good.log --backends null": ["between processes"],
    "replay good.log --recorded-over nope": ["unknown backend 'nope'"],
    "replay good.log --rounds 0": ["rounds"],
    "replay good.log --calls 0": ["calls"],
    "replay good.log --budget soon": ["budget"],
    "trace top good.log --once": ["good.log"],
    "trace diff trace nowhere": ["nowhere"],
    "trace check trace --fail-if Matmul": ["Matmul"],
    "trace check trace --fail-if 'Nobody.calls>1'": ["Nobody"],
    "trace export trace --to nothing": ["nothing"],
    "trace export trace --to csv --endpoint http://x": ["--endpoint"],
    "trace export trace --to csv --out trace": ["--out"],
    "trace export trace --to otlp --endpoint file:///x": ["file:///x"],
    "trace export trace --to otlp --endpoint http://127.0.0.1:1": ["http://127.0.0.1:1"],
}
"""Command line → what its one line must say."""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, a trace and the files above."""
    folder = tmp_path_factory.mktemp("material")
    make_run(folder / "a", {("shm", 10): Cell()})
    make_pattern_run(folder / "rpc", {"shm": (9000.0,)}, pattern_sweep(name="rpc", pattern="rpc"))
    make_run(folder / "elsewhere", {("shm", 10): Cell()}, machine={**MACHINE, "kernel": "Linux 5.4"})
    both_sides(folder / "trace", 5)
    (folder / "other").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("command", REFUSED)
def test_one_line_says_what_is_wrong(command: str, shell: Shell, material: Path, refused: Callable[..., str]) -> None:
    shutil.copytree(material, shell.folder, dirs_exist_ok=True)
    line = refused(*shlex.split(command))
    assert [part for part in REFUSED[command] if part not in line] == [], line
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["x" * 100, "new\nline", os.fsdecode(b"\xff")], ids=["long", "newline", "no text"])
@pytest.mark.parametrize(
    "command", [("run", "--backends", "shm", *TINY), ("check", "shm", "--quick")], ids=["run", "check"]
)
def test_a_temporary_folder_whose_path_no_socket_or_message_can_have(
    shell: Shell, name: str, command: tuple[str, ...]
) -> None:
    folder = shell.folder / name
    folder.mkdir()
    with shell.start(*command, env={**shell.options()["env"], "TMPDIR": str(folder)}) as process:
        (line,) = process.communicate(timeout=100)[1].splitlines()
        assert line.startswith("ipcbench: error: TMPDIR: ")
        assert process.returncode == 2
    assert list(folder.iterdir()) == []


def test_a_temporary_folder_that_cannot_be_used_is_not_passed_over(shell: Shell) -> None:
    with shell.start("run", "--backends", "shm", *TINY, env={**shell.options()["env"], "TMPDIR": "absent"}) as process:
        (line,) = process.communicate(timeout=100)[1].splitlines()
        assert line.startswith("ipcbench: error: TMPDIR: 'absent' is not valid; allowed: a folder in which files can")
        assert process.returncode == 2


def test_a_results_folder_that_is_in_use_by_other_things(shell: Shell) -> None:
    (shell.folder / "mine").mkdir()
    (shell.folder / "mine" / "thesis.txt").touch()
    done = shell("run", "--backends", "shm", *TINY, "--out", "mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not empty" in done.stderr
    assert [path.name for path in (shell.folder / "mine").iterdir()] == ["thesis.txt"]


def test_a_torn_last_line_costs_that_line_alone(shell: Shell, finished_run: Path) -> None:
    trials = Path(shutil.copytree(finished_run, shell.folder / "torn")) / "trials.jsonl"
    data = trials.read_bytes()
    whole = data.count(b"\n")
    trials.write_bytes(data[:-30])
    done = shell("analyze", "torn", "--no-report")
    assert done.returncode == 0, done.stderr
    assert f"{whole - 1} whole lines were read" in done.stderr
    assert done.stdout


@pytest.mark.parametrize("arguments", [("list",), ("analyze", "a", "--no-report", "--format", "json")])
def test_an_output_that_takes_nothing_is_one_line(shell: Shell, material: Path, arguments: Sequence[str]) -> None:
    shutil.copytree(material, shell.folder, dirs_exist_ok=True)
    with open("/dev/full", "w") as full, shell.start(*arguments, stdout=full) as process:
        assert process.communicate(timeout=100)[1] == "ipcbench: error: standard output: No space left on device\n"
        assert process.returncode == 1
    with shell.start_python("-m", "ipcbench", *arguments, prefix=("sh", "-c", 'exec "$@" >&-', "sh")) as process:
        assert process.communicate(timeout=100)[1].startswith("ipcbench: error: standard output is closed")
        assert process.returncode == 2
