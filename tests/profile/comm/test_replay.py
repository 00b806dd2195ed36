"""Planned calls equal what is known of them otherwise; a replay carries them out, and claims nothing too early."""

from __future__ import annotations

import msgspec
import pytest

from ipcbench.cli.profile_traffic import replay_lines
from ipcbench.diagnose.synth import split_calls
from ipcbench.errors import ConfigError, StoreError
from ipcbench.models import PRESETS
from ipcbench.profile.comm.replay import (
    OverTransport,
    Replayed,
    _calls_count,
    _first,
    _fitting,
    _predict,
    _whole,
    replay,
)
from ipcbench.profile.comm.synth import planned
from ipcbench.profile.model.plan import Plan, find_model
from ipcbench.profile.records import Call, Profile, Setting, Step
from ipcbench.registry import status
from ipcbench.replay.latency_table import LatencyTable

_MODEL = find_model("qwen3-tiny")


def _plan(parallel: str, **changes: int) -> Profile:
    setting = Setting(model="qwen3-tiny", parallel=parallel, seq=16, tokens=1, **changes)
    return Profile(setting, calls=planned(_MODEL, Plan.parse(parallel), setting), is_planned=True)


def test_split_inference_moves_the_bytes_that_diagnose_plans() -> None:
    model = PRESETS["llama-3.2-1b"]
    setting = Setting(model="llama-3.2-1b", parallel="split", seq=1024, tokens=0, phases=("prefill",))
    calls = [call for call in planned(model, Plan.parse("split"), setting) if call.rank == 0]
    theirs = split_calls(model, 1024)
    assert sum(call.bytes for call in calls if call.op == "send") == sum(sent for _, sent, _ in theirs)
    assert [call.bytes for call in calls if call.op == "recv"] == [received for _, _, received in theirs]


def test_tensor_parallelism_reduces_twice_a_layer() -> None:
    calls = _plan("tp2", batch=3).calls
    assert len(calls) == 2 * 2 * (2 * 4)  # ranks, steps, two in each of four layers
    assert {call.bytes for call in calls if call.step == 0} == {3 * 16 * 256 * 4}
    assert {call.bytes for call in calls if call.step == 1} == {3 * 256 * 4}


def test_a_replay_needs_three_rounds_to_claim_anything() -> None:
    done = replay(_plan("tp2"), ["shm", "pipe"], rounds=3)
    assert set(done.transports) == {"shm", "pipe"}
    assert done.is_claim
    assert done.recorded_ns is None
    for each in done.transports.values():
        assert all(0 <= share <= 1 for share in each.core_waits)
        assert len(each.core_waits) == 3
        assert each.measured is not None
        assert each.predicted is not None
        assert 0 < each.measured.low <= each.measured.estimate
    single = replay(_plan("pp2"), ["shm"], rounds=1)
    assert not single.is_claim
    assert single.transports["shm"].measured is None


def test_a_replay_beside_which_ranks_had_no_core_says_so() -> None:
    over = OverTransport([1e6] * 3, [1e6] * 3, [0.02, 0.4, 0.3])
    quiet = OverTransport([2e6] * 3, [1e6] * 3, [0.0, 0.9, 0.01])
    said = " ".join(" ".join(replay_lines(Replayed({"shm": over, "pipe": quiet}, None, 4, 4, 1, 1, {}))).split())
    assert "Over shm, a rank was ready and had no core for 30 % of the replay" in said
    assert "Over pipe" not in said


def test_ranks_that_mpi_starts_replay_too() -> None:
    if not (found := status("mpi-p2p")).available:
        pytest.skip(found.reason)
    assert len(replay(_plan("split"), ["mpi-p2p"], rounds=1).transports["mpi-p2p"].walls_ns) == 1


def test_work_between_calls_takes_as_long_as_it_did() -> None:
    calls = [msgspec.structs.replace(call, gap_ns=2_000_000, enter_ns=1, exit_ns=2) for call in _plan("tp2").calls]
    steps = [Step(rank, number, "prefill", 0, "spans", 0, 30_000_000) for rank in (0, 1) for number in (0, 1)]
    done = replay(
        Profile(Setting(model="qwen3-tiny", parallel="tp2"), calls=tuple(calls), steps=tuple(steps)), ["shm"], rounds=1
    )
    assert done.recorded_ns == 60e6
    over = done.transports["shm"]
    assert over.walls_ns[0] > 2 * 8 * 2e6
    assert over.predicted_ns[0] > 2 * 8 * 2e6


