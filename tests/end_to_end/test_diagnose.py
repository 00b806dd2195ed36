"""`ipcbench diagnose` as a user runs it: each mode between real processes, bad input, and an end by Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipcbench.cli import main
from ipcbench.cli.diagnose import _gate, _judged
from ipcbench.diagnose.diagnosis import Diagnosis, diagnose
from ipcbench.diagnose.endpoints.process import Unreadable, read_process
from ipcbench.diagnose.ladder import measure_ladder
from ipcbench.models import PRESETS
from ipcbench.replay.clients import read_traffic
from ipcbench.replay.run import Request
from tests.diagnose.pairs import both, program, python
from tests.end_to_end.shell import ROOT, Shell, interrupt
from tests.end_to_end.test_readme import blocks, commands
from tests.trace.logs import V1, head, row, v1_row
from tests.trace.made import both_sides

LOG = head(V1) + "".join(v1_row(number) for number in range(1, 9))
TINY_MODEL = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 50}  # fmt: skip
CALLS = "calls = [('first', b'x' * 100), ('made', lambda: b'y')]\n"
FILES = {
    "good.log": LOG,
    "empty.log": "",
    "damaged.log": "neither a head\nnor a row\n",
    "one-way.log": head(V1),
    "zero.log": head(V1) + row(1, "Matmul", 0, 0, 0, 0, 0, 1024, 2048, 0),
    "hurt.log": LOG.replace(" 2048.00", " 99e999", 1),
    "config.json": json.dumps(TINY_MODEL),
    "other.json": '{"model_type": "bert"}',
    "calls.py": CALLS,
    "no_pairs.py": "calls = [1, 2]\n",
    "broken.py": "calls = [\n",
    "empty": "",
}
QUICK = ("--backends", "pipe", "--rounds", "1", "--quiet")
SERVER = """
import threading, zmq
server = zmq.Context().socket(zmq.REP)
server.bind({url!r})
def serve():
    while True:
        server.send(server.recv())
