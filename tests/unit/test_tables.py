"""The same numbers in every format, in at most 100 columns, with units; nothing of a run is left unsaid."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.analysis.report.render import as_csv, as_json, as_markdown, as_text, show
from ipcbench.analysis.report.tables import Tables, tables, wide_tables
from ipcbench.analysis.summary.wording import _needs_words, p99_words
from ipcbench.results.model import Integrity, TrialResult
from ipcbench.results.store import load_run
from ipcbench.spec import MODES
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_significant
from tests.end_to_end.shell import ROOT
from tests.unit.builders import CELLS, CONTRARY, MACHINE, Cell, Terminal, conditions, make_run, parts

GOLDEN = """\
For 521 B to 3 readers: shm, with one-way latency p50 10.0 µs [9.77 µs–10.2 µs]. Next is zmq, 3.00
  [2.87–3.13] times as long: one-way latency p50 30.0 µs [29.5 µs–30.5 µs]. Beware: noisy: 6 of 6
  trials of zmq. Sureness: moderate.

run: 20260102T030405Z-0a1b2c, complete, 3 rounds done, seed 1
machine: Example CPU, 8 cores, 16.0 GiB, Linux 6.1, CPython 3.11.7, ipcbench 0.1.0
harness floor: 400 ns writer and 600 ns reader per message; it is part of every figure
load: 4 processes on 8 cores
noise: two equal cells would differ by about 1.8 % in one-way latency (one standard deviation)
placement: a cache line takes 100 ns from one core to another, interpreter included

dict of 10 entries = 521 B, pickle, 3 readers, every_message
shm has the lowest one-way latency: 10.0 µs; next is zmq, 3.00 [2.87–3.13] times as long. Highest
  throughput: shm.
               one-way  one-way            × best      ×    read  decode
rank  backend   p50 µs   p99 µs            [95 %]  floor  p50 µs  p50 µs
------------------------------------------------------------------------
   1  shm         10.0     15.9                 1   10.0    7.00     241
   2  zmq         30.0     48.8  3.00 [2.87–3.13]   30.0    7.00     241
   –  bad            –        –                 –      –       –       –
               k msg/s /reader     MB/s  % of  CPU µs  CPU µs
rank  backend           [95 %]  /reader  copy  writer  reader  notes
------------------------------------------------------------------------
   1  shm        300 [293–307]      156  3.13    5.10    4.00
   2  zmq       100 [97.8–102]     52.1  1.04    5.10    4.00  a
   –  bad                    –        –     –       –       –  failed: b
a: noisy: 5% steal
b: reader-0 ended with exit code 1 (2 trials)

What stands out
- Decoding takes longer than transport: dict of 10 entries over shm, 241 µs to decode against at
  most 10.2 µs one way, 23.7 times. Also zmq at 1 size, 7.89 times.
  → Change what is sent before you change the transport: --codec msgpack, or --payload records
    --codec numpy.
"""


SHM = {("shm", 10): Cell()}


def tables_of(path: Path, cells=None, **changes) -> Tables:
    return tables(make_run(path / "run", cells or CELLS, **changes))


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def rows_of(text: str) -> list[list[str]]:
    """Return the words of every row; the parts of one that a wide table has in two places are put together."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        rows: dict[str, list[str]] = {}
        for line in block.splitlines():
            if re.match(r"\s*(\d+=?|–|\?)\s+\w", line):
                rank, backend, *rest = line.split()
                rows.setdefault(backend, [rank, backend]).extend(rest)
        found += rows.values()
    return found


