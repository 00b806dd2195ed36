"""Built profiles in which ranks are late, in all steps or some, or stand still."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ipcbench.profile.advice import Advice, advise
from ipcbench.profile.compare import compare
from ipcbench.profile.files.documents import communication
from ipcbench.profile.files.tables import comparison_lines, sentences
from ipcbench.profile.records import Profile, Setting
from ipcbench.profile.summary import summarize
from tests.profile.built import built
from tests.profile.files.test_summary import MS, phase


def late_rule(profile: Profile) -> Advice:
    (found,) = (each for each in advise(summarize(profile)) if each.rule == "waiting")
    return found


def test_after_too_few_steps_no_rank_is_accused_and_none_is_said_to_change() -> None:
    """A rank that was late in each of 5 steps was said to change from step to step."""
    for repetitions in (2, 5):
        found = late_rule(built(slow=(1, 2, 5 * MS), repetitions=repetitions, tokens=0))
        assert ("too few to say which rank is late" in found.action, found.gain_ratio) == (True, None)
    assert "Give rank 1 less" in late_rule(built(slow=(1, 2, 5 * MS), repetitions=6, tokens=0)).action


def steps_of(made: Profile, numbers: Collection[int], shift: int = 0) -> Profile:
    """Return some steps alone, of ranks that are higher by `shift`."""
    change = msgspec.structs.replace
    return replace(
        made,
        steps=tuple(change(each, rank=each.rank + shift) for each in made.steps if each.number in numbers),
        spans=tuple(change(each, rank=each.rank + shift) for each in made.spans if each.step in numbers),
        calls=tuple(change(each, rank=each.rank + shift, ranks=tuple(rank + shift for rank in each.ranks))
                    for each in made.calls if each.step in numbers),
    )  # fmt: skip


def together(one: Profile, other: Profile, **setting: Any) -> Profile:
    changed = replace(one.setting or Setting(model=""), **setting)
    return replace(one, setting=changed, steps=one.steps + other.steps, spans=one.spans + other.spans,
                   calls=one.calls + other.calls)  # fmt: skip


def test_a_late_rank_is_one_of_two_that_share_layers_not_of_another_stage() -> None:
    """The rank that waited least of all was accused, in a stage that waits for nobody."""
    first, second = built(noise_ratio=0.0), built(slow=(1, 2, 5 * MS))
    every = {step.number for step in first.steps}
    found = late_rule(together(first, steps_of(second, every, shift=2), parallel="tp2pp2"))
    assert "Give rank 3 less" in found.action
    assert found.evidence.startswith("Rank 2 waits 5.0")


def test_ranks_that_are_late_alike_are_named_together_and_save_what_the_next_one_leaves() -> None:
    """One of two was accused, or it was said to change."""
    for ranks in ((2, 3), (1, 2, 3)):
        made = built(ranks=4, slow=(ranks[0], 2, 5 * MS), slow_ranks=ranks, repetitions=10, tokens=0)
        assert f"Give ranks {', '.join(map(str, ranks))} less" in late_rule(made).action
        late = summarize(made).late["prefill"]
        assert late is not None
        assert (late.ranks, late.gain_ns) == (ranks, pytest.approx(5 * MS, rel=0.1))


@pytest.mark.parametrize(
    ("delays", "ranks", "late", "gain_ms"),
    [
        ({(1, 2): 3 * MS, (3, 2): 2 * MS}, 4, (1, 3), 3),
        ({(0, 1): 8 * MS, (1, 2): 3 * MS}, 2, (0,), 8),
    ],
    ids=["unlike delays", "in unlike layers"],
)
def test_what_late_ranks_cost_is_what_each_operation_waits_for_them_alone(delays, ranks, late, gain_ms) -> None:
    """It was the difference of means: at most 48 % where 71 % was saved, 19 % where 48 % was."""
    found = summarize(built(ranks=ranks, delays=delays, repetitions=10, tokens=0)).late["prefill"]
    assert found is not None
    assert (found.ranks, found.gain_ns) == (late, pytest.approx(gain_ms * MS, rel=0.1))


def test_tokens_of_one_repetition_accuse_nobody_by_their_number() -> None:
    """Each counted for itself: of ten repetitions, in which a rank drawn by lot was disturbed, a third accused one."""
    tokens = 8
    made = {rank: built(slow=(rank, 2, 1_800_000), repetitions=10, tokens=tokens) for rank in (0, 1)}
    of_0 = range(2 * 3 * (1 + tokens))
    mixed = together(steps_of(made[0], of_0), steps_of(made[1], range(len(of_0), 20 * (1 + tokens))))
    found = summarize(mixed).late["decode"]
    assert found is not None
    assert (found.ranks, found.repetitions) == ((), 10)


def test_a_rank_that_is_late_in_some_of_many_repetitions_is_said_to_be_so() -> None:
    """More steps were asked for, of which a thousand would not have been enough."""
    late, quick = (built(slow=slow, repetitions=30, tokens=0) for slow in ((0, 2, 10 * MS), None))
    found = late_rule(together(steps_of(late, range(24)), steps_of(quick, range(24, 60))))
    words = "in 40 % of 30 repetitions: there, others wait for it the longest."
    assert (found.action, found.gain_ratio) == (f"Find out what happens at rank 0 {words}", None)
    late, quick = (
        built(ranks=4, slow=slow, slow_ranks=(0, 1), repetitions=30, tokens=0) for slow in ((0, 2, 10 * MS), None)
    )
    found = late_rule(together(steps_of(late, range(24)), steps_of(quick, range(24, 60))))
    assert found.action == f"Find out what happens at ranks 0, 1 {words}"


def test_calls_that_are_not_all_there_accuse_nobody_and_are_no_failure() -> None:
    """A profile without one of its calls ended in a KeyError; so did one with the steps of one rank."""
    made = built(slow=(1, 2, 5 * MS), repetitions=6, tokens=0)
    for calls in (made.calls[1:], made.calls[:7], tuple(call for call in made.calls if call.rank)):
        assert advise(summarize(replace(made, calls=calls))) is not None
    alone = replace(made, steps=tuple(step for step in made.steps if step.rank == 0))
    assert advise(summarize(alone)) is not None


def test_steps_that_took_twice_as_long_are_counted_where_no_part_has_them() -> None:
    late, quick = (built(slow=slow, repetitions=25, tokens=0) for slow in ((0, 2, 40 * MS), None))
    said = " ".join(sentences(summarize(together(steps_of(late, range(20)), steps_of(quick, range(20, 50))))))
    assert "In prefill, 10 of 25 steps took 2 times the median or more: no part and no advice is of these." in said
    assert "no part and" not in " ".join(sentences(summarize(quick)))


@pytest.mark.parametrize("tick_ns", [1_000, MS])
def test_a_coarse_clock_leaves_waiting_what_it_is_and_invents_no_speed(tick_ns: int) -> None:
    """A call that ended in the tick in which the last rank began had waited for nobody, at 4,100 GB/s."""
    made = built(slow=(1, 2, 5 * MS), repetitions=6, tokens=0, transfer_ns=400, noise_ratio=0.0)

    def seen(ns: int | None) -> int:
        return (ns or 0) // tick_ns * tick_ns

    coarse = tuple(
        msgspec.structs.replace(call, enter_ns=seen(call.enter_ns), exit_ns=seen(call.exit_ns)) for call in made.calls
    )
    summary = summarize(replace(made, calls=coarse))
    waits = {call.wait_ns for call in summary.profile.calls if call.rank == 0 and call.path == "layers.2.mlp"}
    assert waits == {5 * MS}
    for each in (summary.totals[0].totals or summarize(made).totals[0].totals).ops:  # type: ignore[union-attr]
        assert each.algorithm_bytes_per_s is None or each.operation_ns
    assert all(each["wait_ns"] is not None for each in communication(summary)["by_operation_type"].values())
    assert communication(summary)["by_operation_type"]["all_reduce"]["count"] == len(coarse)


def test_it_is_said_to_change_which_rank_is_late_only_where_each_was_on_time() -> None:
    made = {rank: built(slow=(rank, 2, 30 * MS), repetitions=10, tokens=0) for rank in (0, 1)}
    for count, is_changing in ((3, True), (1, False)):
        of_0 = [*range(2 * count)]
        found = late_rule(together(steps_of(made[0], of_0), steps_of(made[1], range(2 * count, 16))))
        assert ("changes from step to step" in found.action) == is_changing


def test_parts_are_those_of_the_steps_that_were_even_where_their_mean_is_not_the_median() -> None:
    """They were scaled to the median, so attention took less than in any step."""
    late, quick = built(slow=(1, 2, 15 * MS), repetitions=10, tokens=0), built(repetitions=10, tokens=0)
    each = phase(summarize(together(steps_of(late, range(8)), steps_of(quick, range(8, 20)))), "prefill", 0)
    assert each.ns("attention") == pytest.approx(phase(summarize(quick), "prefill", 0).ns("attention"), rel=0.01)
    assert each.wall_ns == pytest.approx(each.wall.value + 6 * MS, rel=0.02)
    layer = each.layers[0]
    assert layer.ns - layer.communication_ns == pytest.approx(layer.figure.value, rel=0.01)


@pytest.mark.parametrize("repetitions", [1, 2])
def test_a_step_far_beyond_the_few_beside_it_is_named_and_in_no_part(repetitions: int) -> None:
    """The median of two is their mean, so mlp was 99 % of a step, with advice."""
    made, still = built(repetitions=repetitions, tokens=0), built(slow=(0, 2, 2000 * MS), repetitions=2, tokens=0)
    last = {step.number for step in made.steps if step.source == "spans"}
    last = {max(last)}
    others = {step.number for step in made.steps} - last
    mixed = together(steps_of(made, others), steps_of(still, last))
    summary = summarize(mixed)
    (held,) = summary.held_up
    assert (held.rank, held.step) == (0, max(last))
    assert held.words.startswith(f"Rank 0 was held up in step {held.step} (prefill): 2.02 s at rank")
    assert advise(summary) == ()
    assert [each.ns("mlp") for each in summary.phases] == pytest.approx([8 * MS] * 2 * (repetitions - 1), rel=0.05)
    said = " ".join(" ".join(comparison_lines(compare([summarize(made)], [summary]))).split())
    assert f"b: {held.words}" in said
    assert "or have too few repetitions have no ratio" in said
