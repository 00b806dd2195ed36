"""The end of a run on one screen, the words that it uses, and the table before there are ranks."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.recommend.recommend import recommend
from ipcbench.analysis.report.page import headline_words, report_html
from ipcbench.analysis.report.render import as_json, as_markdown, as_text
from ipcbench.analysis.report.screen import screen
from ipcbench.analysis.report.so_far import so_far
from ipcbench.analysis.report.tables import tables
from ipcbench.analysis.summary.summary import summarise
from ipcbench.cli import main
from ipcbench.cli.explain import glossary, meanings
from ipcbench.render.table import number
from ipcbench.render.text import escape
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run, load_run
from tests.end_to_end.shell import ROOT
from tests.unit.builders import Cell, make_run

REFERENCE = ROOT / "results" / "reference"


@pytest.fixture(scope="module")
def reference() -> Run:
    return load_run(REFERENCE)


def lines_of(run: Run) -> list[str]:
    return [line for line, _ in screen(run, tables(run), f"results/{run.info.run_id}")]


def test_a_default_run_fits_on_one_screen(reference: Run) -> None:
    lines = lines_of(reference)
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    begins = r"dict of 10 to 10,000 entries, pickle, 3 readers, every_message; \d rounds( \+ a part)? in "
    assert re.match(begins, lines[0])
    assert any(line.startswith("shm ") and "█" in line and " block " in line for line in lines)
    assert sum(line.startswith("- ") for line in lines) == 3
    assert f"ipcbench recommend results/{reference.info.run_id} --size 55039" in lines[-1]


def test_the_answer_is_the_same_sentence_everywhere(reference: Run) -> None:
    made = tables(reference)
    middle = made.summary.settings[2].setting
    answer = recommend(reference, Question(middle.payload_bytes, middle.readers), summary=made.summary).sentence()
    assert answer in " ".join(" ".join(lines_of(reference)).split())
    assert " ".join(as_text(made).split()).startswith(answer)
    assert as_markdown(made).startswith(f"**{escape(answer)}**")
    assert headline_words(made).headlines[0].sentence == answer
    assert answer in [setting["answer"] for setting in json.loads(as_json(made))["settings"]]
    page = html.unescape(report_html(made, (), headline_words(made)))
    (heading,) = re.findall(r"<h1[^>]*>(.*?)</h1>", page)
    assert re.sub(r"</?span[^>]*>", "", heading) == answer


def test_what_others_gain_over_the_base_is_said(tmp_path: Path) -> None:
    cells = {
        (name, 10): Cell(latency_ns, rate_per_s=rate)
        for name, latency_ns, rate in (("old", 40_000.0, 1e4), ("alike", 40_200.0, 1e4), ("new", 10_000.0, 4e4))
    }
    lines = lines_of(make_run(tmp_path / "run", cells, base="old"))
    said = " ".join(" ".join(lines).split())
    latency = re.search(
        r"One-way p50 at 10 entries, compared with old: new ([\d.]+) \[\S+\] times as long; (.*?)\.", said
    )
    assert latency
    assert (float(latency[1]), latency[2]) == (pytest.approx(0.25, rel=0.03), "not told apart: alike")
    assert re.search(r"Messages/s at 10 entries, compared with old: new (3.9\d|4.0\d) ", said)
    few = {key: replace(cell, factors=(1.0, 1.0)) for key, cell in cells.items()}
    for run, words in ((make_run(tmp_path / "none", cells), 0), (make_run(tmp_path / "few", few, base="old"), 1)):
        said = " ".join(" ".join(lines_of(run)).split())
        assert "compared with old" not in said
        assert said.count("What others gain over old cannot be said") == words


def test_a_run_between_hosts_is_resumed_between_hosts(tmp_path: Path) -> None:
    """The printed command ended with an error, and the one that measures more did so on one host."""
    cells = {(name, 10): Cell(factors=(1.0,)) for name in ("tcp", "zmq")}
    hosts = ({"machine": {}}, {"machine": {}})
    run = make_run(tmp_path / "run", cells, hosts=hosts, status="interrupted", rounds_done=1)
    assert any(line.endswith(" --hosts HOSTS") and "--resume" in line for line in lines_of(run))
    answer = recommend(run, Question(64, 1)).sentence()
    command = re.search(r"ipcbench run .*", answer)
    assert command, answer
    assert " --hosts HOSTS --backends tcp" in command[0]
    assert "shm" not in command[0]


def test_of_many_backends_a_sentence_names_the_first(tmp_path: Path) -> None:
    """With 25 of them, the answer took ten lines."""
    names = ["shm", "lmdb", "pipe", "tcp", "zmq", "zmq-tcp", "redis", "nng", "iox2", "zenoh"]
    said = " ".join(" ".join(lines_of(make_run(tmp_path / "run", {(name, 10): Cell() for name in names}))).split())
    assert re.search(r"a tie between (\S+, ){4}\S+ and 5 more, no clear difference", said), said
    assert all(re.search(rf" {name} +[\d.]", said) for name in names), "the table has them all"


def test_what_was_left_out_and_what_failed_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(), ("zmq", 10): Cell(factors=(0.0, 1.0, 1.0))})
    assert any(line.startswith("failed: 2 trials of zmq: ") for line in lines_of(run))


def test_the_title_counts_the_rounds_behind_the_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(), ("zmq", 10): Cell()}, rounds_done=2, status="out of budget")
    assert "; out of budget, 2 rounds + a part in " in lines_of(run)[0]


def test_the_time_between_a_run_and_its_resumption_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(), ("zmq", 10): Cell()})
    late = [
        replace(trial, started_unix_s=trial.started_unix_s + 3600 * (trial.spec.round_index == 2))
        for trial in run.trials
    ]
    took = lines_of(replace(run, trials=tuple(late)))[0].rpartition(" in ")[2]
    assert 10 < float(took.removesuffix(" s")) < 20


@pytest.mark.parametrize(
    ("mode", "head", "absent"),
    [("pingpong", "trip µs", "k msg/s"), ("saturate", "k msg/s", "µs"), ("paced", "p50 µs", "k")],
)
def test_a_run_of_one_mode_shows_that_mode(tmp_path: Path, mode: str, head: str, absent: str) -> None:
    cells = {("shm", size): Cell() for size in (10, 1000)} | {("zmq", size): Cell(30_000.0, 5e4) for size in (10, 1000)}
    lines = lines_of(make_run(tmp_path / "run", cells, modes=(mode,)))
    heads = next(line for line in lines if head in line)
    assert absent not in heads.replace(head, "")
    assert not any("–" in line.split()[:4] for line in lines if line.startswith(("shm ", "zmq ")))
    assert not any("No recommendation" in line for line in lines)


def test_who_has_too_few_rounds_is_marked_and_takes_the_star_from_others(tmp_path: Path) -> None:
    """Nobody knows whether the one with a single round is ahead, so nobody has a mark; a far slower takes no star."""
    few = Cell(9_000.0, factors=(1.0,))
    lines = lines_of(make_run(tmp_path / "run", {("a", 10): few, ("b", 10): Cell(10_000.0), ("c", 10): Cell(40_000.0)}))
    rows = {line.split()[0]: line.split() for line in lines if line[:2] in {"a ", "b ", "c "}}
    assert "?" in rows["a"]
    assert not {"*", "="} & {mark for row in rows.values() for mark in row}
    assert any("? too few rounds to rank" in line for line in lines)
    slow = replace(few, latency_ns=90_000.0)
    lines = lines_of(
        make_run(tmp_path / "slow", {("a", 10): slow, ("b", 10): Cell(10_000.0), ("c", 10): Cell(40_000.0)})
    )
    assert any(line.startswith("b ") and line.split()[2] == "*" for line in lines)


def test_two_rounds_are_followed_by_the_command_for_more(tmp_path: Path) -> None:
    few = {("shm", 10): Cell(factors=(1.0, 1.0)), ("zmq", 10): Cell(factors=(1.0, 1.0))}
    complete = make_run(tmp_path / "complete", few, rounds=2)
    assert "enough to rank:       the same command with --rounds 3" in lines_of(complete)
    assert not any("--resume" in line for line in lines_of(complete))  # nothing is left to measure
    planned = {**complete.info.sweep, "rounds": 20}
    run = replace(complete, info=replace(complete.info, status="out of budget", rounds_done=1, sweep=planned))
    assert f"more rounds:          ipcbench run --resume results/{run.info.run_id}" in lines_of(run)
    assert any("no verdict between" in line for line in lines_of(run))


def test_the_commands_quote_the_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(), ("zmq", 10): Cell()}, status="interrupted")
    lines = [line for line, _ in screen(run, tables(run), "/tmp/b run")]
    commands = ("run --resume '/tmp/b run'", "analyze '/tmp/b run'", "recommend '/tmp/b run' --size 521")
    assert [line.partition(":")[2].strip() for line in lines[-3:]] == [f"ipcbench {command}" for command in commands]


def test_what_cannot_be_resumed_to_three_rounds_is_begun_anew(tmp_path: Path) -> None:
    cells = {("shm", 10): Cell(factors=(1.0,)), ("zmq", 10): Cell(factors=(1.0,))}
    run = make_run(tmp_path / "run", cells, rounds=1, status="out of budget", rounds_done=0)
    command = "enough to rank:       the same command with --rounds 3"
    assert f"{command} and a larger --budget" in lines_of(run)
    named = replace(run.info, status="complete", rounds_done=1, command=("ipcbench", "run", "--out", "here"))
    assert f"{command} and another --out" in lines_of(replace(run, info=named))
    assert not any("--resume" in line for line in lines_of(run))


def test_one_backend_alone_is_not_to_be_ranked(tmp_path: Path) -> None:
    lines = lines_of(make_run(tmp_path / "run", {("shm", 10): Cell(factors=(1.0,))}, rounds=1))
    assert not any("rank" in line or "--resume" in line for line in lines)


def test_one_backend_alone_has_no_mark_and_no_rank(tmp_path: Path) -> None:
    cells = {("shm", 10): Cell(), ("shm", 100): Cell(), ("zmq", 10): Cell(factors=(0.0, 0.0, 0.0))}
    run = make_run(tmp_path / "run", cells, skipped={"mpi": "no mpiexec"})
    lines = lines_of(run)
    assert not any("*" in line or "=" in line or "?" in line for line in lines), lines
    made = tables(run)
    assert [table.rows[0][0] for table in made.payload_tables] == ["–", "–"]
    words = ("A single backend at each size: there is nothing to compare it with.", "no marks: nothing to rank")
    assert {matrix.remarks for matrix in made.matrices} == {words}
    assert {cell["rank"] for setting in json.loads(as_json(made))["settings"] for cell in setting["cells"]} == {None}


def test_the_command_for_more_rounds_has_the_budget_that_they_will_take(tmp_path: Path) -> None:
    few = {("shm", 10): Cell(factors=(1.0, 1.0)), ("zmq", 10): Cell(factors=(1.0, 1.0))}
    lines = lines_of(make_run(tmp_path / "run", few, rounds=2, budget_s=8.0))
    (command,) = [line for line in lines if line.startswith("enough to rank")]
    assert 11.25 / 8.0 * 8.0 < float(command.partition(" --budget ")[2].removesuffix("s")) < 20


def test_a_column_of_too_few_rounds_beside_others_is_marked_as_such(tmp_path: Path) -> None:
    """Nothing else would tell it from one whose cells are clearly slower."""
    two = Cell(10_000.0, factors=(1.0, 1.01))
    cells = {("shm", 10): Cell(10_000.0), ("zmq", 10): Cell(40_000.0), ("shm", 100): two, ("zmq", 100): two}
    run = make_run(tmp_path / "run", cells)
    rows = {line.split()[0]: line.split() for line in lines_of(run) if line[:3] in {"shm", "zmq"}}
    assert rows["shm"].count("?") == rows["zmq"].count("?") == 2, "latency and throughput at 100"
    assert any("? too few rounds to rank" in line for line in lines_of(run))
    ranks = [[cell["rank"] for cell in setting["cells"]] for setting in json.loads(as_json(tables(run)))["settings"]]
    assert ranks == [[1, 2], [None, None]]


def test_the_first_look_has_figures_and_no_ranks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(10_000.0), ("zmq", 10): Cell(20_000.0)})
    table = so_far(run, 1)
    assert table.title == "first look: 1 round, no ranks yet"
    assert [row[:2] for row in table.rows] == [("shm", "10.0"), ("zmq", "20.0")]
    assert so_far(run, 4).title == "so far: 4 rounds, no ranks yet"


def test_the_figures_of_a_run_that_goes_on_are_those_of_its_end(reference: Run) -> None:
    """Its readers and rounds differ, and its turns have unlike numbers of samples."""
    settings = summarise(reference).settings
    for backend, *shown in so_far(reference, 3).rows:
        cells = [next(cell for cell in setting.cells if cell.backend == backend) for setting in settings]
        latencies = [number(cell.latency_p50_ns and cell.latency_p50_ns.estimate, 1e3) for cell in cells]
        assert shown == [*latencies, *(number(cell.throughput_per_s, 1e3) for cell in cells)]


def test_the_size_of_the_last_command_is_one_that_can_be_answered(tmp_path: Path) -> None:
    """The end of a budget may leave the middle size of all trials without a latency."""

    def without_latency(trial: TrialResult) -> TrialResult:
        return replace(trial, status="failed", reason="lost") if trial.spec.mode == "paced" else trial

    cells = {
        (name, size): Cell(change=without_latency) if size > 10 else Cell()
        for name in ("shm", "zmq")
        for size in (10, 1000, 4000)
    }
    (command,) = (line for line in lines_of(make_run(tmp_path / "run", cells)) if line.startswith("for your traffic"))
    assert command.endswith("--size 521")


def test_bars_and_waits_that_are_not_shown_are_not_explained(tmp_path: Path) -> None:
    """A run that ends early may have none of the middle size."""
    cells = {("shm", 10): Cell(), ("zmq", 10): Cell(), ("shm", 100): Cell(factors=(0.0,)), ("shm", 1000): Cell()}
    lines = lines_of(make_run(tmp_path / "run", cells))
    assert any(line.startswith("p50: one-way; ") for line in lines)
    assert not any("waits" in line or "█" in line for line in lines), lines


def test_every_word_of_the_glossary_and_of_the_heads_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert glossary() == (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), "python -m tests.docs_blocks"
    heads = ("waits", "Waits", "× best", "oversubscribed", "round trip", "=", "*", "n/a", "rank", "block", "shm")
    said = ("* best", "k messages/s", "enough to rank", "a part", "CPU time", "ahead", "Beware", "B / A", "flat out")
    verdicts = ("inconclusive", "regressed", "only one left", "No recommendation", "Expected", "Excluded", "tested")
    for word in (*heads, *said, *verdicts, "contradictory", "pin"):
        assert main(["explain", *word.split()]) == 0
        assert ": " in capsys.readouterr().out
    assert "none, in JSON" in meanings()["sureness"]
    assert main(["explain"]) == 0
    assert set(meanings()) <= {word.strip() for word in " ".join(capsys.readouterr().out.split()).split(", ")}
    assert main(["explain", "noisi"]) == 2
    assert "did you mean 'noisy'?" in capsys.readouterr().err