def shown(tables: Tables, monkeypatch, **environment: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    show(tables, stream)
    return stream.getvalue()


def test_a_page_shows_the_interval_of_every_known_p99_and_none_of_an_unknown_one() -> None:
    found = tables(load_run(ROOT / "results" / "reference"))
    known = 0
    for setting, narrow, wide in zip(
        found.summary.settings, found.payload_tables, wide_tables(found.summary), strict=True
    ):
        (column,) = (at for at, head in enumerate(narrow.columns) if head.head == ("one-way", "p99 µs"))
        for cell, short, long in zip(setting.cells, narrow.rows, wide.rows, strict=True):
            if cell.latency_p99_ns is None:
                assert long[column] == short[column] == "n/a"
            known += "[" in long[column]
            assert long[column].startswith(short[column])
            assert short[:column] == long[:column]
    assert known


def test_the_cells_with_the_first_rank_of_a_matrix_are_marked(tmp_path: Path) -> None:
    for matrix in tables_of(tmp_path).matrices:
        marked = {
            (row, at) for row, texts in enumerate(matrix.rows) for at, text in enumerate(texts) if text[-1] in "*="
        }
        assert matrix.best_cells == marked != set()


def test_golden_text(tmp_path: Path) -> None:
    cells = {
        ("shm", 10): Cell(10_000.0, 300_000.0),
        ("zmq", 10): Cell(30_000.0, 100_000.0, factors=(0.99, 1.0, 1.01), notes=("noisy: 5% steal",)),
        ("bad", 10): Cell(factors=(0.0,)),
    }
    found = tables_of(tmp_path, cells, readers=3, rounds=3)
    assert as_text(found).splitlines()[:-22] == GOLDEN.splitlines()


def test_a_run_that_used_up_its_budget_says_how_much_that_was(tmp_path: Path) -> None:
    found = tables_of(tmp_path, SHM, status="out of budget")
    words = "20 rounds done; the budget of 100 s left no time for more, seed 1"
    assert f"run: 20260102T030405Z-0a1b2c, {words}" in as_text(found)
    for planned, again in ((20, "; --resume goes on with as much again"), (2, "")):
        few = tables_of(tmp_path / str(planned), SHM, status="out of budget", rounds=planned, rounds_done=1)
        words = f"1 round done; the budget of 100 s left no time for more{again}, seed 1"
        assert words in " ".join(as_text(few).split())


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("complete", "complete, 20 rounds done; every median is known to within 2 %"),
        ("out of budget", "no time for more; not every median is known to within 2 %"),
        ("interrupted", "interrupted in round 21, 20 rounds done, seed 1"),
    ],
)
def test_a_run_for_precision_says_whether_it_was_reached(tmp_path: Path, status: str, words: str) -> None:
    assert words in " ".join(as_text(tables_of(tmp_path, SHM, status=status, precision_ratio=0.02)).split())


def test_after_two_rounds_there_are_ratios_without_intervals(tmp_path: Path) -> None:
    cells = {("shm", 10): Cell(factors=(1.0, 1.01)), ("zmq", 10): Cell(30_000.0, 100_000.0, factors=(1.0, 1.01))}
    (table,) = tables_of(tmp_path, cells, rounds=2).payload_tables
    text = as_text(tables_of(tmp_path / "again", cells, rounds=2))
    assert [row[4] for row in table.rows] == ["1", "3.00"]
    assert "next is" not in text
    assert "would differ by" not in text


def test_the_title_says_kind_entries_and_bytes(tmp_path: Path) -> None:
    assert [table.title for table in tables_of(tmp_path).payload_tables] == [
        "dict of 10 entries = 521 B, pickle, 1 reader, every_message",
        "dict of 1,000 entries = 55,039 B, pickle, 1 reader, every_message",
    ]


@pytest.mark.parametrize(
    ("size", "changes", "title"),
    [
        (65536, {"payload": "bytes", "codec": "raw"}, "bytes of 64 KiB = 65,536 B, raw, 1 reader, every_message"),
        (1, {}, "dict of 1 entry = 88 B, pickle, 1 reader, every_message"),
        (10, {"touch": "all", "pin": "auto", "wait": "spin"}, "dict of 10 entries = 521 B, pickle, 1 reader, "
         "every_message, readers touch all, waiting by spin, pinned auto"),
    ],
)  # fmt: skip
def test_titles_of_other_settings(tmp_path: Path, size: int, changes: dict, title: str) -> None:
    assert tables_of(tmp_path, {("shm", size): Cell()}, **changes).payload_tables[0].title == title


