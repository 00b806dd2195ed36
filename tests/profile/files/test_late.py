"""Built profiles in which ranks are late, in all steps or some, or stand still."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ipcbench.profile.advice import Advice, advise
from ipcbench.profile.compare import compare
from ipcbench.profile.files.tables import comparison_lines
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
