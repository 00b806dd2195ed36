"""Waiting and transfer of operations whose times are known."""

from __future__ import annotations

import msgspec
import pytest

from ipcbench.profile.comm.waits import bubble, matched, misfits, totals
from ipcbench.profile.records import Call, Step


def _call(
    rank: int,
    sequence: int,
    op: str,
    enter: int | None,
    leave: int | None,
    ranks: tuple[int, ...] = (0, 1),
    step: int = 0,
) -> Call:
    return Call(rank, step, sequence, op, ranks, 4000, "float32", f"layers.{sequence}", enter, leave)


def test_the_first_waits_until_the_last_has_entered() -> None:
    calls = matched([_call(0, 0, "all_reduce", 100, 400), _call(1, 0, "all_reduce", 300, 420)])
    assert [call.wait_ns for call in calls] == [200, 0]
    (total,) = totals(calls).ops
    assert (total.count, total.wait_ns, total.operation_ns) == (1, 100.0, 120.0)
    assert total.algorithm_bytes_per_s == pytest.approx(4000 / 120e-9)
    assert total.bus_bytes_per_s == pytest.approx(4000 / 120e-9)  # 2(n − 1) / n is 1 for two ranks
    (late,) = totals(calls).stragglers
    assert (late.rank, late.path, late.count, late.of_count, late.late_ns) == (1, "layers.0", 1, 1, 200.0)


def test_one_long_stop_moves_neither_lateness_nor_bubble() -> None:
    """A sum of lateness had 25 ms of a stop of 5 s in each of 200 operations; a bubble of 33 % was 42 %."""
    second = 10**9
    starts = [number * 10 * second for number in range(9)]
    late = [*[80] * 8, 5 * second]
    reduced = [
        _call(rank, 0, "all_reduce", start + rank * by, start + by + 100, step=number)
        for number, (start, by) in enumerate(zip(starts, late, strict=True))
        for rank in (0, 1)
    ]
    (straggler,) = totals(matched(reduced)).stragglers
    assert (straggler.rank, straggler.count, straggler.late_ns) == (1, 9, 80.0)
    sent = [
        _call(rank, 0, ("send", "recv")[rank], start + (600 + by if rank == 0 else 0), start + 700 + by, step=number)
        for number, (start, by) in enumerate(zip(starts, late, strict=True))
        for rank in (0, 1)
    ]
    steps = [
        Step(rank, number, "decode", 1, "spans", start, 1000 + by)
        for number, (start, by) in enumerate(zip(starts, late, strict=True))
        for rank in (0, 1)
    ]
    found = bubble(matched(sent), steps, stages=2, micro_batches=1)
    assert found is not None
    assert found.measured_ratio == pytest.approx(680 / 2160)


def test_calls_that_cannot_be_those_of_all_ranks_are_said() -> None:
    whole = [_call(rank, 0, op, 100 + rank, 400) for rank, op in enumerate(("send", "recv"))]
    whole += [_call(rank, 1, "all_reduce", 500 + rank, 900) for rank in (0, 1)]
    assert [*misfits(whole)] == []
    assert [*misfits(whole[1:])] == ["messages of ranks 0 → 1 in step 0: 0 at rank 0, 1 at rank 1"]
    change = msgspec.structs.replace
    smaller = change(whole[3], bytes=2000)
    (unlike,) = misfits([*whole[:3], smaller])
    other = "that of rank 1 is all_reduce, 2,000 bytes float32"
    assert unlike == f"call 1 of step 0 at rank 0 is all_reduce, 4,000 bytes float32, {other}"
    gathered = [change(call, op="all_gather") for call in (whole[2], smaller)]
    assert len([*misfits(gathered)]) == 1
    exchanged = [change(call, op="all_to_all") for call in (whole[2], smaller)]
    assert [*misfits(exchanged)] == []
    assert len([*misfits(exchanged, may_differ=())]) == 1
    (typed,) = misfits([*whole[:3], change(whole[3], dtype="int32")])
    assert "4,000 bytes int32" in typed
    assert [*misfits([*whole[:3], change(whole[3], dtype="")])] == []