def test_the_same_numbers_in_every_format(tmp_path: Path, monkeypatch) -> None:
    found = tables_of(tmp_path)
    text_rows = [row for row in rows_of(as_text(found)) if len(row) > 8]
    rich_rows = [row for row in rows_of(plain(shown(found, monkeypatch))) if len(row) > 8]
    markdown_rows = [line for line in as_markdown(found).splitlines() if re.match(r"\| \d", line)]
    records = list(csv.DictReader(io.StringIO(as_csv(found))))
    cells = [cell for setting in json.loads(as_json(found))["settings"] for cell in setting["cells"]]
    assert text_rows == rich_rows
    assert len(records) == len(cells) == len(text_rows) == len(markdown_rows) == 4
    assert [row.replace("\\", "").replace("|", "").split() for row in markdown_rows] == text_rows
    for row, record, cell in zip(text_rows, records, cells, strict=True):
        assert row[1] == record["backend"] == cell["backend"]
        for name, value in cell.items():
            if isinstance(value, float):
                assert float(record[name]) == value
        ratio = "1" if cell["ratio_to_best"] == 1 else format_significant(cell["ratio_to_best"])
        assert row[2:5] == [*(format_significant(cell[f"latency_{name}_us"]) for name in ("p50", "p99")), ratio]
        figures = (
            *(cell[name] for name in ("latency_of_harness_floor_ratio", "read_p50_us", "decode_p50_us")),
            cell["throughput_messages_per_s"] / 1e3,
            cell["throughput_mb_per_s"],
            100 * cell["throughput_of_memory_copy_ratio"],
            *(cell[f"{role}_cpu_us_per_message"] for role in ("writer", "reader")),
        )
        shown_figures = [word for word in row[5:] if not word.startswith("[")]
        assert shown_figures == [format_significant(figure) for figure in figures]


def test_units_are_right_by_construction(tmp_path: Path) -> None:
    """A latency of 5.74 ms is 5,740 µs, and 577,129 B a thousand times a second are 577 MB/s: never off by 1000."""
    found = tables_of(tmp_path, {("shm", 10_000): Cell(5_740_000.0, 1_000.0)})
    (record,) = csv.DictReader(io.StringIO(as_csv(found)))
    (row,) = rows_of(as_text(found))
    for latency, throughput in ((record["latency_p50_us"], record["throughput_mb_per_s"]), (row[2], row[10])):
        assert float(latency.replace(",", "")) == pytest.approx(5_740, rel=0.01)
        assert float(throughput.replace(",", "")) == pytest.approx(577.129, rel=0.01)
    assert re.search(r"5\.7\d ms", found.payload_tables[0].remarks[0])


def test_every_quantity_in_the_csv_names_its_unit(tmp_path: Path) -> None:
    head = as_csv(tables_of(tmp_path)).splitlines()[0].split(",")
    assert len(head) == len(set(head))
    units = ("_us", "_per_s", "_us_per_message", "_ratio", "_count", "_bytes", "_rank", "_best", "_low", "_high")
    words = {"run_id", "delivery", "payload", "size", "codec", "readers", "depth", "wait", "pin", "touch", "backend"}
    words |= {"status", "reason", "ranked_by", "rank", "notes", "neighbours"}
    words |= {"latency_waits", "round_trip_waits", "throughput_waits"}
    assert [name for name in head if name not in words and not name.endswith(units)] == []


@pytest.mark.parametrize(
    ("modes", "scale"),
    [(("paced", "saturate"), 1e-2), (("paced", "pingpong", "saturate"), 1e5), (("saturate",), 1.0)],
)
def test_nothing_is_wider_than_a_hundred_columns(tmp_path: Path, monkeypatch, modes, scale: float) -> None:
    names = ("shm", "mpi-pkl5", "a_package.of.somebody:TheirOwnBackend")
    cells = {
        (name, size): Cell(12_345.0 * scale * (9 + index), 123_456 / scale, 98_765.0 * scale, factors=(1.0, 30.0, 0.1))
        for index, name in enumerate(names)
        for size in (1, 10, 100, 1000, 10_000, 20_000, 30_000, 40_000, 50_000)
    }
    found = tables_of(tmp_path, cells, modes=modes)
    for text in (as_text(found), plain(shown(found, monkeypatch, COLUMNS="200"))):
        assert max(len(line) for line in text.splitlines()) <= 100
        assert text.count("…OwnBackend"[1:]) >= 9
    assert as_text(found).isprintable() is False  # line ends only
    assert "\x1b" not in as_text(found)


