"""The guide's commands, made shorter; `ipcbench replay` as a user runs it."""

from __future__ import annotations

import json
import shlex
import subprocess
import time

import pytest

from tests.end_to_end.shell import ROOT, Shell, interrupt
from tests.end_to_end.test_readme import commands
from tests.trace.logs import V1, head, v1_row

GUIDE = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
SHORTER = {"service.py": ("--calls", "24"), "replay": ("--calls", "12", "--rounds", "2")}


def short(words: list[str]) -> list[str]:
    """Return a command of the guide with fewer calls and rounds."""
    kind = "service.py" if words[0] == "python" else words[1]
    backends = ("--backends", "zmq,shm") if kind == "replay" and "--backends" not in words else ()
    return [*words, *SHORTER.get(kind, ()), *backends]


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    folder = tmp_path_factory.mktemp("guide")
    (folder / "examples").symlink_to(ROOT / "examples")
    return Shell(folder)


def run(shell: Shell, words: list[str]) -> subprocess.CompletedProcess[str]:
    assert words[0] in {"ipcbench", "python"}
    return (shell if words[0] == "ipcbench" else shell.python)(*words[1:])


def test_the_commands_of_the_guide_work_in_their_order(guide: Shell) -> None:
    outputs = {}
    for command in commands(GUIDE):
        done = run(guide, short(shlex.split(command)))
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), command
        outputs[command] = done.stdout
    assert len(outputs) == 5
    recorded, report, replayed, thinkless, rewired = outputs.values()
    assert json.loads(recorded)["transport"] == "zmq"
    assert json.loads(rewired)["transport"] == "shm"
    for method in ("Ping", "Lookup", "Upload", "Matmul", "Download"):
        assert method in report
        assert method in replayed
    assert "zmq (as recorded)" in replayed
    assert "unknown" not in replayed, "the server's records are joined to the calls"
    kept = json.loads((guide.folder / "replayed" / "replay.json").read_text(encoding="utf-8"))
    assert kept == json.loads(thinkless)
    assert kept["think"] == "none"
    assert {backend["name"] for backend in kept["backends"]} == {"shm", "pipe"}


def test_the_code_of_the_guide_is_the_examples() -> None:
    service = (ROOT / "examples" / "tensor_service" / "service.py").read_text(encoding="utf-8")
    for block in GUIDE.split("```text\n")[1:]:
        for line in block.partition("```")[0].splitlines():
            assert line.strip() in service


def test_three_clients_of_the_example_share_its_server(guide: Shell) -> None:
    service = ("examples/tensor_service/service.py", "--transport", "pipe", "--clients", "3", "--calls", "12")
    recorded = guide.python(*service, "--trace", "shared")
    assert recorded.returncode == 0, recorded.stderr
    assert json.loads(recorded.stdout)["clients"] == 3
    replayed = guide("replay", "shared", "--backends", "pipe", "--rounds", "1", "--format", "json")
    assert replayed.returncode == 0, replayed.stderr
    outcome = json.loads(replayed.stdout)
    assert (outcome["calls_count"], outcome["server_known"], outcome["gaps_known"]) == (36, True, True)
    assert any(remark.startswith("3 clients shared a server") for remark in outcome["remarks"])


@pytest.mark.parametrize(("transport", "words"), [
    ("mpi-p2p", "plain processes"), ("null", "plain processes"), ("nope", "unknown backend 'nope'"),
])  # fmt: skip
def test_the_example_refuses_what_it_cannot_use_in_one_line(guide: Shell, transport: str, words: str) -> None:
    done = guide.python("examples/tensor_service/service.py", "--transport", transport)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_log_without_the_servers_share_gives_bounds(shell: Shell) -> None:
    log = shell.folder / "zmq_performance.log"
    log.write_text(head(V1) + "".join(v1_row(number) for number in range(1, 5)), encoding="utf-8")
    done = shell("replay", log.name, "--backends", "pipe", "--rounds", "2", "--format", "markdown")
    assert done.returncode == 0, done.stderr
    assert "at least" in done.stdout
    assert "4 calls is unknown" in done.stdout


def test_ctrl_c_ends_a_replay_of_two_clients_at_once(shell: Shell) -> None:
    logs = shell.folder / "logs"
    logs.mkdir()
    for name in ("a", "b"):
        rows = "".join(v1_row(number) for number in range(1, 2000))
        (logs / f"{name}.log").write_text(head(V1) + rows, encoding="utf-8")
    process = shell.start("replay", "logs", "--backends", "pipe", "--calls", "300", "--rounds", "9",
                          "--out", "new/out")  # fmt: skip
    assert process.stderr is not None
    assert "round 1/9" in process.stderr.readline()
    assert (shell.folder / "new/out").is_dir()
    begin = time.monotonic()
    _, said = interrupt(process)
    assert not (shell.folder / "new").exists()
    assert process.returncode == 130
    assert "interrupted" in said
    assert time.monotonic() - begin < 10
