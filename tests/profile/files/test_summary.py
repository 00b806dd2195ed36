"""Built profiles, whose truth is known: sums, layers, stragglers, own cost, advice, comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ipcbench.errors import ConfigError
from ipcbench.profile.advice import BUSY, advise
from ipcbench.profile.compare import MEDIANS, compare
from ipcbench.profile.files.tables import (
    comparison_lines,
    cost_words,
    module_table,
    screen,
    sentences,
    tables_of,
    verdict,
)
from ipcbench.profile.records import Agreement, Memory, Profile, Setting, SweepPoint
from ipcbench.profile.summary import HOST, TRANSFER, UNDIVIDED, WAIT, Part, PhaseSummary, Summary, summarize
from ipcbench.profile.timing.overhead import Overhead
from ipcbench.stats.estimates import Interval
from ipcbench.stats.figures import figure_of
from tests.profile.built import HOST_NS, LAYER_NS, TRANSFER_NS, built, without_times

MS = 1_000_000


def phase(summary: Summary, name: str, rank: int) -> PhaseSummary:
    return next(each for each in summary.phases if (each.phase, each.rank) == (name, rank))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_parts_of_a_step_add_up_to_its_wall_time(ranks: int) -> None:
    summary = summarize(built(ranks=ranks, noise_ratio=0.2))
    assert len(summary.phases) == 2 * ranks
    for each in summary.phases:
        assert sum(part.ns for part in each.buckets) == pytest.approx(each.wall_ns, rel=1e-9)
        assert sum(part.share_ratio for part in each.buckets) == pytest.approx(1.0, rel=1e-9)
        blocks = sum(ns for _, ns in each.blocks.values())
        assert blocks + each.ns(WAIT, TRANSFER, HOST) == pytest.approx(each.wall_ns, rel=1e-9)


def test_each_part_is_what_it_was_made_of() -> None:
    summary = summarize(built(noise_ratio=0.0))
    for name in ("prefill", "decode"):
        each, layer_ns = phase(summary, name, 0), LAYER_NS[name]
        found = {part.name: part.ns for part in each.buckets}
        assert found == pytest.approx({
            "attention": 1.6 * layer_ns, "mlp": 2.0 * layer_ns, "norms": 0.1 * layer_ns, "lm_head": 0.1 * layer_ns,
            "embedding": 0.05 * layer_ns, "other blocks": 0.4 * layer_ns, TRANSFER: 8 * TRANSFER_NS, HOST: HOST_NS,
        })  # fmt: skip
        assert {layer.ns for layer in each.layers} == {layer_ns + 2.0 * TRANSFER_NS}
        assert each.coverage_ratio == pytest.approx(1 - HOST_NS / each.wall_ns)
    assert summary.tokens_per_s == pytest.approx(1e9 / phase(summary, "decode", 0).wall.value)


def test_operators_take_the_time_of_their_block_without_communication() -> None:
    each = phase(summarize(built(noise_ratio=0.0)), "prefill", 0)
    found = {o.bucket: o.ns for o in each.operators if o.path == "layers.1.self_attn"}
    block_ns = 0.4 * LAYER_NS["prefill"]
    assert found == pytest.approx({
        "qkv": block_ns * 0.3 / 0.95, "attention": block_ns * 0.4 / 0.95, "output": block_ns * 0.2 / 0.95,
        HOST: block_ns * 0.05 / 0.95,
    })  # fmt: skip


def test_kernels_of_a_gpu_take_their_own_time_and_the_rest_is_waiting_for_the_program() -> None:
    made = built(noise_ratio=0.0)
    kernels = [
        msgspec.structs.replace(row, share_ratio=None, exclusive_ns=100_000.0)
        for row in made.operators
        if row.bucket != "communication"
    ]
    block_ns = 0.4 * LAYER_NS["prefill"]
    for times, each_ns in ((1, 100_000.0), (1000, block_ns / 3)):  # more than the block's time cannot be in it
        longer = [msgspec.structs.replace(row, exclusive_ns=times * row.exclusive_ns) for row in kernels]
        found = phase(summarize(replace(made, operators=tuple(longer))), "prefill", 0).operators
        ns = {each.bucket: each.ns for each in found if each.path == "layers.1.self_attn"}
        assert ns == pytest.approx(
            dict.fromkeys(("qkv", "attention", "output"), each_ns) | {HOST: block_ns - 3 * each_ns}
        )


def test_roles_of_a_split_model_are_no_slow_layers() -> None:
    made = built(slow=(1, 2, 1_000_000))
    assert summarize(made).slow_layers
    assert not summarize(replace(made, setting=replace(made.setting, parallel="split"))).slow_layers


def test_modules_within_a_block_count_to_it() -> None:
    made = built(ranks=1, noise_ratio=0.0)
    inner = [
        msgspec.structs.replace(s, path=f"{s.path}.q_proj", kind="module", exclusive_ns=1000)
        for s in made.spans if s.kind == "attention"
    ]  # fmt: skip
    outer = [
        msgspec.structs.replace(s, exclusive_ns=s.exclusive_ns - 1000) if s.kind == "attention" else s
        for s in made.spans
    ]
    finer = replace(made, spans=(*outer, *inner))
    for before, after in zip(summarize(made).phases, summarize(finer).phases, strict=True):
        assert [(p.name, p.ns) for p in after.buckets] == [(p.name, pytest.approx(p.ns)) for p in before.buckets]


def test_a_delay_in_one_layer_of_one_rank_is_named_and_shows_as_waiting_at_the_other() -> None:
    summary = summarize(built(slow=(1, 2, 5 * MS)))
    assert {(s.phase, s.rank, s.path) for s in summary.slow_layers} == {
        ("prefill", 1, "layers.2"),
        ("decode", 1, "layers.2"),
    }
    for name in ("prefill", "decode"):
        assert phase(summary, name, 0).ns(WAIT) == pytest.approx(5 * MS, rel=0.05)
        assert phase(summary, name, 1).ns(WAIT) < MS / 10
        late = {layer.name: layer.figure.value for layer in phase(summary, name, 1).layers}
        assert late["layers.2"] - late["layers.1"] == pytest.approx(5 * MS, rel=0.05)
    found = {advice.rule: advice for advice in advise(summary)}
    assert "Give rank 1 less" in found["waiting"].action
    assert "layers.2 at rank 1" in found["slowest layer"].action
    assert "Rank 0 waits" in verdict(summary, ())


def test_a_rank_that_is_late_in_every_other_step_is_not_accused() -> None:
    """One was: the middle half of the steps, which were others at each rank, held more of its late ones."""
    one, other = (built(slow=(rank, 2, 30 * MS), repetitions=10, tokens=2) for rank in (0, 1))
    whole = []
    for made, turn in ((one, 0), (other, 1)):
        kept = {step.number for step in made.steps if (step.number // 2 + step.number) % 2 == turn}
        whole.append([tuple(e for e in each if getattr(e, "step", getattr(e, "number", None)) in kept)
                      for each in (made.steps, made.spans, made.calls)])  # fmt: skip
    steps, spans, calls = (a + b for a, b in zip(*whole, strict=True))
    summary = summarize(replace(one, steps=steps, spans=spans, calls=calls))
    assert summary.late["decode"] is None
    assert not any("Give rank" in each.action for each in advise(summary))
    assert not any("entered last" in each for each in sentences(summary))
    for rank in (0, 1):
        found = phase(summary, "decode", rank)
        assert found.ns(WAIT) == pytest.approx(15 * MS, rel=0.05)
        layers = {part.name: part.ns - part.communication_ns for part in found.layers}
        assert found.ns("mlp", "attention", "other blocks") == pytest.approx(sum(layers.values()), rel=0.05)
        assert layers["layers.2"] - layers["layers.1"] == pytest.approx(15 * MS, rel=0.05)


def test_a_slow_transport_shows_as_transfer() -> None:
    summary = summarize(built(transfer_ns=3 * MS))
    assert phase(summary, "decode", 0).ns(TRANSFER) == pytest.approx(24 * MS, rel=1e-3)
    assert advise(summary)[0].rule == "transfer"


def test_a_busy_machine_is_said_before_all_that_it_may_have_caused() -> None:
    """On one, a slow transport was the first advice, and no word of the cores that were not there."""
    made = built(transfer_ns=3 * MS)
    waited = [msgspec.structs.replace(s, core_wait_ns=s.wall_ns // 10 * s.rank) for s in made.steps]
    summary = summarize(replace(made, steps=tuple(waited)))
    first = advise(summary)[0]
    assert (first.rule, first.gain_ratio) == (BUSY, None)
    assert first.evidence == "Rank 1 was ready and had no core for 10 % of its steps."
    assert first.evidence in verdict(summary, advise(summary))
    said = " ".join(" ".join(comparison_lines(compare([summarize(made)], [summary]))).split())
    assert said.startswith(f"b: {first.evidence} All times of that run hold the wait")
    assert summarize(made).core_wait() is None
    stopped = next(step for step in waited if (step.rank, step.source) == (1, "spans"))
    longer = tuple(msgspec.structs.replace(s, wall_ns=s.wall_ns + 5 * 10**9) if s is stopped else s for s in waited)
    assert summarize(replace(made, steps=longer)).core_wait() == (1, pytest.approx(0.1, rel=0.01))


def test_a_slow_layer_of_a_pipeline_is_named_before_the_waiting_that_it_causes() -> None:
    """A stage of two layers was compared with nothing, and to fill the pipeline was to save all that a rank waits."""
    made = built(layers=2, slow=(0, 1, 30 * MS))
    places = {"layers.0": "layers.2", "layers.1": "layers.3"}
    spans, calls = (
        tuple(
            msgspec.structs.replace(each, path=places[each.path[:8]] + each.path[8:])
            if each.rank == 1 and each.path[:8] in places else each for each in kept
        ) for kept in (made.spans, made.calls)
    )  # fmt: skip
    setting = replace(made.setting or Setting(model=""), parallel="pp2")
    summary = summarize(replace(made, setting=setting, spans=spans, calls=calls))
    assert summary.slow_layers == ()
    layer, waiting = (each for each in advise(summary) if each.rule in {"slowest layer", "waiting"})
    assert "layers.1 at rank 0" in layer.action
    assert "Keep the pipeline full" in waiting.action
    busy = max(each.wall_ns - each.ns(WAIT) for each in summary.phases if each.phase == waiting.phase)
    whole = max(each.wall_ns for each in summary.phases if each.phase == waiting.phase)
    assert waiting.gain_ratio == pytest.approx(1 - busy / whole)
    assert waiting.gain_ratio < 0.1 < max(each.share(WAIT) for each in summary.phases)


def test_the_largest_part_is_that_of_all_phases() -> None:
    made = built(slow=(1, 2, 5 * MS))
    (largest,) = (each for each in advise(summarize(made)) if each.rule == "largest part")
    assert largest.phase == "decode", "5 of 9 ms there, of a prompt 5 of 22"


def test_spans_save_no_time() -> None:
    assert "spans save no time" in cost_words(Overhead(Interval(-0.53, -0.37, -0.01), 10))
    assert cost_words(Overhead(Interval(0.01, 0.02, 0.03), 10)) == "+2.00 % [+1.00, +3.00]"


def test_memory_that_a_layer_takes_outside_of_its_modules_is_shown() -> None:
    sizes = {"layers.0": 3_000, "layers.0.mlp": 2_000, "layers.0.attn": 1_000, "layers.1": 10**8, "layers.1.mlp": 2_000}
    made = replace(built(), memory=(Memory(0, 1, 1, 1, 1, sizes),))
    rows = dict(module_table(summarize(made)).rows)
    assert {*rows} == {"layers.0.mlp", "layers.0.attn", "layers.1", "layers.1.mlp"}
    assert rows["layers.1"] == "100"


def test_a_clock_that_is_not_known_well_leaves_communication_undivided() -> None:
    made = replace(built(), clock_error_ns=10 * MS)
    each = phase(summarize(made), "decode", 0)
    assert each.ns(WAIT) == each.ns(TRANSFER) == 0
    assert each.ns(UNDIVIDED) > 8 * TRANSFER_NS
    assert sum(part.ns for part in each.buckets) == pytest.approx(each.wall_ns)


def test_a_quiet_equal_run_gives_no_advice_but_the_largest_part_and_no_slow_layer() -> None:
    summary = summarize(built(transfer_ns=10_000))
    assert {advice.rule for advice in advise(summary)} <= {"largest part"}
    assert summary.slow_layers == ()


def test_after_too_few_repetitions_nothing_is_claimed() -> None:
    summary = summarize(built(repetitions=2, slow=(1, 2, 5 * MS)))
    assert summary.slow_layers == ()
    assert all(each.wall.interval is None for each in summary.phases)
    assert all(total.overhead.ratio is None for total in summary.totals)
    assert "slowest layer" not in {advice.rule for advice in advise(summary)}
    comparison = compare([summary], [summarize(built(repetitions=2, seed=4))])
    assert all(row.ratio is None and row.verdict == "no clear difference" for row in comparison.rows)


def test_the_own_cost_comes_from_pairs_of_repetitions() -> None:
    made = built(noise_ratio=0.001)
    dear = tuple(
        msgspec.structs.replace(s, wall_ns=int(1.05 * s.wall_ns)) if s.source == "spans" else s for s in made.steps
    )
    for total in summarize(replace(made, steps=dear)).totals:
        assert total.overhead.is_resolved
        assert total.overhead.ratio is not None
        assert total.overhead.ratio.low <= 0.05 <= total.overhead.ratio.high or total.overhead.ratio.low > 0.04
    assert any("Own cost" in line for line in screen(summarize(made)))


def test_a_plan_and_calls_alone_say_how_many_calls_there_are() -> None:
    plan = summarize(without_times(built(repetitions=1)))
    assert (plan.phases, plan.totals) == ((), ())
    assert "plan of" in screen(plan)[0]
    assert summarize(Profile(Setting(model="none"))).tokens_per_s is None


def test_a_comparison_finds_what_differs_and_only_that() -> None:
    a, b = summarize(built()), summarize(built(slow=(1, 2, 5 * MS), seed=2))
    comparison = compare([a], [b])
    found = {(row.rank, row.name) for row in comparison.rows if row.verdict != "no clear difference"}
    assert found == {(None, "latency"), (0, WAIT), (1, "mlp"), (1, "layers.2")}
    assert comparison.differences == ()
    again = compare([a], [summarize(built(seed=3))])
    assert [row.name for row in again.rows if row.verdict != "no clear difference"] == []


def test_single_runs_tell_no_difference_below_a_factor_of_two_and_several_do() -> None:
    def runs(transfer_ns: int, first: int) -> list[Summary]:
        return [summarize(built(transfer_ns=transfer_ns, seed=first + place)) for place in range(3)]

    a, b = runs(TRANSFER_NS, 1), runs(TRANSFER_NS * 3, 4)
    single = compare(a[:1], b[:1])
    claims = {(row.name, row.phase): row.is_claim for row in single.rows if row.verdict == "slower"}
    assert claims["latency", "decode"] is False
    assert claims[TRANSFER, "decode"] is True
    lines = " ".join(comparison_lines(single))
    assert "slower in these runs" in lines
    assert "compare A,A2,A3 with B,B2,B3" in " ".join(lines.split())
    several = compare(a, b)
    assert {row.name for row in several.rows if row.verdict == "slower"} == {"latency", TRANSFER}
    assert all(row.is_claim for row in several.rows)
    assert several.remarks == (MEDIANS,)


def test_what_is_no_repetition_is_not_compared() -> None:
    one, other, third = (summarize(built(seed=number)) for number in (1, 2, 3))

    def of(summary: Summary, **changes: Any) -> Summary:
        return replace(summary, profile=replace(summary.profile, **changes))

    (difference,) = compare([one], [of(other, machine={"cpu_model": "another"})]).differences
    assert difference[0] == "cpu_model"
    for a, b, words in (
        ([one], [summarize(without_times(built()))], "no times to compare"),
        ([one, one, one], [one, other, third], "a run that is named twice"),
        ([one, other], [third], "2 and 1"),
        ([one, other], [one, other], "2 and 2"),
        ([one, other, summarize(built(ranks=1))], [one, other, third], "different settings"),
        ([one, other, of(third, machine={"cpu_model": "another"})], [one, other, third], "different settings"),
        ([one, other, third], [third, one, other], "a run on both sides"),
    ):
        with pytest.raises(ConfigError, match=words):
            compare(a, b)


def test_a_step_in_which_a_rank_stood_still_is_named_and_in_no_other_figure() -> None:
    made, late_ns = built(), 5 * 10**9
    victim = next(step for step in made.steps if (step.rank, step.phase, step.source) == (1, "decode", "spans"))
    steps = tuple(msgspec.structs.replace(step, wall_ns=step.wall_ns + late_ns) if step is victim else step
                  for step in made.steps)  # fmt: skip
    last = max(call.exit_ns or 0 for call in made.calls if (call.rank, call.step) == (1, victim.number))
    calls = tuple(
        msgspec.structs.replace(call, exit_ns=(call.exit_ns or 0) + late_ns)
        if call.exit_ns == last and call.rank == 1 else call for call in made.calls
    )  # fmt: skip
    still = summarize(replace(made, steps=steps, calls=calls))
    (held,) = still.held_up
    assert (held.phase, held.step, held.rank, held.seen_at) == ("decode", victim.number, None, 1)
    assert any("another that it waits for" in said and f"step {held.step} (dec" in said for said in sentences(still))
    waiting = tuple(
        msgspec.structs.replace(call, wait_ns=(call.wait_ns or 0) + late_ns)
        if (call.rank, call.step) == (0, victim.number) else call for call in summarize(made).profile.calls
    )  # fmt: skip
    (held,) = summarize(replace(made, steps=steps, calls=waiting)).held_up
    assert held.rank == 1, "rank 0 waited for it"
    assert summarize(made).held_up == ()
    slow = tuple(msgspec.structs.replace(step, wall_ns=10**9) for step in made.steps)
    longer = tuple(
        msgspec.structs.replace(step, wall_ns=step.wall_ns * (3 if step.number == victim.number else 1))
        for step in slow
    )
    assert [each.phase for each in summarize(replace(made, steps=longer)).held_up] == ["decode"]
    before, after = (each.total("decode").totals.ops for each in (summarize(made), still))
    assert [op.operation_ns for op in before] == pytest.approx([op.operation_ns for op in after], rel=0.1)


def test_an_interval_never_contradicts_the_verdict_beside_it() -> None:
    runs = [summarize(built(transfer_ns=int(TRANSFER_NS * (1 + number / 3)), seed=number)) for number in range(6)]
    rows = [row for other in runs[1:] for row in compare(runs[:1], [other]).rows]
    rows += compare(runs[:3], runs[3:]).rows
    unclear = [row.ratio for row in rows if row.ratio and row.verdict == "no clear difference"]
    assert unclear
    assert all(ratio.low <= 1 <= ratio.high for ratio in unclear)


def test_an_interval_that_holds_anything_is_none() -> None:
    """Some waits of the other run were 0."""
    waits = summarize(built(slow=(1, 2, 5 * MS)))
    some = replace(waits, phases=tuple(replace(phase, buckets=tuple(map(_now_and_then, phase.buckets)))
                                       for phase in waits.phases))  # fmt: skip
    (row,) = (
        each for each in compare([waits], [some]).rows if (each.phase, each.rank, each.name) == ("decode", 0, WAIT)
    )
    assert (row.ratio, row.verdict) == (None, "no clear difference")


def _now_and_then(part: Part) -> Part:
    return replace(part, figure=figure_of([1.0, 5e6, 1.0, 5e6, 2e6])) if part.name == WAIT else part


def test_wrong_logits_are_said_first_and_nothing_is_advised() -> None:
    for error, words in ((0.5, "WRONG: logits differ"), (None, "WRONG: some logits are no numbers")):
        summary = summarize(replace(built(slow=(1, 2, 5 * MS)), agreement=Agreement(error)))
        assert screen(summary, advise(summary))[0].startswith(words)
        assert "believe no figure of this run" in verdict(summary, advise(summary))
        assert advise(summary) == ()


def test_a_screen_says_how_much_of_it_had_no_room() -> None:
    summary = summarize(replace(built(slow=(1, 2, 5 * MS)), remarks=("A remark. " * 200,)))
    lines = screen(summary, advise(summary))
    assert len(lines) <= 30
    assert "Sentences for which is no room here: 2; README.md has them." in lines
    assert any("tokens/s" in line for line in lines)
    plan = without_times(built())
    assert tables_of(summarize(plan))["parts"].rows == ()


def test_the_largest_part_is_most_only_above_a_half() -> None:
    assert "The largest part of a decoded token is mlp at rank" in verdict(summarize(built()), ())
    assert "Most of a decoded token is mlp at rank 1" in verdict(summarize(built(slow=(1, 2, 50 * MS))), ())
    own = summarize(replace(built(ranks=1), setting=Setting(model="own:model")))
    assert "a call of the model takes" in verdict(own, ())
    assert "--fused" not in " ".join(each.action for each in advise(own))


def test_client_and_server_are_not_compared() -> None:
    made = built(slow=(1, 2, 5 * MS))
    summary = summarize(replace(made, setting=Setting(model="qwen3-tiny", parallel="split", transport="shm")))
    assert summary.slow_layers == ()
    assert "waiting" not in {each.rule for each in advise(summary)}


def test_what_matters_comes_before_the_own_cost_on_a_screen() -> None:
    summary = summarize(built(slow=(1, 2, 5 * MS), repetitions=12))
    lines = screen(summary, advise(summary))
    late, layer, cost = (
        next(place for place, line in enumerate(lines) if words in line)
        for words in ("entered last 72 of 72 times in layers.2.mlp", "layers.2 takes", "Own cost")
    )
    assert max(late, layer) < cost


def test_a_comparison_says_which_settings_differ() -> None:
    a, b = summarize(built()), summarize(built(ranks=1))
    comparison = compare([a], [b])
    assert ("parallel", "tp2", "none") in comparison.differences
    said = " ".join(comparison_lines(comparison))
    assert said.startswith("They differ in more than time (parallel: tp2, none; ")
    assert "differ clearly" in said
    assert " ".join(comparison_lines(compare([a], [a]))).startswith("0 of ")


def test_the_screen_has_thirty_lines_of_110_columns_at_most() -> None:
    for made in (built(slow=(1, 2, 5 * MS)), built(ranks=4, layers=12), built(ranks=1)):
        summary = summarize(made)
        lines = screen(summary, advise(summary))
        assert len(lines) <= 30
        assert max(map(len, lines)) <= 110
        assert lines[0].startswith("A decoded token takes ")
        assert lines[-1] == "Figures that cannot be had here: 2; README.md says what they need."


def swept(parallel: str, low: float, high: float, rounds: int = 3, seq: int = 128, **other: float) -> SweepPoint:
    figures = {"whole_ns": Interval(low, (low + high) / 2, high)}
    figures |= {name: Interval(value, value, value) for name, value in other.items()}
    values: dict[str, str | int] = {"parallel": parallel, "transport": "shm", "threads": 1}
    return SweepPoint("parallel", values | {"seq": seq, "batch": 1, "tokens": 8}, figures, rounds_count=rounds)


def test_a_sweep_says_which_division_is_quickest_only_where_it_clearly_is() -> None:
    summary = summarize(Profile(Setting(model="none")))
    alone = swept("none", 2e6, 2.2e6)
    (found,) = advise(summary, [alone, swept("tp2", 1e6, 1.1e6), swept("pp2", 3e6, 3.3e6)])
    assert "tp2 over shm" in found.action
    assert found.gain_ratio == pytest.approx(0.5)
    assert advise(summary, [alone, swept("tp2", 1.9e6, 2.1e6)]) == ()
    (found,) = advise(summary, [alone, swept("tp2", 3e6, 3.1e6)])
    assert "1 process" in found.action
    assert advise(summary, [swept("none", 2e6, 2e6, 1), swept("tp2", 1e6, 1e6, 1)]) == ()


def test_all_sweeps_together_give_one_decision() -> None:
    summary = summarize(Profile(Setting(model="none")))
    phases = [swept("none", 2e6, 2e6, ttft_ns=2e6, time_per_token_ns=1e5),
              swept("tp2", 1e6, 1e6, ttft_ns=5e5, time_per_token_ns=2e5)]  # fmt: skip
    (found,) = advise(summary, phases)  # of which one phase alone would say the contrary
    assert found.action == "Use tp2 over shm."
    short = [swept("none", 1e6, 1e6, seq=8), swept("tp2", 3e6, 3e6, seq=8)]
    (found,) = advise(summary, [*phases, *short])
    settings = [f"{seq} tokens, batch 1, 8 decoded" for seq in (128, 8)]
    assert found.action == f"Use tp2 over shm for {settings[0]}; 1 process for {settings[1]}."


def test_what_a_sweep_advises_against_is_not_to_be_mended() -> None:
    """Who is to use one process has no ranks to balance; the best transport is not to be replaced."""
    summary = summarize(built(slow=(1, 2, 5 * MS), transfer_ns=3 * MS))
    rules = {each.rule for each in advise(summary)}
    assert {"waiting", "transfer"} <= rules
    whole = {each.rule for each in advise(summary, [swept("none", 1e6, 1e6), swept("tp2", 2e6, 2e6)])}
    assert whole == rules - {"waiting", "transfer"} | {"division"}
    divided = {each.rule for each in advise(summary, [swept("none", 2e6, 2e6), swept("tp2", 1e6, 1e6)])}
    assert divided == rules - {"transfer"} | {"division"}


def test_blocks_of_a_model_of_other_names_are_parts_by_themselves() -> None:
    made = built(ranks=1, layers=12, noise_ratio=0.0)
    own = [msgspec.structs.replace(s, kind="block") if s.kind == "mlp" else s for s in made.spans if s.kind != "layer"]
    summary = summarize(replace(made, spans=tuple(own)))
    each = phase(summary, "decode", 0)
    blocks = [f"layers.{number}.mlp" for number in range(12)]
    assert [unit.name for unit in each.units] == blocks
    assert {name: each.ns(name) for name in blocks} == pytest.approx(dict.fromkeys(blocks, 0.5 * LAYER_NS["decode"]))
    assert sum(part.ns for part in each.buckets) == pytest.approx(each.wall_ns)
    lines = screen(summary)
    assert len(lines) <= 30
    assert sum(line.startswith("layers.") for line in lines) == 8
    assert any(line.startswith("4 more blocks") for line in lines)