def test_a_table_too_wide_is_continued_below_with_the_names_again(tmp_path: Path) -> None:
    found = tables_of(tmp_path)
    lines = as_text(found, width=60).splitlines()
    assert max(len(line) for line in lines) <= 60
    assert sum(re.match("rank +backend", line) is not None for line in lines) >= 4


def test_a_narrow_terminal_loses_no_digit(tmp_path: Path, monkeypatch) -> None:
    found = tables_of(tmp_path)
    assert rows_of(plain(shown(found, monkeypatch, COLUMNS="50"))) == rows_of(as_text(found))


def test_a_pipe_gets_plain_text(tmp_path: Path) -> None:
    stream = io.StringIO()
    found = tables_of(tmp_path)
    show(found, stream)
    assert stream.getvalue() == as_text(found)


def test_no_color_is_honoured(tmp_path: Path, monkeypatch) -> None:
    text = shown(tables_of(tmp_path), monkeypatch, NO_COLOR="1")
    assert set(re.findall(r"\x1b\[([0-9;]*)m", text)) <= {"0", "1", "2"}  # bold and dim, no colour


def test_a_dumb_terminal_gets_no_escape_sequence(tmp_path: Path, monkeypatch) -> None:
    assert "\x1b" not in shown(tables_of(tmp_path), monkeypatch, TERM="dumb")


def test_markup_in_foreign_text_is_text(tmp_path: Path, monkeypatch) -> None:
    def fail(trial: TrialResult) -> TrialResult:
        return replace(trial, status="failed", reason="[bold]x[/] | <b>y</b>\n\x1b[31mred :smile:")

    found = tables_of(tmp_path, {("a|b", 10): Cell(change=fail), **SHM})
    for text in (plain(shown(found, monkeypatch)), as_text(found)):
        assert "[bold]x[/] | <b>y</b> [31mred :smile: (6 trials)" in text
    markdown = as_markdown(found)
    assert r"\[bold\]x\[/\] \| \<b\>y\</b\>" in markdown
    assert {line.count("|") - line.count("\\|") for line in markdown.splitlines() if line.startswith("|")} == {15}
    assert r"| a\|b |" in markdown
    assert list(csv.DictReader(io.StringIO(as_csv(found))))[1]["backend"] == "a|b"


def test_p99_of_too_few_samples_is_not_available(tmp_path: Path) -> None:
    found = tables_of(tmp_path, {("shm", 10): Cell(factors=(1.0,))})
    assert rows_of(as_text(found))[0][3] == "n/a"
    assert json.loads(as_json(found))["settings"][0]["cells"][0]["latency_p99_us"] is None


def test_columns_that_nothing_was_measured_for_are_not_shown(tmp_path: Path) -> None:
    found = tables_of(tmp_path, SHM, modes=("saturate",))
    heads = [column.head for column in found.payload_tables[0].columns]
    assert ("one-way", "p50 µs") not in heads
    assert ("MB/s", "/reader") in heads
    assert not any(line.startswith(("one-way", "round trip")) for line in found.legend)


def test_shared_ranks_are_marked(tmp_path: Path) -> None:
    found = tables_of(tmp_path, {("a", 10): Cell(), ("b", 10): Cell(), ("c", 10): Cell(90_000.0)})
    assert [row[0] for row in rows_of(as_text(found))] == ["1=", "1=", "3"]


@pytest.mark.parametrize(
    ("cells", "beginning"),
    [
        ({("a", 10): Cell()}, "Only a has a one-way latency: 10.0 µs."),
        ({("a", 10): Cell(), ("b", 10): Cell(10_050.0)}, "No clear difference in one-way latency between a and b: "),
        ({("a", 10): Cell(), ("b", 10): Cell(90_000.0)}, "a has the lowest one-way latency: 10.0 µs; next is b, "),
        ({("a", 10): Cell(factors=(0.0,))}, "No verdict: every trial failed."),
        ({("a", 10): Cell(), ("b", 10): Cell(factors=(0.0,))}, "Only a has a one-way latency"),
    ],
)
def test_verdicts_claim_no_more_than_is_known(tmp_path: Path, cells, beginning: str) -> None:
    assert tables_of(tmp_path, cells).payload_tables[0].remarks[0].startswith(beginning)