threading.Thread(target=serve, daemon=True).start()
"""
GUIDE = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
SHORTER = {
    "python examples/": "--calls 24",
    "ipcbench diagnose zmq": "--rounds 1 --backends pipe",
    "ipcbench diagnose trace": "--rounds 1 --backends pipe",
    "ipcbench diagnose --model llama-3.2-1b --ladder": "--seq 2 --rounds 1",
    "ipcbench diagnose --model llama-3.2-1b --dtype": "--seq 2",
    "ipcbench replay": "--rounds 1",
}
"""Beginning of a command of the guide → options that make it shorter."""
REFUSED = {
    "": ["nothing to look at", "TRACE", "--pids", "--endpoint", "--model"],
    "zero.log": ["zero.log", "took none"],
    "good.log --budget 1ns": ["--budget", "'1ns'", "1s to 7 days"],
    "good.log --html nowhere/page.html": ["--html", "a folder that exists"],
    "nowhere": ["nowhere: No such file"],
    "empty.log": ["empty.log", "no calls to replay"],
    "damaged.log": ["damaged.log", "no calls to replay"],
    "one-way.log": ["one-way.log", "none has a request and a reply"],
    "damaged": ["damaged/", "not a file of a trace"],
    "folder": ["folder", "no calls to replay"],
    "run": ["a folder of results, not a trace", "ipcbench analyze"],
    "--pids abc": ["--pids", "'abc'", "the number of a process"],
    "--pids 1,2,3": ["--pids", "'1,2,3'"],
    "--pids 0": ["--pids", "a running process"],
    "--pids 4194305": ["--pids", "4194305", "a running process"],
    "--pids 99999999999999999999": ["--pids", "the number of a process"],
    "--endpoint ftp://x": ["--endpoint", "'ftp://x'", "ipc:///path"],
    "--endpoint tcp://127.0.0.1:99999": ["--endpoint", "tcp://host:port"],
    "--model nope": ["model", "'nope'", "llama-3.2-1b"],
    "--model other.json": ["other.json"],
    "--model nowhere/config.json": ["nowhere/config.json", "no such file"],
    "--model llama-3.2-1b --seq 0": ["--seq", "0", "1 to 1,048,576"],
    "--model llama-3.2-1b --seq 1000000000": ["--seq", "1000000000", "1 to 1,048,576"],
    "--model llama-3.2-1b --ladder --seq 0": ["--seq", "1 to 1,048,576"],
    "good.log --fail-if server": ["--fail-if", "'server'", "PART>PERCENT", "serialize"],
    "good.log --fail-if 'speed>5'": ["--fail-if", "serialize"],
    "good.log --fail-if 'server>500'": ["--fail-if", "server>50"],
    "planned --fail-if 'server>5'": ["--fail-if", "nobody made"],
    "good.log --against planned": ["--against", "nobody made"],
    "good.log --against nowhere": ["nowhere: No such file"],
    "--model llama-3.2-1b --fail-if 'server>5'": ["--fail-if does nothing without TRACE"],
    "--calls calls.py": ["--calls does nothing without --endpoint"],
    "good.log --framing dealer": ["--framing does nothing without --calls"],
    "--endpoint ipc:///x --timeout 1s": ["--timeout does nothing without --calls"],
    "--endpoint ipc:///x --calls nowhere.py": ["nowhere.py: No such file"],
    "--endpoint ipc:///x --calls no_pairs.py": ["calls[0]", "a name, and bytes"],
    "--endpoint ipc:///x --calls broken.py": ["broken.py", "SyntaxError"],
    "--endpoint ipc:///x --calls calls.py --timeout 0": ["--timeout", "above zero"],
    "--model llama-3.2-1b --full": ["--full does nothing without --ladder"],
    "good.log --ladder": ["--ladder does nothing without --model"],
    "good.log --seq 5": ["--seq does nothing without --model"],
    "good.log --write-trace new": ["--write-trace does nothing without --model"],
    "good.log --model llama-3.2-1b": ["--model does nothing beside TRACE"],
    "--model llama-3.2-1b --ladder --dtype float32": ["--dtype does nothing beside --ladder"],
    "--model llama-3.2-1b --ladder --backends shm": ["--backends does nothing without"],
    "--model llama-3.2-1b --ladder --write-trace new": ["--write-trace does nothing beside --ladder"],
    "--model llama-3.2-1b --write-trace new --format json": ["--format", "'json'", "text"],
    "--model llama-3.2-1b --write-trace planned": ["planned", "holds a trace already"],
    "--pids 1 --lang zh": ["--lang does nothing without a TRACE"],
    "--pids 1 --format csv": ["--format", "'csv'", "text or json"],
    "--endpoint ipc:///x --format markdown": ["--format", "'markdown'", "text or json"],
    "good.log --against good.log --format csv": ["--format", "'csv'", "markdown or json beside --against"],
    "good.log --lang fr": ["--lang", "'fr'", "en or zh"],
    "good.log --backends nonsense": ["unknown backend 'nonsense'"],
    "good.log --backends ''": ["backends"],
    "good.log --backends null": ["between processes"],
    "good.log --recorded-over nope": ["unknown backend 'nope'"],
    "good.log --sample nowhere": ["nowhere: No such file"],
    "good.log --sample folder": ["folder: Is a directory"],
    "good.log --sample empty": ["empty is empty"],
    "good.log --rounds 0": ["--rounds"],
    "good.log --budget soon": ["--budget", "'soon'"],
    "good.log --format html": ["--format", "'html'"],
    "good.log --html folder": ["--html", "the path of a file"],
    "good.log --html page.html --format json": ["--format", "'json'", "text beside --html"],
    "--pids 1 --html page.html": ["--html does nothing without"],
    "good.log more.log": ["unexpected extra argument"],
}
"""Command line → what its one line must say."""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, finished_run: Path) -> Path:
    """A folder with good and bad traces and logs, and a run."""
    folder = tmp_path_factory.mktemp("diagnose")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    both_sides(folder / "trace", 30)
    (folder / "folder").mkdir()
    (folder / "damaged").mkdir()
    segment = next(path for path in (folder / "trace").iterdir() if path.suffix == ".ipct")
    (folder / "damaged" / segment.name).write_bytes(segment.read_bytes()[:100])
    shutil.copytree(finished_run, folder / "run")
    done = Shell(folder)("diagnose", "--model", "config.json", "--seq", "4", "--write-trace", "planned")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert re.match(r"8 calls that send [\d.]+ MiB and receive [\d.]+ MiB are in planned\n", done.stderr)
    return folder


@pytest.fixture
def prepared(shell: Shell, material: Path) -> Shell:
    shutil.copytree(material, shell.folder, dirs_exist_ok=True)
    return shell


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, ...], Any]:
    """What was asked → what was measured for it."""
    return {}


Printed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def printed(
    material: Path,
    measured: dict[tuple[str, ...], Any],
    process_state: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Printed:
    """Run the command in this process; return its exit code, its output and what it said. Whoever asks the same, for
    another format or language, gets the same measurement.
    """
    monkeypatch.chdir(material)

    def run(*asked: str, shown: tuple[str, ...] = ()) -> tuple[int, str, str]:
        def once(measure: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *given: measured[asked] if asked in measured else measured.setdefault(asked, measure(*given))

        with monkeypatch.context() as patch:
            patch.setattr("ipcbench.diagnose.diagnosis.diagnose", once(diagnose))
            patch.setattr("ipcbench.diagnose.ladder.measure_ladder", once(measure_ladder))
            code = main(["diagnose", *asked, *shown])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def server(shell: Shell) -> Iterator[str]:
    """The endpoint of a server that answers each request with its bytes."""
    url = f"ipc://{shell.folder}/s"
    with program(*python(SERVER.format(url=url))):
        yield url


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_is_measured_or_ends_in_a_traceback(
    command: str, prepared: Shell, refused: Callable[..., str]
) -> None:
    line = refused("diagnose", *shlex.split(command))
    assert [part for part in REFUSED[command] if part not in line] == [], line


def test_the_verdict_on_two_processes_is_not_printed_or_a_logs_word_not_compared(prepared: Shell) -> None:
    listener = "s = socket.create_server(('127.0.0.1', 0))\nopen({port!r}, 'w').write(str(s.getsockname()[1]))\n"
    fifo = str(prepared.folder / "port")
    os.mkfifo(fifo)
    first = listener.format(port=fifo) + "c, _ = s.accept()\nc.recv(5)"
    second = f"c = socket.create_connection(('127.0.0.1', int(open({fifo!r}).read())))\nc.sendall(b'hello')"
    with both(first, second) as (one, two):
        plain = prepared("diagnose", "--pids", f"{one},{two}")
        data = prepared("diagnose", "--pids", f"{one},{two}", "--format", "json")
        beside = prepared("diagnose", "good.log", "--pids", f"{one},{two}", *QUICK, "--format", "json")
        alone = prepared("diagnose", "--pids", str(one))
    assert plain.returncode == data.returncode == alone.returncode == 0
    assert plain.stdout.startswith("in use: tcp://127.0.0.1:")
    assert f"with process {two} " in alone.stdout
    found = json.loads(data.stdout)
    assert (found["state"], found["verdict"]) == ("in use", plain.stdout.splitlines()[0])
    assert [(link["kind"], link["may_carry_data"]) for link in found["links"]] == [("tcp", True)]
    assert found["links"][0]["sent_bytes"] + found["links"][0]["received_bytes"] == 5
    links, diagnosis = json.loads(beside.stdout)
    assert (links["log_says"], links["log_answer"], diagnosis["calls_count"]) == ("IPC", "contradicts", 8)
    assert beside.returncode == 1


def test_an_unreadable_process_ends_in_a_traceback(shell: Shell) -> None:
    try:
        read_process(1)
    except Unreadable:
        done = shell("diagnose", "--pids", "1")
        assert (done.returncode, done.stderr) == (3, "")
        assert re.fullmatch(r"cannot tell: process 1 .* cannot be read by user \d+; run this .*\n", done.stdout)
    else:
        pytest.skip("this user may read every process")


def test_a_dead_endpoint_passes_for_a_healthy_one(shell: Shell, server: str) -> None:
    good, data = shell("diagnose", "--endpoint", server), shell("diagnose", "--endpoint", server, "--format", "json")
    assert good.returncode == data.returncode == 0
    assert "is served by: process" in good.stdout
    assert json.loads(data.stdout)["is_healthy"] is True
    dead = shell("diagnose", "--endpoint", f"{server}-gone")
    (line,) = dead.stdout.splitlines()
    assert (dead.returncode, dead.stderr) == (1, "")
    assert line.startswith("problem: ")
    assert "start the server first" in line


def test_an_endpoint_of_another_host_passes_for_a_healthy_one(shell: Shell) -> None:
    done = shell("diagnose", "--endpoint", "tcp://192.0.2.1:5555", "--format", "json")  # RFC 5737: of no host
    assert (done.returncode, json.loads(done.stdout)["is_healthy"]) == (3, None)


def test_an_empty_option_is_taken_for_one_that_is_not_there(shell: Shell) -> None:
    done = shell("diagnose", "--endpoint", "")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "--endpoint" in line


def test_requests_are_not_sent_or_the_first_failure_is_passed_over(prepared: Shell, server: str) -> None:
    done = prepared("diagnose", "--endpoint", server, "--calls", "calls.py", "--format", "json")
    endpoint, requests = json.loads(done.stdout)
    assert (done.returncode, endpoint["is_healthy"]) == (0, True)
    assert [(step["name"], step["sent_bytes"], step["received_bytes"]) for step in requests["steps"]] == [
        ("first", 100, 100),
        ("made", 1, 1),
    ]
    failed = prepared(
        "diagnose", "--endpoint", f"{server}-gone", "--calls", "calls.py", "--timeout", "100ms", "--framing", "dealer"
    )
    assert failed.returncode == 1
    assert "first: failed: nothing answered within 0.1 s" in failed.stdout
    assert "made" not in failed.stdout


BOTH_SIDES = ("trace", *QUICK, "--against", "trace", "--sample", "good.log")
ONE_LOG = ("good.log", *QUICK, "--sample", "good.log")
LADDER = ("--model", "config.json", "--ladder", "--seq", "4", "--rounds", "1", "--quiet")


def test_a_format_lacks_parts_of_the_diagnosis(printed: Printed) -> None:
    code, text, said = printed(*BOTH_SIDES)
    assert (code, said) == (0, "")
    assert "Where the time went" in text
    assert "Time of a call, beside that in trace" in text
    assert "## Time of a call, beside that in trace" in printed(*BOTH_SIDES, shown=("--format", "markdown"))[1]
    data = json.loads(printed(*BOTH_SIDES, shown=("--format", "json"))[1])
    every = data["attributions"][0]
    parts = [value or 0.0 for name, value in every.items() if name.endswith("_ns") and name != "total_ns"]
    assert sum(parts) == pytest.approx(every["total_ns"])
    assert data["before"]["attribution"]["total_ns"] == every["total_ns"]
    assert {"transport pipe"} <= {remedy["key"] for remedy in data["remedies"]}
    assert not any(remedy["helps"] for remedy in data["remedies"] if remedy["backend"]), "one round claims nothing"


def test_the_csv_has_other_changes_than_the_json(printed: Printed) -> None:
    code, text, said = printed(*ONE_LOG, shown=("--format", "csv"))
    assert (code, said) == (0, "")
    rows = list(csv.DictReader(text.splitlines()))
    data = json.loads(printed(*ONE_LOG, shown=("--format", "json"))[1])
    assert {"transport pipe"} <= {row["remedy"] for row in rows} == {remedy["key"] for remedy in data["remedies"]}
    assert all(float(row["predicted_ns"]) > 0 for row in rows)


def test_an_unknown_part_is_zero_in_json(printed: Printed) -> None:
    every = json.loads(printed(*ONE_LOG, shown=("--format", "json"))[1])["attributions"][0]
    assert [every[f"{part}_ns"] for part in ("server", "queue", "excess")] == [None] * 3
    assert every["unknown_ns"] > 0


@pytest.fixture(scope="module")
def made(material: Path) -> dict[str, Diagnosis]:
    """The diagnoses of a log, and of a trace of both sides."""
    request = Request(("pipe",), rounds=1)
    return {name: diagnose(read_traffic(material / name), request) for name in ("good.log", "trace")}


@pytest.mark.parametrize(
    ("trace", "gate", "code", "words"),
    [
        ("good.log", "serialize>50", 0, ""),
        ("good.log", "serialize>5%", 1, "serialize takes 10.0 % of the time, more than 5 %"),
        ("good.log", "server>1", 3, "is not known; record the server, too"),
        ("good.log", "server>75", 3, "is not known; record the server, too"),
        ("good.log", "beyond floor>1", 3, "is not known"),
        ("good.log", "server>99", 0, ""),
        ("good.log", "floor: messages>0", 3, "floor: messages takes 0"),
        ("good.log", "bytes>0", 3, "is not known; record the server, too"),
        ("good.log", "bytes>99", 0, ""),
        ("trace", "bytes>99", 0, ""),
        ("trace", "fixed>0", 1, "floor: messages takes"),
    ],
)
def test_a_gate_ends_with_the_wrong_code(
    made: dict[str, Diagnosis], trace: str, gate: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _judged(made[trace], *_gate(gate)) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == (code != 0)


@pytest.mark.parametrize(("gate", "code"), [("serialize>5%", 1), ("server>1", 3)])
def test_the_command_does_not_end_as_its_gate_does(prepared: Shell, gate: str, code: int) -> None:
    done = prepared("diagnose", "good.log", *QUICK, "--fail-if", gate)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr


def test_what_a_user_prints_spoils_the_json(prepared: Shell, server: str) -> None:
    (prepared.folder / "talks.py").write_text("print('read')\ncalls = [('a', lambda: print('made') or b'x')]\n")
    done = prepared("diagnose", "--endpoint", server, "--calls", "talks.py", "--format", "json")
    assert [document["format"] for document in json.loads(done.stdout)] == ["ipcbench endpoint", "ipcbench requests"]
    assert "read\n" in done.stderr
    assert "made\n" in done.stderr


def test_damaged_lines_are_left_out_in_silence(printed: Printed) -> None:
    assert "1 damaged line or record is left out." in printed("hurt.log", *QUICK)[1]


def english(text: str) -> list[str]:
    """Return what looks like sentences of English in a text: four words in a row outside of code."""
    plain = re.sub(r"`[^`]*`", "", re.sub(r"\n +", " ", text))
    return re.findall(r"(?:\b[A-Za-z']+ ){3}[A-Za-z']+", plain)


@pytest.mark.parametrize(
    "asked",
    [BOTH_SIDES, ONE_LOG, pytest.param(("planned", *QUICK), marks=pytest.mark.soak), LADDER],
    ids=["both sides", "log", "planned", "ladder"],
)
def test_english_is_left_in_chinese(printed: Printed, asked: tuple[str, ...]) -> None:
    code, text, said = printed(*asked, shown=("--lang", "zh"))
    assert (code, said) == (0, "")
    assert "诊断" in text or "阶梯" in text
    assert english(text) == []
    assert english("It is no remedy at all") != []


def test_a_model_is_diagnosed_under_the_name_of_a_folder_that_is_gone(prepared: Shell) -> None:
    done = prepared("diagnose", "--model", "config.json", "--seq", "4", *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Diagnosis of {prepared.folder.name}, 4 tokens, float32\n")
    assert "nobody made would move" in done.stdout
    assert "ipcbench replay" not in done.stdout, "there is no trace to replay"


def test_the_calls_of_a_known_model_are_others(shell: Shell) -> None:
    for more, words in (((), "98 calls that send 3,328.016 MiB and receive 3,656.489 MiB"),
                        (("--dtype", "bfloat16"), "98 calls that send 1,664.012 MiB and receive 1,828.245 MiB"),
                        (("--attention", "client"), "66 calls that send ")):  # fmt: skip
        folder = "-".join(("plan", *more))
        done = shell("diagnose", "--model", next(iter(PRESETS)), *more, "--write-trace", folder)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.startswith(words)
    report = shell("trace", "report", "plan")
    assert report.returncode == 0, report.stderr


@pytest.mark.parametrize("form", ["text", "markdown", "csv"])
def test_the_ladder_lacks_stages_in_a_format(printed: Printed, form: str) -> None:
    code, text, said = printed(*LADDER, shown=("--format", form))
    assert (code, said) == (0, "")
    for stage in ("msgpack over zmq tcp, float32", "raw multipart over zmq ipc", "in place, fused, two streams"):
        assert stage in text
    if form == "csv":
        assert len(list(csv.DictReader(text.splitlines()))) == 9


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("good.log", "--backends", "pipe", "--rounds", "999", "--budget", "9min"), "round 1/999"),
        (("--model", "config.json", "--ladder", "--seq", "4", "--rounds", "999", "--budget", "9min"), "round 1/999"),
    ],
    ids=["trace", "ladder"],
)
def test_ctrl_c_ends_in_a_traceback_or_leaves_something(prepared: Shell, arguments: Any, first: str) -> None:
    before = sorted(prepared.folder.rglob("*"))
    process = prepared.start("diagnose", *arguments)
    assert process.stderr is not None
    assert first in process.stderr.readline()
    printed, said = interrupt(process)
    assert (process.returncode, printed) == (130, "")
    assert said.splitlines()[-1] == "ipcbench: error: interrupted"
    assert "Traceback" not in said
    assert sorted(prepared.folder.rglob("*")) == before


def test_ctrl_c_while_a_request_waits_ends_in_a_traceback(prepared: Shell) -> None:
    silent = f"import zmq\nserver = zmq.Context().socket(zmq.REP)\nserver.bind('ipc://{prepared.folder}/s')"
    with program(*python(silent)):
        process = prepared.start(
            "diagnose", "--endpoint", f"ipc://{prepared.folder}/s", "--calls", "calls.py", "--timeout", "90s",
            bufsize=1,
        )  # fmt: skip
        assert process.stdout is not None
        while "is served by" not in process.stdout.readline():
            pass
        _, said = interrupt(process)
    assert process.returncode == 130
    assert said.strip() == "ipcbench: error: interrupted"


def script(folder: Path) -> str:
    """Return the guide's commands as a shell script that prints how each ended; some are repeated until the processes
    that they look at are there.
    """
    lines = ["trap 'kill $(jobs -p) 2> /dev/null' EXIT", 'ipcbench() { python -m ipcbench "$@"; }']
    for number, command in enumerate(commands(GUIDE)):
        more = next((options for begin, options in SHORTER.items() if command.startswith(begin)), "")
        words = f"{command} {more}".replace("/tmp/tensors", f"{folder}/tensors").strip()
        if "--pids" in words or words.endswith("/tensors"):
            words = f"for try in $(seq 60); do {words} && break; done"
        lines.append(words)
        if "&" not in command:
            lines.append(f'echo "rc $? {number}"')
    return "\n".join(lines)


def test_a_command_of_the_guide_does_not_work(shell: Shell) -> None:
    (shell.folder / "examples").symlink_to(ROOT / "examples")
    names = re.findall(r"`(\w+\.py)`(?=[^`]*(?:`\w+\.py`:\n|:\n|and\n))", GUIDE)
    assert names == ["make_log.py", "server.py", "client.py", "calls.py"]
    for name, code in zip(names, blocks("python", GUIDE), strict=True):
        small = code.replace("16384, 49152", "64, 192").replace("49152, 16384", "192, 64").replace("2**24", "2**16")
        (shell.folder / name).write_text(small.replace("/tmp/tensors", f"{shell.folder}/tensors"), encoding="utf-8")
    done = subprocess.run(["bash", "-c", script(shell.folder)], timeout=250, check=False, **shell.options())
    ends = re.findall(r"^rc (\d+) (\d+)$", done.stdout, flags=re.MULTILINE)
    every = list(commands(GUIDE))
    assert len(ends) == len(every) - 2, done.stderr
    failed = [every[int(number)] for code, number in ends if code != "0"]
    wrong = [command for command in failed if "--fail-if" not in command]
    assert wrong == [], done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for words in ("in use: unix socket", "large: ", "98 calls that send", "fused, two streams", "beside that in trace"):
        assert words in done.stdout + done.stderr
