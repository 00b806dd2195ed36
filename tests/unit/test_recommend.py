"""Scripted scenarios with a known best answer: the right backend, for the right reasons, as sure as may be."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.analysis.recommend.answer import Recommendation, _tail_lines, figure_words
from ipcbench.analysis.recommend.needs import NEEDS, Offer, offer_of, registered_offers, required_packages
from ipcbench.analysis.recommend.question import Question, ask, question_sweep
from ipcbench.analysis.recommend.recommend import recommend, require_candidates
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.wording import interval_words, ratio_words
from ipcbench.backend import Capabilities
from ipcbench.errors import ConfigError, Unsupported
from ipcbench.registry import _BUILT_IN as BUILT_IN
from ipcbench.registry import get_backend
from ipcbench.results.model import Integrity, TrialResult
from ipcbench.results.store import load_run
from ipcbench.spec import MODES, SweepSpec
from ipcbench.stats.estimates import Interval
from ipcbench.sweeps.load import load_sweep
from ipcbench.util.units import format_duration_ns
from tests.unit.builders import CONTRARY, MACHINE, Cell, make_run, parts, usage

ABLE = Capabilities(
    deliveries=frozenset({"every_message", "latest_value"}), when_full="block", max_message_bytes=2**30, max_readers=8,
    zero_copy_read=False, waits=frozenset({"block"}), launcher="spawn", remote=False, persistent=False,
    detects_peer_exit=True,
)  # fmt: skip
OFFERS = {name: Offer(ABLE) for name in "ab"}
THREE_OFFERS = {name: Offer(ABLE) for name in "abc"}
SIZE = 4096
OF_SIZE = Question(SIZE)
TWO = {"a": Cell(10_000.0), "b": Cell(30_000.0)}
ROUNDS = (1.0, 1.01, 0.99)


def answer(
    path: Path, cells: dict[str, Cell] | dict[tuple[str, int], Cell], question: Question = OF_SIZE, **changes
) -> Recommendation:
    """Return the answer from a run of these cells, at `SIZE` where none is given."""
    placed = {key if isinstance(key, tuple) else (key, SIZE): cell for key, cell in cells.items()}
    offers = changes.pop("offers", OFFERS)
    run = make_run(path / "run", placed, **{"payload": "bytes", "codec": "raw", **changes})
    return recommend(run, question, offers=offers)


def texts(reply: Recommendation) -> str:
    return " | ".join(doubt.text for doubt in reply.doubts)


def test_a_clear_winner(tmp_path: Path) -> None:
    reply = answer(tmp_path, TWO)
    assert (reply.outcome, reply.backend, reply.sureness) == ("clear", "a", "high")
    assert reply.expected.latency_p50_ns.estimate == pytest.approx(10_000, rel=0.02)
    assert reply.runner_up.backend == "b"
    assert reply.runner_up.ratio.estimate == pytest.approx(3.0, rel=0.05)
    assert (reply.trial_ids, reply.doubts, reply.next_command) == (tuple(range(12)), (), "")
    verdict = reply.sentence()
    assert verdict.startswith("For 4 KiB to 1 reader: a, with one-way latency p50 10.0 µs [")
    assert "Next is b, 3.00 [" in verdict
    assert verdict.endswith("Sureness: high.")


def test_a_tie_is_called_a_tie(tmp_path: Path) -> None:
    reply = answer(tmp_path, {"a": Cell(10_000.0, 100_000.0), "b": Cell(10_050.0, 100_000.0)})
    assert (reply.outcome, reply.tie_break, reply.sureness) == ("tie", "", "moderate")
    assert {reply.backend, *reply.tied_with} == {"a", "b"}
    for words in ("a tie between a and b, no clear difference in one-way latency p50", "Take whichever suits you."):
        assert words in reply.sentence()
    assert "a tie" in texts(reply)


def test_after_one_round_it_says_that_one_is_too_few(tmp_path: Path) -> None:
    once = {name: replace(cell, factors=(1.0,)) for name, cell in TWO.items()}
    reply = answer(tmp_path, once, rounds=1)
    words = "no verdict between a and b on one-way latency p50, 1 round is too few to tell (it takes at least 3): a "
    assert words in reply.sentence()
    assert (reply.outcome, reply.as_dict()["outcome"]) == ("too few rounds", "too few rounds")
    cpu = answer(tmp_path / "cpu", once, replace(OF_SIZE, optimise="cpu"), rounds=1)
    words = "a and b: CPU time takes 2 rounds, and 3 to be compared; there is 1"
    assert f"none has figures that count ({words})" in cpu.sentence()


@pytest.mark.parametrize(("status", "level"), [("out of budget", "high"), ("interrupted", "moderate")])
def test_a_run_that_used_up_its_budget_is_as_sure_as_a_complete_one(status, level, tmp_path: Path) -> None:
    assert answer(tmp_path, TWO, status=status).sureness == level


def test_a_tie_is_broken_by_the_next_figure_and_says_so(tmp_path: Path) -> None:
    reply = answer(tmp_path, {"a": Cell(10_000.0, 100_000.0), "b": Cell(10_050.0, 400_000.0)})
    assert (reply.outcome, reply.backend, reply.tied_with) == ("tie", "b", ("a",))
    assert reply.tie_break.startswith("higher throughput than a, 400,000 [")
    assert "Take b: higher throughput than a" in reply.sentence()


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (202e3, 404e3, "340,000 [202,000–404,000]"),
        (202e3, 674e3, "340,000 [200,000–670,000]"),
        (27.8e3, 3.13e6, "300,000 [30,000–3,000,000]"),
        (12.4e3, 346e3, "340,000 [12,000–350,000]"),  # not "300,000 [10,000–300,000]"
    ],
)
def test_a_wide_interval_takes_digits(low: float, high: float, text: str) -> None:
    assert interval_words(Interval(low, 340e3, high)) == text


def with_rates(*rates_per_s: float) -> Callable[[TrialResult], TrialResult]:
    """Return what gives the saturated trial of each round its throughput."""

    def change(trial: TrialResult) -> TrialResult:
        if trial.spec.mode != "saturate":
            return trial
        return replace(trial, throughput_per_s=rates_per_s[trial.spec.round_index])

    return change


def test_a_tie_is_broken_only_by_pairs_that_were_compared(tmp_path: Path) -> None:
    """a is not told apart from c, the best by throughput, which is clearly ahead of b; that says nothing of a and b."""
    factors = (1.0, 1.01, 0.99, 1.0)
    cells = {
        "a": Cell(10_000.0, factors=factors, change=with_rates(0.5e3, 30e3, 0.3e3, 20e3)),
        "b": Cell(10_030.0, factors=factors, change=with_rates(50, 51, 50, 49)),
        "c": Cell(10_050.0, factors=factors, change=with_rates(20e3, 20.1e3, 20e3, 19.9e3)),
    }
    reply = answer(tmp_path, cells, rounds=4, offers=THREE_OFFERS)
    assert (reply.outcome, reply.backend) == ("tie", "c")
    assert reply.tie_break.startswith("higher throughput than b, 20,000 [")
    assert reply.tie_break.endswith("not told apart from it in that: a")


def test_a_planned_backend_without_figures_to_compare_is_named(tmp_path: Path) -> None:
    few = Cell(9_000.0, factors=(1.0, 0.0, 0.0))
    reply = answer(tmp_path, {"a": few, "b": Cell(10_000.0), "c": Cell(30_000.0)}, offers=THREE_OFFERS)
    assert reply.backend == "b"
    assert ": of those that could be compared, b, with " in reply.sentence()
    assert "Beware: not compared, for want of rounds or of figures: a." in reply.sentence()
    assert reply.sureness == "low"


def test_noise_of_many_is_added_up(tmp_path: Path) -> None:
    noisy = ("noisy: 5% steal",)
    cells = {
        "a": Cell(10_000.0, notes=noisy),
        "b": Cell(10_010.0, factors=(1.0, 1.01, 0.99, 1.0), notes=noisy),
        "c": Cell(10_020.0, factors=(1.0, 1.01, 0.99, 1.0, 1.0), notes=noisy),
    }
    verdict = answer(tmp_path, cells, rounds=5, offers=THREE_OFFERS).sentence()
    assert "noisy: 24 of 24 trials of " in verdict


def test_two_rounds_win_nothing_and_tie_with_nothing_where_others_have_three(tmp_path: Path) -> None:
    few = Cell(1_000.0, 9e6, factors=(1.0, 1.0, 0.0))
    reply = answer(tmp_path, {"a": few, "b": Cell(30_000.0)})
    assert (reply.outcome, reply.backend) == ("only candidate", "b")
    assert ("a", "only 2 rounds of its latency, too few to compare") in [
        (each.backend, each.reason) for each in reply.excluded
    ]


def test_of_a_tie_the_one_that_failed_is_not_taken(tmp_path: Path) -> None:
    cells = {"a": Cell(10_000.0, 9e5, factors=(*ROUNDS, 0.0)), "b": Cell(10_050.0, 1e5, factors=(*ROUNDS, 1.0))}
    reply = answer(tmp_path, cells)
    assert (reply.outcome, reply.backend) == ("tie", "b")
    assert "fewer of its trials failed than of a" in reply.tie_break


def test_ratios_are_to_the_best_also_where_another_is_taken(tmp_path: Path) -> None:
    """Else one that is clearly behind the best could be a fraction of the one that is taken."""
    wild = (1.6, 0.7, 1.4, 0.9) * 3
    cells = {
        "a": Cell(10_000.0, factors=ROUNDS * 4),
        "b": Cell(14_000.0, 9e5, factors=wild),
        "c": Cell(13_000.0, factors=ROUNDS * 4),
    }
    reply = answer(tmp_path, cells, offers={name: Offer(ABLE) for name in "abc"}, rounds=12)
    assert (reply.outcome, reply.backend, reply.tied_with) == ("tie", "b", ("a",))
    (c,) = (candidate for candidate in reply.candidates if candidate.backend == "c")
    assert (c.rank, c.ratio.low > 1.01) == (3, True)
    assert f"The first told apart from a is c, {ratio_words(c.ratio)} times as long as a: " in reply.sentence()
    assert "All, compared with a\n  1= b: " in reply.text(), "the ratio of the one that is taken stands there, too"


def test_the_best_is_the_one_with_the_best_figure_as_in_the_tables(tmp_path: Path) -> None:
    """A tied one may have a lower ratio by the rounds: then it is below 1, and the ratios are not to that one."""
    cells = {
        "a": Cell(10_000.0, factors=(1.0, 1.0, 1.0, 1.0)),
        "b": Cell(10_000.0, factors=(0.9, 0.9, 1.1, 1.1)),
        "c": Cell(40_000.0, factors=(1.0, 1.0, 1.0, 1.0)),
    }
    path = tmp_path / "run"
    reply = answer(tmp_path, cells, offers={name: Offer(ABLE) for name in "abc"}, rounds=4)
    (setting,) = summarise(load_run(path)).settings
    shown = {cell.backend: cell.ratio.estimate for cell in setting.cells}
    assert {each.backend: each.ratio.estimate for each in reply.candidates} == pytest.approx(shown)
    assert shown[reply.best] == 1.0


def test_the_figure_of_a_tie_break_is_that_of_the_one_taken_and_others_alike_are_named(tmp_path: Path) -> None:
    cells = {"a": Cell(10_000.0, 100_000.0), "b": Cell(10_050.0, 400_000.0), "c": Cell(10_020.0, 401_000.0)}
    reply = answer(tmp_path, cells, offers={name: Offer(ABLE) for name in "abc"})
    assert (reply.outcome, {reply.backend, *reply.tied_with}) == ("tie", {"a", "b", "c"})
    (other,) = {"b", "c"} - {reply.backend}
    figure = figure_words(reply.expected, "throughput")
    assert reply.tie_break == f"higher throughput than a, {figure}; not told apart from it in that: {other}"


def test_failures_of_all_that_tie_are_said(tmp_path: Path) -> None:
    cells = {name: Cell(10_000.0 + index, factors=(*ROUNDS, 1.0)) for index, name in enumerate("ab")}
    cells["c"] = Cell(10_020.0, factors=(*ROUNDS, 0.0))
    reply = answer(tmp_path, cells, offers={name: Offer(ABLE) for name in "abc"}, rounds=4)
    assert "Beware: failed: 2 of 8 trials of c" in reply.sentence()


def test_a_tie_is_broken_by_a_comparison_of_those_that_tie_and_not_by_a_third(tmp_path: Path) -> None:
    """c is clearly faster than b, and not clearly faster than a, whose figure varies: that says nothing of a and b."""
    rates = {
        "a": replace(Cell(10_000.0, 70_000.0), change=_throughputs(30e3, 400e3, 40e3, 100e3)),
        "b": replace(Cell(10_050.0, 100_000.0), change=_throughputs(100e3, 101e3, 99e3, 100e3)),
        "c": replace(Cell(50_000.0, 200_000.0), change=_throughputs(200e3, 201e3, 199e3, 200e3)),
    }
    cells = {name: replace(cell, factors=(*ROUNDS, 1.0)) for name, cell in rates.items()}
    reply = answer(tmp_path, cells, offers={name: Offer(ABLE) for name in "abc"}, rounds=4)
    assert (reply.outcome, {reply.backend, *reply.tied_with}, reply.tie_break) == ("tie", {"a", "b"}, "")


def _throughputs(*rates: float) -> Callable[[TrialResult], TrialResult]:
    def change(trial: TrialResult) -> TrialResult:
        if trial.spec.mode != "saturate":
            return trial
        return replace(trial, throughput_per_s=rates[trial.spec.round_index], turn_rates_per_s=())

    return change


def test_a_need_makes_no_difference_surer(tmp_path: Path) -> None:
    """Who is left to choose from does not change how the rounds of two of them differ."""
    steady, wild = (1.0, 1.02, 0.98, 1.01), (1.9, 0.6, 1.3, 0.8)
    cells = {"a": Cell(10_000.0, factors=steady), "b": Cell(12_000.0, factors=(1.01, 0.97, 1.02, 1.0))}
    cells |= {name: Cell(20_000.0, factors=wild) for name in "cdef"}
    offers = {name: Offer(replace(ABLE, zero_copy_read=name in "ab")) for name in cells}
    every = answer(tmp_path / "every", cells, offers=offers, rounds=4)
    some = answer(tmp_path / "some", cells, replace(OF_SIZE, needs=("zero-copy",)), offers=offers, rounds=4)
    ratios = [next(each.ratio for each in reply.candidates if each.backend == "b") for reply in (every, some)]
    assert [each.backend for each in some.candidates] == ["a", "b"]
    assert ratios[0] == ratios[1]


def test_a_dropped_need_brings_in_none_that_is_too_slow(tmp_path: Path) -> None:
    cells = {"a": Cell(90_000.0, 100_000.0), "b": Cell(10_000.0, 3_000.0)}
    offers = {name: Offer(replace(ABLE, persistent=name == "a")) for name in cells}
    asked = replace(OF_SIZE, needs=("persistent",))
    slow = answer(tmp_path / "slow", cells, asked, offers=offers)
    assert any(line.startswith("Needs: without persistent, b would have") for line in slow.changes)
    fast = answer(tmp_path / "fast", cells, replace(asked, rate_per_s=10_000.0), offers=offers)
    assert not any(line.startswith("Needs: ") for line in fast.changes)


def test_a_tie_is_not_broken_by_a_figure_that_the_other_goal_calls_a_tie(tmp_path: Path) -> None:
    """a is clearly ahead of b by throughput; but c, which varies, is the best, and neither is clearly behind it."""
    cells = {
        "a": replace(Cell(10_000.0), change=_throughputs(100e3, 101e3, 99e3, 100e3)),
        "b": replace(Cell(10_050.0), change=_throughputs(50e3, 51e3, 49e3, 50e3)),
        "c": replace(Cell(90_000.0), change=_throughputs(900e3, 20e3, 800e3, 700e3)),
    }
    cells = {name: replace(cell, factors=(*ROUNDS, 1.0)) for name, cell in cells.items()}
    offers = {name: Offer(ABLE) for name in "abc"}
    asked = answer(tmp_path / "latency", cells, offers=offers, rounds=4)
    other = answer(tmp_path / "throughput", cells, replace(OF_SIZE, optimise="throughput"), offers=offers, rounds=4)
    assert {other.backend, *other.tied_with} == {"a", "b", "c"}
    assert (asked.outcome, asked.tie_break) == ("tie", "")


def test_a_tie_is_not_broken_by_a_figure_of_which_all_that_tie_have_too_few_rounds(tmp_path: Path) -> None:
    def few(trial: TrialResult) -> TrialResult:
        failed = trial.spec.mode == "saturate" and trial.spec.round_index > 1
        return replace(trial, status="failed", reason="it broke") if failed else trial

    cells = {name: Cell(latency, 1e5, factors=(*ROUNDS, 1.0), change=few) for name, latency in (("a", 1e4), ("b", 1e4))}
    cells["c"] = Cell(90_000.0, 9e5, factors=(*ROUNDS, 1.0))
    reply = answer(tmp_path, cells, offers={name: Offer(ABLE) for name in "abc"}, rounds=4)
    assert (reply.outcome, {reply.backend, *reply.tied_with}, reply.tie_break) == ("tie", {"a", "b"}, "")


def test_a_dropped_need_names_whom_the_question_without_it_names(tmp_path: Path) -> None:
    """b and c are both ahead of a; c is ahead of b."""
    cells = {"a": Cell(90_000.0), "b": Cell(30_000.0), "c": Cell(10_000.0)}
    offers = {name: Offer(replace(ABLE, persistent=name == "a")) for name in cells}
    reply = answer(tmp_path, cells, replace(OF_SIZE, needs=("persistent",)), offers=offers)
    (line,) = (line for line in reply.changes if line.startswith("Needs: "))
    assert line.startswith("Needs: without persistent, c would have the lower one-way latency, 10.0 µs")


def test_few_rounds_above_the_rate_are_no_doubt_about_it(tmp_path: Path) -> None:
    cells = {name: Cell(10_000.0, 90_000.0, factors=(1.0, 0.2)) for name in "ab"}
    reply = answer(tmp_path, cells, replace(OF_SIZE, rate_per_s=20_000.0), rounds=2)
    assert "keep up" not in reply.text()


def test_a_command_has_a_rate_that_can_be_read(tmp_path: Path) -> None:
    reply = answer(tmp_path, TWO, Question(2**20, rate_per_s=1e6))
    assert "--rate 1000000/s" in reply.next_command


def test_one_round_calls_nobody_too_slow_and_gives_no_ends_of_intervals(tmp_path: Path) -> None:
    cells = {name: Cell(10_000.0, rate, factors=(1.0,)) for name, rate in (("a", 1_000.0), ("b", 90_000.0))}
    reply = answer(tmp_path, cells, replace(OF_SIZE, rate_per_s=50_000.0), rounds=1)
    assert {each.backend for each in reply.candidates} == {"a", "b"}
    assert "a may not keep up with 50,000 messages/s: flat out it delivers 1,000 messages/s in 1 round" in reply.text()
    for candidate in reply.as_dict()["candidates"]:
        figures = [value for value in candidate["expected"].values() if isinstance(value, dict) and "low" in value]
        ratios = [candidate["ratio"]] if candidate["backend"] != reply.best else []
        assert len(figures) >= 3
        assert {(value["low"], value["high"]) for value in (*figures, *ratios)} == {(None, None)}
    assert reply.as_dict()["crossovers"] == []


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [("failed", "1 lost", "1 lost"), ("ok", "", "1 messages were not delivered as promised")],
)
def test_a_backend_that_lost_a_message_is_not_taken(tmp_path: Path, status, reason: str, said: str) -> None:
    def losing(trial: TrialResult) -> TrialResult:
        if trial.spec.mode != "saturate":
            return trial
        return parts("", "reader", integrity=Integrity(10, 9, 1))(replace(trial, status=status, reason=reason))

    reply = answer(tmp_path, {"a": Cell(10_000.0, change=losing), "b": Cell(90_000.0)})
    assert reply.backend == "b"
    assert f"a: messages lost, duplicated, reordered or torn in 3 of 6 trials of this run: {said}" in reply.text()


def test_what_another_goal_would_choose_is_what_that_question_answers(tmp_path: Path) -> None:
    """c has no latency, and is the best by CPU time; b is better than a by CPU time, too."""

    def silent(trial: TrialResult) -> TrialResult:
        return replace(trial, status="failed", reason="it broke") if trial.spec.mode == "paced" else trial

    cells = {
        "a": Cell(10_000.0, change=parts("saturate", "", usage=usage(4.0))),
        "b": Cell(90_000.0, change=parts("saturate", "", usage=usage(2.0))),
        "c": Cell(10_000.0, change=lambda trial: silent(parts("saturate", "", usage=usage(0.5))(trial))),
    }
    offers = {name: Offer(ABLE) for name in "abc"}
    reply = answer(tmp_path / "latency", cells, offers=offers)
    other = answer(tmp_path / "cpu", cells, replace(OF_SIZE, optimise="cpu"), offers=offers)
    assert (reply.backend, other.backend) == ("a", "c")
    (change,) = (line for line in reply.changes if line.startswith("Optimising: "))
    assert change.startswith("Optimising: c has the lower CPU time")


def test_few_rounds_in_common_claim_nothing(tmp_path: Path) -> None:
    """Each has three rounds, and two of them in common."""
    cells = {"a": Cell(10_000.0, factors=(0.0, 1.0, 1.01, 0.99)), "b": Cell(30_000.0, factors=(1.0, 1.01, 0.99, 0.0))}
    reply = answer(tmp_path, cells, rounds=4)
    assert (
        "no verdict between a and b on one-way latency p50, 2 rounds in common with a are too few to tell (it takes at "
        "least 3)" in reply.sentence()
    )
    assert re.search(r"\? b: 30\.\d µs \[[^\]]*\] \(", reply.text())


def test_whom_the_answer_names_is_in_beware_and_in_the_lead(tmp_path: Path) -> None:
    far = {name: Cell(30_000.0 + index, factors=(*ROUNDS, 1.0)) for index, name in enumerate("bc")}
    far["c"] = replace(far["c"], factors=(1.2, 0.4, 0.0, 1.0))
    cells = {"a": Cell(10_000.0, factors=(*ROUNDS, 1.0)), **far}
    reply = answer(tmp_path, cells, offers={name: Offer(ABLE) for name in "abc"}, rounds=4)
    assert [candidate.rank for candidate in reply.candidates] in ([1, 2, 2], [1, 1, 3])
    assert "Beware: failed: 2 of 8 trials of c" in reply.sentence()


def test_of_an_uncertain_p99_only_the_lower_end_is_given(tmp_path: Path) -> None:
    wild = Cell(10_000.0, factors=(1.0, 1.01, 0.99), change=parts())
    reply = answer(tmp_path, {"a": wild, "b": Cell(90_000.0)})
    known = reply.expected.latency_p99_ns
    lines = [line for line in reply.text().splitlines() if "p99" in line]
    assert lines == [f"  one-way latency p99: {format_duration_ns(known.low)} to {format_duration_ns(known.high)}"]
    wide = Interval(12_000.0, 20_000.0, 900_000.0)
    assert list(_tail_lines(Interval(9e3, 10e3, 11e3), wide)) == ["one-way latency p99: at least 12.0 µs"]
    assert list(_tail_lines(Interval(9e3, 12e3, 14e3), wide)) == []


def test_a_figure_has_its_interval_however_few_rounds_another_one_has(tmp_path: Path) -> None:
    def no_trips(trial: TrialResult) -> TrialResult:
        lost = trial.spec.mode == "pingpong" and trial.spec.round_index > 0
        return replace(trial, status="failed", reason="lost") if lost else trial

    cells = {name: replace(cell, change=no_trips) for name, cell in TWO.items()}
    reply = answer(tmp_path, cells, modes=MODES)
    assert reply.outcome == "clear"
    assert "Next is b, 3.00 [" in reply.sentence()
    assert "rounds" not in texts(reply)
    assert re.search(r"one-way latency p50: 10\.0 µs \[", reply.text())
    assert re.search(r"round trip p50: [0-9.]+ µs\n", reply.text())


def test_after_two_rounds_others_have_no_ratio(tmp_path: Path) -> None:
    cells = {name: replace(cell, factors=(1.0, 1.01)) for name, cell in TWO.items()}
    reply = answer(tmp_path, cells, rounds=2)
    assert re.search(r"\? b: 30 µs \(only 2 rounds: b\)\n", reply.text())


def test_capabilities_exclude_a_faster_one_and_say_what_dropping_the_need_would_give(tmp_path: Path) -> None:
    offers = {"a": OFFERS["a"], "b": Offer(replace(ABLE, persistent=True))}
    reply = answer(tmp_path, TWO, Question(SIZE, needs=("persistent",)), offers=offers)
    assert (reply.outcome, reply.backend) == ("only candidate", "b")
    (gone,) = reply.excluded
    assert (gone.backend, gone.by) == ("a", "capabilities")
    assert gone.reason == "needs persistent: its messages do not outlive the processes"
    words = "Needs: without persistent, a would have the lower one-way latency, 10.0 µs"
    assert any(change.startswith(words) for change in reply.changes)


def test_a_failed_cell_never_wins(tmp_path: Path) -> None:
    reply = answer(tmp_path, {"a": Cell(10.0, factors=(0.0, 0.0, 0.0)), "b": Cell(30_000.0, factors=ROUNDS)})
    assert reply.backend == "b"
    (gone,) = reply.excluded
    assert (gone.backend, gone.by) == ("a", "evidence")
    assert gone.reason.startswith("failed at 4,096 B: reader-0 ended with exit code 1")


def test_who_failed_in_the_mode_that_counts_says_why(tmp_path: Path) -> None:
    def break_paced(trial: TrialResult) -> TrialResult:
        late = replace(trial, status="failed", reason="the writer stayed behind")
        return late if trial.spec.mode == "paced" else trial

    reply = answer(tmp_path, {"a": Cell(10.0, change=break_paced), "b": Cell(30_000.0)})
    assert reply.backend == "b"
    assert "no latency was measured at 4,096 B" in reply.excluded[0].reason
    assert "the writer stayed behind" in reply.excluded[0].reason


NOISY = ("noisy: 5% steal",)


@pytest.mark.parametrize(
    ("a", "b", "sureness", "doubt"),
    [
        (Cell(10_000.0, factors=(*ROUNDS, 0.0)), Cell(30_000.0, factors=(*ROUNDS, 1.0)), "low",
         "Beware: failed: 2 of 8 trials of a."),
        (Cell(10_000.0, notes=NOISY), Cell(30_000.0), "low", "Beware: noisy: 6 of 6 trials of a."),
        (Cell(10_000.0), Cell(30_000.0, notes=NOISY), "moderate", "Beware: noisy: 6 of 6 trials of b."),
        (Cell(10_000.0, factors=(1.0,)), Cell(90_000.0, factors=(1.0,)), "low", "1 round is too few to tell"),
        (Cell(10_000.0), Cell(10_800.0), "moderate", "the lead over b may be as small as 1.0"),
    ],
    ids=["failed", "noisy", "noisy rival", "one round", "small lead"],
)  # fmt: skip
def test_a_doubtful_winner_wins_visibly(tmp_path: Path, a: Cell, b: Cell, sureness: str, doubt: str) -> None:
    reply = answer(tmp_path, {"a": a, "b": b})
    assert (reply.backend, reply.sureness) == ("a", sureness)
    assert reply.outcome == ("too few rounds" if "1 round" in doubt else "clear")
    assert doubt in (texts(reply) if doubt.startswith("the lead") else reply.sentence())
    assert reply.next_command


def test_oversubscription_is_said_with_its_figures(tmp_path: Path) -> None:
    machine = {**MACHINE, "usable_cores": 2.0}
    reply = answer(tmp_path, TWO, Question(SIZE, readers=3), readers=3, machine=machine)
    assert (reply.backend, reply.sureness) == ("a", "moderate")
    assert "Beware: oversubscribed: 4 processes on 2 cores" in reply.sentence()


QUICK, SLOW = Cell(10_000.0), Cell(40_000.0)
CROSSING = {("a", 1024): QUICK, ("b", 1024): SLOW, ("a", 16_384): SLOW, ("b", 16_384): QUICK}
"""On logarithmic axes both have 20 µs at 4,096 B."""


@pytest.mark.parametrize(
    ("size", "backend", "ratio"), [(2048, "a", 2.0), (8192, "b", 2.0), (1000, "a", 4.0), (1100, "a", 4.0)]
)
def test_between_measured_sizes_it_is_interpolated_and_said_so(
    tmp_path: Path, size: int, backend: str, ratio: float
) -> None:
    reply = answer(tmp_path, CROSSING, Question(size))
    assert (reply.outcome, reply.backend) == ("clear", backend)
    assert reply.runner_up.ratio.estimate == pytest.approx(ratio, rel=0.05)
    interpolated = f"{size:,} B was not measured: interpolated between 1,024 B and 16,384 B"
    assert (interpolated in texts(reply)) == (size not in {1000, 1100}), "a size just beside a measured one is that one"
    (crossing,) = reply.crossovers
    assert crossing.payload_bytes.estimate == pytest.approx(4096, rel=0.1)
    assert reply.changes[0] == crossing.sentence()


def test_at_the_crossover_it_is_a_tie(tmp_path: Path) -> None:
    assert answer(tmp_path, CROSSING, Question(4096)).outcome == "tie"


def test_a_wide_gap_in_the_range_makes_it_unsure(tmp_path: Path) -> None:
    cells = {(name, size): cell for size in (1024, 2**20) for name, cell in TWO.items()}
    reply = answer(tmp_path, cells, Question(32_768))
    assert (reply.backend, reply.sureness) == ("a", "low")
    assert "Beware: 32,768 B was not measured: interpolated between 1,024 B and 1,048,576 B" in reply.sentence()
    assert "--sizes 8192,32768,131072" in reply.next_command


def test_a_backend_is_not_interpolated_over_a_size_at_which_it_failed(tmp_path: Path) -> None:
    cells = {(name, size): cell for size in (1024, 4096, 16_384) for name, cell in TWO.items()}
    cells["a", 4096] = Cell(10_000.0, factors=(0.0, 0.0, 0.0))
    reply = answer(tmp_path, cells, Question(6000))
    assert reply.backend == "b"
    assert reply.excluded[0].reason.startswith("failed at 4,096 B")


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Question(2**20, 1), "1,048,576 B is outside the measured range of run 20260102T030405Z-0a1b2c, 1,024 B to"),
        (Question(8, 1, 250.0), "8 B is outside the measured range"),
        (Question(4096, 2), "every_message to 2 readers is outside the measured range of run"),
        (Question(4096, 1, needs=("latest-value",)), "latest_value to 1 reader is outside the measured range"),
    ],
)
def test_outside_the_measured_range_it_names_nobody_but_the_run_to_make(
    tmp_path: Path, question: Question, words: str
) -> None:
    reply = answer(tmp_path, CROSSING, question)
    assert (reply.outcome, reply.backend, reply.expected) == ("outside the measured range", None, None)
    assert words in reply.sentence()
    assert reply.next_command in reply.sentence()
    assert sweep_of_command(reply.next_command) == replace(question_sweep(question, ("a", "b")), name="default")
    assert reply.sureness == "none"
    with pytest.raises(Unsupported, match="outside the measured range"):
        reply.create()


def sweep_of_command(line: str) -> SweepSpec:
    """Return the sweep that a printed command line would measure, by the parser of the command itself."""
    words = shlex.split(line)
    assert words[:2] == ["ipcbench", "run"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    return load_sweep("default", {name.removeprefix("--"): value for name, value in options.items()})


def test_a_rate_excludes_who_cannot_keep_up(tmp_path: Path) -> None:
    cells = {"a": Cell(10_000.0, rate_per_s=2_000.0), "b": Cell(30_000.0, rate_per_s=90_000.0)}
    reply = answer(tmp_path, cells, Question(SIZE, rate_per_s=20_000.0))
    assert reply.backend == "b"
    assert reply.excluded[0].reason.startswith("too slow for 20,000 messages/s: flat out it delivers 2,000 [")
    assert "latency was measured at 1,000 messages/s, not at 20,000 messages/s" in texts(reply)
    assert any(change.startswith("Rate: b delivers 90,000 [") for change in reply.changes)


def test_a_rate_near_the_limit_is_said(tmp_path: Path) -> None:
    cells = {name: Cell(10_000.0, 21_000.0, factors=(1.0, 1.2, 0.8)) for name in "ab"}
    reply = answer(tmp_path, cells, Question(SIZE, rate_per_s=20_000.0))
    assert reply.backend is not None
    assert reply.sureness == "low"
    assert "may not keep up with 20,000 messages/s" in reply.sentence()


@pytest.mark.parametrize(
    ("optimise", "backend", "figure"),
    [
        ("latency", "a", "one-way latency p50 10.0 µs"),
        ("throughput", "b", "throughput 900,000 ["),
        ("cpu", "c", "CPU time per message 7."),
    ],
)
def test_what_is_optimised_decides(tmp_path: Path, optimise, backend: str, figure: str) -> None:
    cells = {
        "a": Cell(10_000.0, 100_000.0, change=parts(usage=usage(0.05))),
        "b": Cell(30_000.0, 900_000.0, change=parts(usage=usage(0.03))),
        "c": Cell(30_000.0, 100_000.0),
    }
    reply = answer(tmp_path, cells, Question(SIZE, optimise=optimise), offers={**OFFERS, "c": OFFERS["a"]})
    assert (reply.outcome, reply.backend) == ("clear", backend)
    assert figure in reply.sentence()
    others = {"latency": "the lower one-way latency", "throughput": "the higher throughput", "cpu": "the lower CPU"}
    for goal, words in others.items():
        assert any(words in change for change in reply.changes) == (goal != optimise), reply.changes


def test_deliveries_are_never_ranked_against_each_other(tmp_path: Path) -> None:
    reply = answer(tmp_path, TWO, Question(SIZE, needs=("latest-value",)), delivery="latest_value")
    assert (reply.backend, reply.question.delivery) == ("a", "latest_value")
    assert answer(tmp_path / "more", TWO, delivery="latest_value").backend is None


def test_names_in_a_results_folder_load_no_code(tmp_path: Path) -> None:
    reply = answer(tmp_path, {"tests.unit.no_such_module:Thing": Cell(), "a": Cell()}, backends=("a",))
    assert reply.backend == "a"
    assert {exclusion.backend: exclusion.reason for exclusion in reply.excluded} == {
        "tests.unit.no_such_module:Thing": "not registered here, so what it can do is not known",
        "b": "this run did not measure it",
    }
    assert "tests.unit.no_such_module" not in sys.modules
    assert "not measured in this run, although able: b" in texts(reply)


def test_nobody_can_do_it(tmp_path: Path) -> None:
    reply = answer(tmp_path, {"a": Cell(), "b": Cell()}, Question(SIZE, needs=("cross-host",)))
    assert (reply.outcome, reply.backend, reply.next_command) == ("no candidate", None, "")
    assert reply.sentence() == (
        "No recommendation for 4 KiB to 1 reader, cross-host: no transport here offers cross-host."
    )
    with pytest.raises(Unsupported, match=r"a and b: needs cross-host: its channels do not leave the host"):
        require_candidates(Question(SIZE, needs=("cross-host",)), OFFERS)


def test_where_every_trial_failed_the_answer_says_why_of_each(tmp_path: Path) -> None:
    lossy = Cell(change=parts(integrity=Integrity(lost_count=1)))
    reply = answer(tmp_path, {"a": lossy, "b": Cell(factors=(0.0, 0.0, 0.0))})
    assert (reply.outcome, reply.backend, reply.measured_bytes) == ("no candidate", None, None)
    assert "outside the measured range" not in reply.sentence()
    reasons = {exclusion.backend: exclusion.reason for exclusion in reply.excluded}
    assert "lost" in reasons["a"]
    assert reasons["b"].startswith("failed at 4,096 B: ")
    other = answer(tmp_path / "other", {"a": lossy}, Question(10 * SIZE))
    assert other.outcome == "outside the measured range"
    assert "4,096 B to 4,096 B" in other.sentence()


def test_samples_that_are_gone_are_the_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("a", SIZE): Cell(), ("b", SIZE): Cell()}, payload="bytes", codec="raw")
    for trial in run.trials:
        if trial.spec.backend == "a" and trial.spec.mode == "paced":
            (run.path / "samples" / f"{trial.trial_id}.npz").unlink()
    (excluded,) = recommend(load_run(run.path), OF_SIZE, offers=OFFERS).excluded
    assert excluded.reason == "the samples of its latency at 4,096 B are missing or unusable"


def test_a_run_of_variants_is_not_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("a@base", SIZE): Cell(), ("a@head", SIZE): Cell()}, payload="bytes", codec="raw")
    run = replace(run, info=replace(run.info, variant_versions={"base": {}, "head": {}}))
    reply = recommend(run, OF_SIZE, offers=OFFERS)
    assert reply.backend is None
    assert reply.why_not == "the run compares variants; a choice needs one measured without --variant"
    assert {exclusion.reason for exclusion in reply.excluded} == set()
    assert "--backends a,b " in reply.next_command
    assert "@" not in reply.next_command


def test_a_backend_of_the_user_s_own_is_judged_by_what_the_run_says_of_it(tmp_path: Path) -> None:
    """Its module is not imported, and what is no capabilities is as unknown as before."""
    run = make_run(
        tmp_path / "run", {("own_backend_of_a_user:Own", SIZE): Cell(), ("shm", SIZE): Cell(90_000.0)}, payload="bytes"
    )
    can = get_backend("shm").capabilities.as_dict()
    for known, backend in ((can, "own_backend_of_a_user:Own"), ({**can, "launcher": 7}, "shm"), ({}, "shm")):
        reply = recommend(
            replace(run, info=replace(run.info, capabilities={"own_backend_of_a_user:Own": known})), OF_SIZE
        )
        assert reply.backend == backend
    assert "own_backend_of_a_user" not in sys.modules


def test_all_that_can_do_it_failed(tmp_path: Path) -> None:
    reply = answer(tmp_path, {name: Cell(factors=(0.0,)) for name in "ab"})
    assert (reply.backend, reply.sureness) == (None, "none")
    assert reply.next_command


def test_the_answer_as_data_holds_what_the_text_says(tmp_path: Path) -> None:
    reply = answer(tmp_path, CROSSING, Question(2048, needs=("lossless",)))
    plain = json.loads(json.dumps(reply.as_dict(), allow_nan=False))
    assert (plain["verdict"], plain["backend"]) == (reply.sentence(), "a")
    assert plain["candidates"][0]["expected"]["latency_p50_ns"]["estimate"] == pytest.approx(14_142, rel=0.05)
    assert plain["crossovers"][0]["sentence"] == reply.crossovers[0].sentence()
    asked = {"payload_bytes": 2048, "readers": 1, "rate_per_s": None, "needs": ["lossless"], "optimise": "latency"}
    assert plain["question"] == {**asked, "delivery": "every_message"}
    for shown in (reply.text(), reply.markdown()):
        for heading in (
            "Expected of a",
            "Others, compared with a",
            "What would change the choice",
            "How sure",
            "Based on",
        ):
            assert heading in shown
    assert reply.sentence() in reply.text()
    with pytest.raises(AttributeError):
        reply.backend = "b"  # type: ignore[misc]


def test_hostile_names_and_reasons_are_one_plain_line(tmp_path: Path) -> None:
    name = "evil\x1b[2J\n<script>"
    offers = {**OFFERS, name: OFFERS["a"]}
    reply = answer(tmp_path, {name: Cell(10_000.0), "b": Cell(30_000.0)}, offers=offers)
    assert reply.backend == name
    assert "\x1b" not in reply.text() + reply.markdown()
    assert "\n" not in reply.sentence()
    assert "<script>" not in reply.markdown()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (("1x", 1, None, "", "latency"), "--size"),
        ((-1, 1, None, "", "latency"), "--size"),
        (("2GiB", 1, None, "", "latency"), "--size"),
        (("64", 0, None, "", "latency"), "--readers"),
        (("64", 1, "fast", "", "latency"), "--rate"),
        (("64", 1, 0.0, "", "latency"), "--rate"),
        (("64", 1, None, "lossless,speed", "latency"), "--needs"),
        (("64", 1, None, "lossless,latest-value", "latency"), "--needs"),
        (("64", 1, None, "", "memory"), "--optimise"),
    ],
)
def test_a_question_that_cannot_be_asked(values: tuple, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ask(*values, prefix="--")
    assert caught.value.field == field


def test_a_question_as_people_write_it() -> None:
    asked = ask("1MiB", 3, "2k/s", "lossless, no-deps,lossless", "cpu")
    assert asked == Question(2**20, 3, 2000.0, ("lossless", "no-deps"), "cpu")
    assert asked.words() == "1 MiB to 3 readers at 2,000 messages/s, lossless, no-deps"
    assert ask(0, 1, None, (), "latency").payload_bytes == 0


@pytest.mark.parametrize("size", [0, 1, 3, 2**24, 2**30])
def test_every_question_has_a_run_that_would_answer_it(size: int) -> None:
    sweep = question_sweep(Question(size), ("a",))
    assert size in sweep.sizes
    assert sweep.sizes == tuple(sorted(set(sweep.sizes)))


def test_needs_of_the_built_in_backends() -> None:
    offers = {name: offer for name, offer in registered_offers().items() if name in BUILT_IN}  # not a plug-in's
    able = {need: {name for name, offer in offers.items() if not check.refusal(offer)} for need, check in NEEDS.items()}
    mpi = {"mpi", "mpi-pkl5", "mpi-buffer", "mpi-p2p", "mpi-rma"}
    mp = {"mp-queue", "mp-manager", "mp-pipe"}
    carried = {"nng", "zenoh", "iox2", "nats", "flight", "gloo", "ray"}
    assert able["lossless"] == set(offers)
    assert able["latest-value"] == set(offers) - mpi - mp - carried - {"hybrid"}
    assert able["no-deps"] == {"shm", "pipe", "tcp", "null", *mp}
    assert able["persistent"] == {"lmdb"}
    assert able["zero-copy"] == {"shm", "lmdb", "iox2", "mpi-rma", "null", "ray"}
    assert able["cross-host"] == mpi - {"mpi-rma"} | {
        "grpc-tcp",
        "hybrid",
        "redis",
        "tcp",
        "zenoh",
        "zmq-tcp",
        "zmq-tcp-insecure",
    }, "those that are tested between hosts"
    assert able["peer-exit"] == set(offers) - {"null"}
    assert able.pop("any-launcher") == set(offers) - mpi - mp
    assert " ".join(able) == "lossless latest-value no-deps persistent cross-host zero-copy peer-exit"
    assert set(require_candidates(Question(64, needs=("no-deps",)), offers)) == {"shm", "pipe", "tcp", *mp}


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("zmq", ("zmq",)),
        ("lmdb", ("lmdb",)),
        ("mpi-pkl5", ("mpi4py",)),
        ("shm", ()),
        ("hybrid", ("zmq",)),
        ("ray", ("numpy", "psutil", "ray")),
    ],
)
def test_packages_are_read_from_the_source(name: str, packages: tuple[str, ...]) -> None:
    assert offer_of(get_backend(name)).packages == packages


def test_packages_of_a_third_party_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "third_party_transport"
    home.mkdir()
    (home / "__init__.py").touch()
    (home / "own.py").write_text("import os, absent_library\n")
    (home / "backend.py").write_text("from ipcbench.backend import Backend\nfrom . import own\nfrom .own import os\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert required_packages("third_party_transport.backend") == ("absent_library",)


def test_rounds_that_contradict_the_figures_are_no_tie(tmp_path: Path) -> None:
    reply = answer(tmp_path, CONTRARY, rounds=7)
    assert (reply.outcome, reply.best, reply.sureness) == ("contradictory", "a", "low")
    assert "no verdict between a and b on one-way latency p50: " in reply.sentence()
    assert "but by the rounds b would be faster than a" in reply.sentence()
    assert "tie" not in reply.text()


def test_a_tie_of_medians_names_tails_that_differ(tmp_path: Path) -> None:
    five = (1.0, 1.01, 0.99, 1.02, 0.98)
    cells = {"a": Cell(10_000.0, spread=0.1, factors=five), "b": Cell(10_050.0, spread=1.5, factors=five)}
    reply = answer(tmp_path, cells, rounds=5)
    assert reply.outcome == "tie"
    assert re.search(r"Beware: one-way latency p99 differs: a .* to .* and b .* to ", reply.sentence())
    assert reply.sureness == "moderate"


def test_the_rate_at_which_latency_was_measured_is_said_whatever_decides(tmp_path: Path) -> None:
    fast = replace(OF_SIZE, rate_per_s=90_000.0, optimise="cpu")
    assert "latency was measured at 1,000 messages/s, not at 90,000 messages/s" in answer(tmp_path, TWO, fast).text()


def test_the_command_measures_with_the_same_way_of_waiting(tmp_path: Path) -> None:
    reply = answer(tmp_path, {"a": Cell(10_000.0), "b": Cell(10_050.0)}, wait="block")
    assert " --wait block" in reply.next_command


def test_what_was_measured_beside_neighbours_only_is_told_from_what_is_asked(tmp_path: Path) -> None:
    def beside(trial: TrialResult) -> TrialResult:
        return replace(trial, spec=replace(trial.spec, neighbours=1))

    words = "to 1 reader without neighbours is outside the measured range of run"
    assert words in answer(tmp_path, {"a": Cell(change=beside)}).sentence()