def test_a_tie_with_a_slower_one_has_nothing_next_to_it(tmp_path: Path) -> None:
    steady, wild = (1.0, 1.01, 0.99) * 4, (1.6, 0.7, 1.4, 0.9) * 3
    cells = {("a", 10): Cell(factors=steady), ("b", 10): Cell(14_000.0, factors=wild)}
    cells["c", 10] = Cell(13_000.0, factors=steady)
    remark = tables_of(tmp_path, cells).payload_tables[0].remarks[0]
    assert remark.startswith("No clear difference in one-way latency between a and b: 10.0 µs and ")
    assert "; the first told apart from a is c, 1.30 [" in remark


def test_messages_that_went_wrong_are_named_where_every_trial_failed(tmp_path: Path) -> None:
    lossy = Cell(change=parts(integrity=Integrity(lost_count=1)))
    remark = tables_of(tmp_path, {("a", 10): lossy}).payload_tables[0].remarks[0]
    assert remark.startswith("No verdict: every trial failed. Beware: messages lost")
    assert remark.endswith(" trials of a.")


def test_a_backend_whose_samples_are_gone_is_named_in_the_verdict(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("a", 10): Cell(), ("b", 10): Cell(90_000.0), ("c", 10): Cell(95_000.0)})
    for trial in run.trials:
        if trial.spec.backend == "a" and trial.spec.mode == "paced":
            (run.path / "samples" / f"{trial.trial_id}.npz").unlink()
    remark = tables(load_run(run.path)).payload_tables[0].remarks[0]
    assert "; not ranked, for want of their samples: a." in remark


def test_a_backend_that_has_a_rank_alone_crosses_no_other(tmp_path: Path) -> None:
    short = Cell(20_000.0, factors=(1.0, 0.0, 0.0))
    cells = {(name, size): cell for name, cell in (("a", Cell()), ("b", short)) for size in (10, 100)}
    (matrix, *_) = tables_of(tmp_path, cells).matrices
    assert not any(remark.startswith("No crossover:") for remark in matrix.remarks)


def test_a_verdict_says_which_metric_has_no_figure_and_ranks_by_another(tmp_path: Path) -> None:
    def without_latency(trial: TrialResult) -> TrialResult:
        return replace(trial, status="failed", reason="it broke") if trial.spec.mode == "paced" else trial

    cells = {("a", 10): Cell(rate_per_s=1e4), ("b", 10): Cell(rate_per_s=4e4)}
    cells = {key: replace(cell, change=without_latency) for key, cell in cells.items()}
    remark = tables_of(tmp_path, cells).payload_tables[0].remarks[0]
    assert remark.startswith("b has the highest throughput: 40.0 k messages/s; next is a")
    assert "No one-way latency: all 6 paced trials failed; the first: it broke." in remark


def test_figures_that_cannot_be_ranked_are_not_called_nothing(tmp_path: Path) -> None:
    """A single round whose samples are lost has a throughput without an interval."""
    cells = {("a", 10): Cell(factors=(1.0,))}
    make_run(tmp_path / "run", cells, modes=("saturate",))
    for path in (tmp_path / "run" / "samples").iterdir():
        path.unlink()
    (table,) = tables(load_run(tmp_path / "run")).payload_tables
    assert table.remarks[0] == "No verdict: no figure can be ranked. No throughput: too few samples."


def test_lost_files_of_samples_are_not_called_too_few_samples_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {("a", 10): Cell(), ("b", 10): Cell(20_000.0)})
    for path in (tmp_path / "run" / "samples").iterdir():
        path.unlink()
    (table,) = tables(load_run(tmp_path / "run")).payload_tables
    assert "No one-way latency: too few samples (those of 6 trials are missing or unusable)." in table.remarks[0]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(0.482, "8 cores; other processes took 48 % of the CPU time"), (0.049, "8 cores"), (None, "8 cores")],
)
def test_the_head_says_what_neighbours_took(tmp_path: Path, ratio: float | None, words: str) -> None:
    def beside(trial: TrialResult) -> TrialResult:
        return replace(trial, conditions=replace(conditions(), others_cpu_ratio=ratio))

    head = as_text(tables_of(tmp_path, {("a", 10): Cell(change=beside)}))
    assert f"load: 2 processes on {words}\n" in head


