"""Each rule speaks just above its threshold and is silent just below; a finding never stands without its figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipcbench.analysis.findings import RULES, Finding, explain
from ipcbench.analysis.report.render import FINDINGS_TITLE, as_markdown, as_text
from ipcbench.analysis.report.tables import Tables, tables
from ipcbench.analysis.summary.summary import summarise
from ipcbench.backend import Waits
from ipcbench.results.model import Floor, Integrity, TrialResult
from ipcbench.results.store import Run, load_run
from tests.unit.builders import MACHINE, START_NS, Cell, make_run, parts, quantiles, usage

SIZE = 2**20
THRESHOLDS = {rule.name: rule.threshold for rule in RULES}


def each(mode: str, role: str = "reader", **changes: Any) -> Callable[[TrialResult], TrialResult]:
    """Return what changes these fields of the endpoints of a role, in trials of a mode; decoding takes no time."""
    return lambda trial: parts(mode, role, **changes)(parts(decode=None)(trial))


def run_of(path: Path, *cells: Cell, sizes: tuple[int, ...] = (SIZE,), **changes) -> Run:
    """Store a run of one backend on a machine where nothing else is worth saying."""
    plain = {"floor": Floor(400.0, 600.0, 45.0, 1.0, {}), "payload": "bytes", "codec": "raw", **changes}
    return make_run(path / "run", {("a", size): cell for size, cell in zip(sizes, cells, strict=True)}, **plain)


QUIET = each("paced")


def decoding(path: Path, ratio: float) -> Run:
    return run_of(path, Cell(10_000.0, change=each("paced", decode=quantiles(10_000.0 * ratio))))


def spinning(path: Path, share: float) -> Run:
    return run_of(path, Cell(change=each("paced", usage=usage(share))))


def oversubscription(path: Path, ratio: float) -> Run:
    return run_of(path, Cell(change=QUIET), machine={**MACHINE, "usable_cores": 2.0 / ratio})


def copies(path: Path, count: float) -> Run:
    """Writer and reader each use half of that many copies' time; the machine copies 1 MiB in 100 µs."""
    floor = Floor(400.0, 600.0, 45.0, 1.0, {str(SIZE): SIZE / 100e-6})
    return run_of(path, Cell(change=each("saturate", "", usage=usage(1000 * count * 50e-6))), floor=floor)


def small_messages(path: Path, share: float) -> Run:
    """A message of n bytes takes `share` µs + (1 − share)/2000 µs a byte: 1 µs at 2,000 bytes."""
    sizes = (2000, 20_000)
    rates = [1e6 / (share + (1.0 - share) * size / 2000) for size in sizes]
    return run_of(path, *(Cell(rate_per_s=rate, change=QUIET) for rate in rates), sizes=sizes)


def tail(path: Path, ratio: float) -> Run:
    """Latencies are log-normal: p99 is 10.2 times p50 at a spread of 1, and 16.3 times at 1.2."""
    return run_of(path, Cell(spread=1.2 if ratio > THRESHOLDS["tail"] else 0.9, change=QUIET))


def back_pressure(path: Path, share: float) -> Run:
    """1,000 messages in one second, all of it inside write; for that share the writer does not use the CPU. The stamped
    calls take twice as long as the others can.
    """
    call = replace(quantiles(1.0), mean_ns=2e6)
    return run_of(path, Cell(change=each("saturate", "writer", call=call, usage=usage(1.0 - share))))


def slow_reader(path: Path, ratio: float) -> Run:
    slow = each("paced", "reader-1", latency=quantiles(10_000.0 * ratio))
    return run_of(path, Cell(10_000.0, change=slow), readers=3)


def unlike_waits(path: Path, share: float) -> Run:
    """The waits of b all end after it has slept, those of a less often by that share."""
    count = round(1000 * share)
    cells = {
        (name, SIZE): Cell(round_trip_ns=trip_ns, change=each("pingpong", "", usage=replace(usage(), waits=waits)))
        for name, trip_ns, waits in (("a", 3e3, Waits(count, 0, 1000 - count)), ("b", 3e4, "block"))
    }
    return make_run(path / "run", cells, modes=("pingpong",), payload="bytes", codec="raw")


MAKERS = {
    "decoding dominates": decoding,
    "spinning": spinning,
    "unlike waits": unlike_waits,
    "oversubscription": oversubscription,
    "copies": copies,
    "small messages": small_messages,
    "tail": tail,
    "back-pressure": back_pressure,
    "slow reader": slow_reader,
}
NEEDLES = {
    "decoding dominates": r"10\.\d µs to decode against at most \d+\.\d µs one way",
    "spinning": r"each reader uses 5\d\.\d % of a core at 95\.4 messages/s",
    "unlike waits": r"47\.0 % of the waits ended after the endpoint had slept, over b 100 %",
    "oversubscription": r"2 processes share 1\.\d+ cores",
    "copies": r"use 2\d\d µs of CPU time per message, 2\.\d+ times as much as one copy of it \(100 µs\)",
    "small messages": r"8\d\.\d % of the 1\.00 µs that a message of 2,000 B takes does not depend on its size",
    "tail": r"one-way p99 at least \d+ µs against p50 [\d.]+ µs, 1\d\.\d times",
    "back-pressure": r"5\d\.\d % of the time, at 100,000 messages/s",
    "slow reader": r"slowest reader \(mostly reader-1\) is at least 2\.\d+ times that of the fastest",
}