def test_calls_of_others_and_other_orders_are_said_and_other_groups_and_tags_are_none() -> None:
    change = msgspec.structs.replace
    foreign = _call(0, 1, "all_reduce", 1, 2, (2, 3))
    assert [*misfits([foreign])] == ["rank 0 has 1 all_reduce that cannot be its own, of operations of ranks 2, 3"]
    (sent,) = misfits([_call(1, 0, "send", 1, 2)])
    assert sent == "rank 1 has 1 send that cannot be its own, of messages of ranks 0 → 1"
    first = [_call(0, place, op, None, None) for place, op in enumerate(("all_reduce", "all_gather"))]
    second = [_call(1, place, op, None, None) for place, op in enumerate(("all_gather", "all_reduce"))]
    assert "is all_reduce" in next(misfits([*first, *second]))
    groups = [change(call, group=call.op) for call in (*first, *second)]
    assert [*misfits(groups)] == []
    tagged = [change(_call(0, n, "send", None, None), group=str(n), bytes=n) for n in (0, 1)]
    tagged += [change(call, rank=1, op="recv", sequence=1 - call.sequence) for call in tagged]
    assert [*misfits(tagged)] == []
    assert len([*misfits([change(call, group="") for call in tagged])]) == 2


def test_an_operation_that_ends_before_a_rank_begins_it_has_no_wait() -> None:
    """Of clocks that are apart, and of asynchronous calls, all was transfer and nobody waited."""
    calls = [_call(0, 0, "all_reduce", 100, 200), _call(1, 0, "all_reduce", 300, 420)]
    assert [call.wait_ns for call in matched(calls)] == [None, None]
    assert totals(matched(calls)).ops[0].operation_ns is None
    for ops in (("send", "recv"), ("broadcast", "broadcast"), ("gather", "gather"), ("scatter", "scatter")):
        sent = matched([_call(0, 0, ops[0], 300, 320), _call(1, 0, ops[1], 100, 101)])
        assert [call.wait_ns for call in sent] == [None, None]
        assert totals(sent).ops[0].algorithm_bytes_per_s is None
    strange = [_call(0, 0, "all_reduce", 100, 400), _call(2, 0, "all_reduce", 300, 420)]
    assert [call.wait_ns for call in matched(strange)] == [None, None]


def test_bus_bandwidth_counts_as_nccl_does() -> None:
    for op, factor in (("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)):
        calls = matched([_call(rank, 0, op, 0, 100, (0, 1, 2, 3)) for rank in range(4)])
        (total,) = totals(calls).ops
        assert total.bus_bytes_per_s == pytest.approx(factor * 4000 / 100e-9)


def test_a_send_that_a_buffer_took_waits_for_nobody() -> None:
    send, recv = matched([_call(0, 0, "send", 100, 150), _call(1, 0, "recv", 50, 170)])
    assert (send.wait_ns, recv.wait_ns) == (0, 50)
    early, late = matched([_call(0, 0, "send", 100, 150), _call(1, 0, "recv", 1000, 1020)])
    assert (early.wait_ns, late.wait_ns) == (0, 0)


def test_calls_are_matched_by_group_and_kind_in_order() -> None:
    calls = [_call(0, 0, "all_reduce", 0, 9), _call(0, 1, "send", 9, 12), _call(0, 2, "all_reduce", 20, 30)]
    calls += [_call(1, 0, "all_reduce", 1, 9), _call(1, 1, "recv", 9, 13), _call(1, 2, "all_reduce", 25, 31)]
    numbers = {(call.rank, call.sequence): call.match for call in matched(calls)}
    assert [numbers[0, n] for n in range(3)] == [numbers[1, n] for n in range(3)]
    assert len(set(numbers.values())) == 3


def test_nothing_is_divided_by_doubtful_clocks_or_without_times() -> None:
    calls = [_call(0, 0, "all_reduce", 100, 400), _call(1, 0, "all_reduce", 300, 420)]
    assert [call.wait_ns for call in matched(calls, clock_error_ns=13)] == [None, None]
    assert [call.wait_ns for call in matched(calls, clock_error_ns=12)] == [200, 0]
    planned = totals(matched([_call(rank, 0, "all_reduce", None, None) for rank in (0, 1)]))
    assert (planned.ops[0].count, planned.ops[0].operation_ns, planned.stragglers) == (1, None, ())


def test_the_bubble_stands_beside_the_formula() -> None:
    calls = matched([_call(0, 0, "send", 600, 650), _call(1, 0, "recv", 0, 700)])
    steps = [Step(rank, 0, "prefill", 0, "spans", 0, 1000) for rank in (0, 1)]
    found = bubble(calls, steps, stages=2, micro_batches=3)
    assert found is not None
    assert (found.measured_ratio, found.formula_ratio) == pytest.approx((0.3, 0.25))
    early = [Step(0, 0, "prefill", 0, "spans", 0, 600), Step(1, 0, "prefill", 0, "spans", 0, 1000)]
    found = bubble(calls, early, stages=2, micro_batches=3)
    assert found is not None
    assert found.measured_ratio == pytest.approx(0.5)  # the first stage has nothing to do after its own end