def test_the_head_says_beside_whom_it_was_measured(tmp_path: Path) -> None:
    cells = {("a", 10): Cell(beside={2: Cell(20_000.0)})}
    head = as_text(tables_of(tmp_path, cells, modes=("paced",), neighbours=(0, 2)))
    assert "load: 2 processes on 8 cores; without neighbours and beside 2 busy neighbours\n" in head


@pytest.mark.parametrize("rounds", [2, 3])
def test_an_interval_takes_three_rounds_in_data_too(tmp_path: Path, rounds: int) -> None:
    factors = (1.0, 1.01, 0.99)[:rounds]
    cells = {("a", 10): Cell(factors=factors), ("b", 10): Cell(30_000.0, factors=factors)}
    rows = list(csv.DictReader(io.StringIO(as_csv(tables_of(tmp_path, cells, rounds=rounds)))))
    (slower,) = (row for row in rows if row["backend"] == "b")
    assert float(slower["ratio_to_best"]) == pytest.approx(3.0, rel=0.05)
    given = {field for field, value in slower.items() if value and ("_low" in field or "_high" in field)}
    measured = {"ratio_to_best", "latency_p50", "latency_p99", "throughput_messages"}
    assert {field.partition("_low")[0].partition("_high")[0] for field in given} == (measured if rounds == 3 else set())


def test_a_tie_of_figures_far_apart_gives_the_interval_that_decided(tmp_path: Path) -> None:
    """Else "no clear difference in round trip" beside figures that differ tenfold says nothing of why."""
    wild = {"b": (8.0, 0.3, 60.0, 4.0), "c": (1.1, 0.9, 1.0, 1.05)}
    cells = {("a", 10): Cell(factors=(1.0, 1.01, 0.99, 1.0))} | {
        (name, 10): Cell(factors=factors) for name, factors in wild.items()
    }
    remark = tables_of(tmp_path, cells, modes=MODES, rounds=4).payload_tables[0].remarks[0]
    found = re.search(
        r"No clear difference in round trip \(although b takes (\S+) \[(\S+)–\S+\] times as long as a by the rounds; "
        r"about \d+ more rounds would decide\)\.",
        remark,
    )
    assert found, remark
    assert float(found[1]) > 1.5
    assert float(found[2].lstrip("<")) < 1.0


def test_leaders_by_another_metric_are_not_said_to_lead_those_that_were_not_ranked(tmp_path: Path) -> None:
    """a, by far the fastest, has its throughput in two rounds of four."""

    def few(trial: TrialResult) -> TrialResult:
        failed = trial.spec.mode == "saturate" and trial.spec.round_index > 1
        return replace(trial, status="failed", reason="it broke") if failed else trial

    four = (1.0, 1.01, 0.99, 1.0)
    cells = {("a", 10): Cell(rate_per_s=9e5, factors=four, change=few)}
    cells |= {(name, 10): Cell(rate_per_s=rate, factors=four) for name, rate in (("b", 1e5), ("c", 1e4))}
    remark = tables_of(tmp_path, cells, modes=MODES, rounds=4).payload_tables[0].remarks[0]
    assert " Highest throughput: b; not ranked, for want of rounds: a." in remark


def test_messages_that_went_wrong_are_said_beside_a_leader(tmp_path: Path) -> None:
    def torn(trial: TrialResult) -> TrialResult:
        if trial.spec.mode != "saturate":
            return trial
        trial = replace(trial, status="failed", reason="torn")
        return parts("", "reader", integrity=Integrity(9, 9, 0, 0, 0, 1))(trial)

    remark = tables_of(tmp_path, {("a", 10): Cell(change=torn), ("b", 10): Cell(90_000.0)}).payload_tables[0].remarks[0]
    assert "Beware: messages lost, duplicated, reordered or torn: 3 of 6 trials of a; failed: 3 of 6 trials" in remark
    assert remark.startswith("a has the lowest one-way latency, although messages of it went wrong: ")