def test_of_a_large_import_a_part_is_replayed_and_named() -> None:
    """With a rank's first call one that the other makes much later, and sends that a buffer takes."""
    rows = [("all_reduce", (0, 1)), ("send", (0, 1)), ("send", (0, 1)), ("send", (1, 0))] * 25_000
    calls = [
        Call(rank, 0, sequence, op if op != "send" or ranks[0] == rank else "recv", ranks, 64, "float32", "")
        for rank in (0, 1)
        for sequence, (op, ranks) in enumerate(rows)
    ]
    done = replay(Profile(None, calls=tuple(calls)), ["shm", "pipe"], budget_s=6.0, rounds=3)
    assert done.all_calls_count == 200_000
    assert 100 < done.calls_count < 150_000
    assert (done.recorded_ns, done.steps_count, done.all_steps_count) == (None, 1, 1)
    said = " ".join(" ".join(replay_lines(done)).split())
    assert f"Only the first {done.calls_count:,} of 200,000 calls were replayed" in said
    assert "what the others would take is not known" in said


def test_calls_slower_than_guessed_make_no_work_between_them_slower() -> None:
    rows = [[("all_reduce", (0, 1), 4000, gap_ns if number == 1 else 0, number) for number in range(11)]
            for gap_ns in (25_000_000, 261_000_000)]  # fmt: skip
    programs = [[(each, 0)] for each in rows]
    pilot = _first(programs, 250e6)
    assert _calls_count(pilot) == 2
    slow = {"shm": OverTransport([400_000.0])}
    for budget_s, rounds, count in ((10.0, 5, 22), (6.0, 5, 22), (3.5, 3, 2), (0.5, 3, 2)):
        found = _fitting(programs, pilot, slow, 1.0, budget_s, rounds)
        assert _calls_count(found) == count, budget_s


def test_a_part_has_all_members_of_its_operations() -> None:
    reduce, send, recv = ("all_reduce", (0, 1), 4, 0), ("send", (0, 1), 4, 0), ("recv", (0, 1), 4, 0)
    first, second = [(*send, 0), (*send, 1), (*reduce, 2)], [(*recv, 0), (*reduce, 2), (*recv, 1)]
    assert _whole([first, second], [3, 2]) == [1, 1]
    assert _whole([first, second], [3, 3]) == [3, 3]
    assert _whole([first, second], [0, 2]) == [0, 0]


def test_a_profile_without_calls_and_a_transport_of_one_process_are_refused() -> None:
    with pytest.raises(ConfigError, match="calls between ranks"):
        replay(Profile(Setting(model="qwen3-tiny")), ["shm"])
    with pytest.raises(ConfigError, match="between processes"):
        replay(_plan("tp2"), ["null"])
    with pytest.raises(ConfigError, match="names from `ipcbench list`"):
        replay(_plan("tp2"), [])


def test_calls_that_ranks_cannot_send_in_their_order_are_refused() -> None:
    """A replay predicted 0, or ended in KeyError, ValueError or IntegrityError."""
    rings = [(0, (0, 1)), (0, (0, 2)), (1, (1, 2)), (1, (0, 1)), (2, (0, 2)), (2, (1, 2))]
    ring = [Call(rank, 0, place % 2, "all_reduce", ranks, 8, "", "") for place, (rank, ranks) in enumerate(rings)]
    with pytest.raises(StoreError, match="in their order, ranks wait for one another"):
        replay(Profile(None, calls=tuple(ring)), ["shm"])
    tags = [Call(0, 0, place, "send", (0, 1), 8 + 8 * place, "", "", group=str(place)) for place in (0, 1)]
    tags += [Call(1, 0, 1 - place, "recv", (0, 1), 8 + 8 * place, "", "", group=str(place)) for place in (0, 1)]
    parts = [Call(rank, 0, 0, "all_to_all", (0, 1), 8 + rank, "", "") for rank in (0, 1)]
    foreign = [Call(rank, 0, 0, "all_reduce", (0, 1), 8, "", "") for rank in (0, 1, 2)]
    for calls in (tags, parts, foreign, [Call(0, 0, 0, "all_reduce", (), 8, "", "", 1, 2), *foreign[:2]]):
        with pytest.raises(StoreError, match=r"^these calls cannot be sent again one after another: "):
            replay(Profile(None, calls=tuple(calls)), ["shm"])


def test_a_prediction_follows_who_waits_for_whom() -> None:
    table = LatencyTable((8,), (10.0,))
    reduce = ("all_reduce", (0, 1), 8)
    step = [([(*reduce, 100, 0)], 5), ([(*reduce, 200, 0)], 0)]
    assert _predict(step, {("all_reduce", (0, 1)): table}) == 215
    message = (0, 1), 8
    first = [("send", *message, 100, number) for number in (1, 2)]
    second = [("recv", *message, 0, 1), ("recv", *message, 50, 2)]
    stages = [(first, 0), (second, 7)]
    assert _predict(stages, {("send", (0, 1)): table}) == 227