def found(run: Run) -> dict[str, Finding]:
    return {finding.rule: finding for finding in explain(summarise(run))}


@pytest.mark.parametrize("name", MAKERS)
def test_a_rule_speaks_above_its_threshold_with_its_figures(tmp_path: Path, name: str) -> None:
    findings = found(MAKERS[name](tmp_path, 1.06 * THRESHOLDS[name]))
    assert set(findings) == {name}
    finding = findings[name]
    assert re.search(NEEDLES[name], finding.sentence), finding.sentence
    assert finding.threshold == THRESHOLDS[name]
    assert finding.action
    assert finding.evidence[0].value > finding.threshold
    assert finding.evidence[0].figures
    assert (finding.evidence[0].backend, finding.as_dict()["evidence"][0]["backend"]) == ("a", "a")


@pytest.mark.parametrize("name", MAKERS)
def test_a_rule_is_silent_below_its_threshold(tmp_path: Path, name: str) -> None:
    assert found(MAKERS[name](tmp_path, 0.94 * THRESHOLDS[name])) == {}


def test_every_rule_is_tested() -> None:
    assert {*MAKERS, "broken promise"} == set(THRESHOLDS)


def test_a_message_that_went_wrong_is_a_finding_after_a_single_trial(tmp_path: Path) -> None:
    def losing(trial: TrialResult) -> TrialResult:
        trial = replace(trial, status="failed", reason="lost")
        return parts("saturate", "reader", integrity=Integrity(10, 9, 1))(trial)

    cell = Cell(factors=(1.0,), change=lambda trial: losing(trial) if trial.spec.mode == "saturate" else QUIET(trial))
    finding = found(run_of(tmp_path, cell))["broken promise"]
    assert "over a: messages lost, duplicated, reordered or torn in 1 of 2 trials." in finding.sentence
    assert finding.evidence[0].figures == {"wrong_count": 1, "trials_count": 2}


def test_the_documented_thresholds_are_those_of_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "method.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([a-z -]+) \| .* \| ([\d.]+) \|$", page, flags=re.MULTILINE))
    assert {name: float(rows[name]) for name in THRESHOLDS} == THRESHOLDS


def test_every_finding_of_the_reference_run_holds_figures() -> None:
    findings = explain(summarise(load_run(Path(__file__).parents[2] / "results" / "reference")))
    assert {"oversubscription", "decoding dominates"} <= {finding.rule for finding in findings}
    for finding in findings:
        assert re.search(r"\d", finding.sentence)
        assert all(proof.value > finding.threshold for proof in finding.evidence)


def test_a_reader_that_is_busy_for_a_reason_does_not_spin(tmp_path: Path) -> None:
    cell = Cell(rate_per_s=150.0, change=each("paced", usage=usage(0.9)))
    assert found(run_of(tmp_path, cell)) == {}, "95 messages/s are more than half of 150"


def test_a_failed_cell_has_nothing_to_say(tmp_path: Path) -> None:
    assert found(run_of(tmp_path, Cell(factors=(0.0, 0.0, 0.0)))) == {}


def test_facts_that_were_not_measured_are_not_spoken_of(tmp_path: Path) -> None:
    def bare(trial: TrialResult) -> TrialResult:
        nothing = parts(call=None, latency=None, decode=None, last_ns=START_NS)
        return replace(nothing(trial), throughput_per_s=None)

    assert found(run_of(tmp_path, Cell(change=bare), readers=3, machine={}, floor=None)) == {}


def test_other_cells_are_counted_with_their_span(tmp_path: Path) -> None:
    change = each("paced", decode=quantiles(40_000.0))
    backends = {"a": Cell(10_000.0, change=change), "b": Cell(20_000.0, change=change)}
    cells = {(name, size): cell for size in (64, 128) for name, cell in backends.items()}
    run = make_run(tmp_path / "run", cells, payload="bytes", codec="raw", modes=("paced",))
    finding = found(run)["decoding dominates"]
    words = r"Also a at 1 more size and b at 2 sizes, 1\.9\d to 3\.9\d times"
    assert re.search(words, finding.sentence), finding.sentence
    assert len(finding.evidence) == 4


def shown(path: Path, ratio: float) -> Tables:
    return tables(decoding(path, ratio))


def test_findings_stand_at_the_end_of_the_text_and_in_markdown(tmp_path: Path) -> None:
    some, none = shown(tmp_path / "some", 3.0), shown(tmp_path / "none", 0.5)
    assert FINDINGS_TITLE in as_text(some)
    assert "Decoding takes longer than transport" in as_markdown(some)
    assert FINDINGS_TITLE not in as_text(none) + as_markdown(none)
    assert max(map(len, as_text(some).splitlines())) <= 100