def test_twins_that_need_unlike_numbers_of_rounds_are_told_apart(tmp_path: Path) -> None:
    """Else a twin that a thousand rounds would not tell from the best hides that three more would tell the third."""
    needs = {"b": 89, "c": 3}
    assert _needs_words(needs, "a") == "about 3 more rounds would tell c from a and about 89 more rounds would tell b"
    assert _needs_words({"b": 4, "c": 3}, "a") == "about 4 more rounds would decide"
    assert _needs_words({"b": None, "c": 1}, "a") == (
        "about 1 more round would tell c from a and 100 more rounds would not tell b"
    )
    assert _needs_words({"b": None}, "a") == "100 more rounds would not tell b from a"


def test_verdict_by_throughput(tmp_path: Path) -> None:
    cells = {("a", 10): Cell(rate_per_s=1e4), ("b", 10): Cell(rate_per_s=4e4)}
    remark = tables_of(tmp_path, cells, modes=("saturate",)).payload_tables[0].remarks[0]
    assert remark.startswith("b has the highest throughput: 40.0 k messages/s; next is a")


def test_what_all_cells_bear_is_said_once(tmp_path: Path) -> None:
    cells = {(name, 10): Cell(notes=("oversubscribed",)) for name in ("a", "b")}
    (table,) = tables_of(tmp_path, cells).payload_tables
    assert table.remarks[1:] == ("All: oversubscribed.",)
    assert table.footnotes == ()


def test_more_notes_than_letters(tmp_path: Path) -> None:
    cells = {(f"b{index}", 10): Cell(notes=(f"stamp {index}",)) for index in range(30)}
    letters = [letter for letter, _ in tables_of(tmp_path, cells).payload_tables[0].footnotes]
    assert letters[24:] == ["y", "z", "aa", "ab", "ac", "ad"]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"readers": 3, "machine": {**MACHINE, "usable_cores": 2.0}},
         ["load: 4 processes on 2 cores: oversubscribed.*"]),
        ({"machine": {}, "versions": {}, "floor": None},
         ["machine: unknown CPU, unknown number of cores", "load: 2 processes on an unknown number of cores"]),
        ({"delivery": "latest_value"}, [".*never compare these figures with every_message.*"]),
        ({"status": "interrupted", "skipped": {"mpi": "not installed; pip install ipcbench"}},
         ["run: .*interrupted.*", "left out: mpi: not installed; pip install ipcbench"]),
    ],
    ids=["oversubscribed", "unknown machine", "latest_value", "interrupted"],
)  # fmt: skip
def test_the_header_says(tmp_path: Path, changes: dict, lines: list[str]) -> None:
    found = tables_of(tmp_path, SHM, **changes)
    assert [line for line in lines if not any(re.fullmatch(line, said) for said in found.header)] == []
    assert found.payload_tables[0].title.endswith(changes.get("delivery", "every_message"))


def test_problems_are_in_the_header(tmp_path: Path) -> None:
    run = replace(make_run(tmp_path / "run", SHM), problems=("trials.jsonl: line 25 is cut off",))
    assert "problem: trials.jsonl: line 25 is cut off" in tables(run).header


def test_a_crossover_is_visible(tmp_path: Path) -> None:
    latencies = {10: (10_000.0, 40_000.0), 100: (30_000.0, 30_000.0), 1000: (90_000.0, 20_000.0)}
    cells = {(name, size): Cell(p50) for size, both in latencies.items() for name, p50 in zip("ab", both, strict=True)}
    latency, throughput = tables_of(tmp_path, cells).matrices
    assert latency.title == "One-way latency p50, µs: dict, pickle, 1 reader, every_message"
    assert latency.remarks[0].startswith("Crossover at 5,")  # both have 30 µs at 5,105 B
    assert "between 521 B and 55,039 B: a has the lower one-way latency below, b above." in latency.remarks[0]
    assert [row[0] for row in latency.rows] == ["a", "b"]
    assert [row[1].split()[1:] for row in latency.rows] == [["*"], []]
    assert [row[2].split()[1] for row in latency.rows] == ["=", "="]
    assert latency.rows[1][3].split()[1] == "*"
    assert throughput.remarks[0].startswith("No crossover: b and a have the first rank")


