"""`ipcbench recommend` and `ipcbench.recommend` as a user has them: evidence stored or made, an answer, and its use."""

from __future__ import annotations

import json
import pickle
import select
import subprocess
from pathlib import Path

import pytest

import ipcbench
from ipcbench.analysis.recommend import question
from ipcbench.cli import main
from ipcbench.errors import ConfigError, Unsupported
from tests.end_to_end.shell import Shell, interrupt
from tests.unit.builders import Cell, make_run, sweep_of

SWEEP = sweep_of(backends=("shm", "zmq"), sizes=(10, 1000), readers=2)
FIGURES_NS = {("shm", 10): 10_000.0, ("zmq", 10): 30_000.0, ("shm", 1000): 40_000.0, ("zmq", 1000): 90_000.0}
CELLS = {key: Cell(latency_ns) for key, latency_ns in FIGURES_NS.items()}


@pytest.fixture
def measured(shell: Shell) -> Shell:
    """A folder with a run `stored` of two backends."""
    make_run(shell.folder / "stored", CELLS, SWEEP)
    return shell


def test_an_interrupted_measurement_says_what_it_knows_and_where_it_is(shell: Shell) -> None:
    process = shell.start("recommend", "--size", "1KiB", "--needs", "lossless")
    trials = None
    while trials is None and process.poll() is None:  # until something is measured
        trials = next((path for path in shell.folder.glob("results/*/trials.jsonl") if path.stat().st_size), None)
        select.select([], [], [], 0.05)
    assert trials is not None
    out, said = interrupt(process)
    assert process.returncode == 130
    assert f"kept in results/{trials.parent.name}" in said
    assert "1,024 B" in out


def test_text_markdown_and_json_hold_the_same_verdict(measured: Shell) -> None:
    before = {path: path.read_bytes() for path in (measured.folder / "stored").iterdir() if path.is_file()}
    asked = ("recommend", "--size", "521", "--readers", "2", "stored")
    text, markdown, data = (measured(*asked, "--format", form) for form in ("text", "markdown", "json"))
    for done in (text, markdown, data):
        assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(data.stdout)
    assert answer["backend"] == "shm"
    assert answer["verdict"].startswith("For 521 B to 2 readers: shm, with one-way latency p50 10.0 µs")
    assert answer["verdict"] == text.stdout.splitlines()[0]
    assert "Expected of shm" in markdown.stdout
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in (measured.folder / "stored").iterdir()} == {"run.json", "trials.jsonl", "samples"}


def test_no_answer_is_exit_code_1_and_says_which_run_to_make(measured: Shell) -> None:
    done = measured("recommend", "--size", "1MiB", "--readers", "2", "stored")
    assert (done.returncode, done.stderr) == (1, "")
    assert "outside the measured range" in done.stdout
    assert "Measure it: ipcbench run --backends" in done.stdout


@pytest.mark.usefixtures("process_state")
def test_without_a_run_it_measures_one_for_this_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(question, "_ROUNDS", 1)
    monkeypatch.chdir(tmp_path)
    asked = ["recommend", "--size", "1", "--needs", "persistent", "--format", "json"]
    assert main(asked) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert (answer["backend"], answer["outcome"], answer["sureness"]) == ("lmdb", "only candidate", "low")
    assert "measuring lmdb for this question" in shown.err
    (folder,) = (tmp_path / "results").iterdir()
    assert f"results in results/{folder.name}" in shown.err
    run = ipcbench.load(folder)
    assert {trial.spec.payload_bytes for trial in run.trials} == {1, 4}
    assert run.info.command == ("ipcbench", *asked)
    again = ipcbench.recommend(1, needs=["persistent"], run=folder)
    assert json.loads(json.dumps(again.as_dict())) == {**answer, "run_path": str(folder)}


def test_the_choice_can_be_used_at_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", CELLS, SWEEP)
    choice = ipcbench.recommend("521B", readers=2, run=run)
    assert isinstance(choice, ipcbench.Recommendation)
    address = choice.create("ipcb-test-choice")
    assert (address.backend, address.channel.readers, address.channel.max_message_bytes) == ("shm", 2, 521)
    try:
        with (
            choice.open_writer(address) as writer,
            choice.open_reader(address) as first,
            choice.open_reader(address, 1) as second,
        ):
            writer.write(b"x" * 521, timeout_s=5.0)
            assert bytes(first.read(timeout_s=5.0)) == bytes(second.read(timeout_s=5.0)) == b"x" * 521
    finally:
        choice.destroy(address)
    other = choice.create(max_message_bytes=8)
    choice.destroy(other)
    assert other.channel.name != address.channel.name


READ = """
import pickle, sys
choice, address = pickle.load(sys.stdin.buffer)
with choice.open_reader(address) as reader:
    sys.stdout.write(bytes(reader.read(timeout_s=20.0)).decode())
"""


@pytest.mark.parametrize("needs", ["lossless", "latest-value"])
def test_another_process_opens_the_other_end_of_the_choice(shell: Shell, needs: str) -> None:
    delivery = "latest_value" if needs == "latest-value" else "every_message"
    sweep = sweep_of(backends=("shm", "zmq"), sizes=(10,), readers=1, delivery=delivery)
    run = make_run(shell.folder / "run", {("shm", 10): Cell(30_000.0), ("zmq", 10): Cell(10_000.0)}, sweep)
    choice = ipcbench.recommend(521, needs=needs, run=run)
    address = choice.create()
    assert (address.backend, address.channel.delivery) == ("zmq", delivery)
    try:
        with choice.open_writer(address) as writer:
            reader = shell.start_python("-c", READ, stdin=subprocess.PIPE, text=False)
            assert reader.stdin is not None
            pickle.dump((choice, address), reader.stdin)
            reader.stdin.close()
            reader.stdin = None
            writer.write(b"found", timeout_s=20.0)
            while delivery == "latest_value" and reader.poll() is None:  # what is set before a reader opens may be gone
                select.select([], [], [], 0.01)
                writer.write(b"found", timeout_s=20.0)
            assert reader.communicate(timeout=30)[0] == b"found"
    finally:
        choice.destroy(address)


def test_the_library_refuses_what_cannot_be_asked(tmp_path: Path) -> None:
    for error, needs, words in ((ConfigError, "speed", "needs"), (Unsupported, "cross-host,persistent", "cross-host")):
        with pytest.raises(error, match=words):
            ipcbench.recommend(64, needs=needs, results=tmp_path)
    assert list(tmp_path.iterdir()) == []