def test_no_crossover_is_claimed_where_ranks_overlap(tmp_path: Path) -> None:
    cells = {("a", 10): Cell(), ("b", 10): Cell(), ("a", 100): Cell(30_000.0), ("b", 100): Cell(90_000.0)}
    latency, _ = tables_of(tmp_path, cells).matrices
    assert latency.remarks[0] == "No crossover: a has the first rank at every size, alone or shared."


def test_a_single_size_needs_no_matrix(tmp_path: Path) -> None:
    assert tables_of(tmp_path, SHM).matrices == ()


def test_a_run_without_trials_has_a_header_and_no_table(tmp_path: Path) -> None:
    found = tables_of(tmp_path, {(name, 10): Cell(factors=()) for name in ("shm", "zmq")})
    assert found.payload_tables == ()
    assert "problem: size 10: no trial was made; the run is complete" in found.header
    assert as_csv(found) == "run_id\n"
    assert json.loads(as_json(found))["settings"] == []
    assert as_text(found).startswith("run: ")
    assert as_markdown(found).startswith("- run: ")


def test_csv_and_json_hold_what_the_text_leaves_out(tmp_path: Path) -> None:
    found = tables_of(tmp_path)
    cell = json.loads(as_json(found))["settings"][0]["cells"][1]
    assert cell["latency_p50_low_us"] < cell["latency_p50_us"] < cell["latency_p50_high_us"]
    assert cell["throughput_messages_low_per_s"] < cell["throughput_messages_high_per_s"]
    assert cell["latency_of_harness_floor_ratio"] == pytest.approx(cell["latency_p50_us"])
    assert cell["offered_rate_per_s"] == 1000.0
    assert cell["write_p50_us"] == 3.0


@pytest.mark.parametrize(
    ("modes", "words"),
    [
        (("paced", "saturate"), "No verdict on one-way latency: "),
        (("saturate", "pingpong"), "No verdict on round trip: "),
        (("paced", "pingpong"), "No verdict on round trip: "),
    ],
)
def test_there_is_no_verdict_where_rounds_contradict_the_figures(tmp_path: Path, modes, words: str) -> None:
    run = make_run(tmp_path / "run", {(name, 10): cell for name, cell in CONTRARY.items()}, modes=modes)
    (table,) = tables(run).payload_tables
    assert words in table.remarks[0]
    assert "by the rounds b would be faster than a; messages are of several kinds" in table.remarks[0]
    assert "No clear difference in round trip" not in table.remarks[0]


def test_rounds_enough_are_not_told_as_their_least_number(tmp_path: Path) -> None:
    cells = {("a", 10): Cell(factors=(1.0,) * 5), ("b", 10): Cell(factors=(1.0, 1.0, 0.0))}
    (table,) = tables_of(tmp_path, cells).payload_tables
    assert table.remarks[0].startswith("No verdict: only a has at least 3 rounds")


@pytest.mark.parametrize(
    ("p50_us", "low_us", "shown"),
    [
        (53.949, 53.949, "n/a"),
        (53.949, 53.95, "≥ 53.9"),
        (50.0, 54.9, "≥ 54"),
        (31.6, 31.5, "n/a"),
        (0.9, 0.999, "≥ 0.99"),
    ],
)
def test_the_lower_end_of_a_p99_is_above_the_median_and_cut(p50_us: float, low_us: float, shown: str) -> None:
    p50, p99 = (Interval(us * 1e3, us * 1e3, us * high) for us, high in ((p50_us, 1e3), (low_us, 1e5)))
    assert p99_words(p50, p99) == shown


def test_a_tie_with_a_backend_that_lost_messages_names_it(tmp_path: Path) -> None:
    lost = parts("saturate", "reader", integrity=Integrity(10, 9, 1))
    cells = {("a", 10): Cell(), ("b", 10): Cell(change=lost)}
    (table,) = tables_of(tmp_path, cells).payload_tables
    words = "between (a and b|b and a), although messages of b went wrong: "
    assert re.match(f"No clear difference in .* {words}", table.remarks[0])
