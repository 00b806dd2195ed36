"""The ladder: exact bytes of a scaled pass, all stages between real processes, and what fails or cannot run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from ipcbench.diagnose.ladder import (
    STAGES,
    LadderResult,
    StageResult,
    ladder_chart,
    ladder_fields,
    ladder_table,
    measure_ladder,
)
from ipcbench.diagnose.ladder import side as sides
from ipcbench.diagnose.ladder.links import Link, Received
from ipcbench.diagnose.ladder.measure import pass_time_s, touched_time_s
from ipcbench.diagnose.ladder.result import Rounds, conclude
from ipcbench.diagnose.ladder.scale import TURN_S, Pilot, Scale, choose_scale, round_s
from ipcbench.diagnose.ladder.stages import Stage, traffic_of
from ipcbench.diagnose.synth import split_calls
from ipcbench.errors import BackendUnavailable, ConfigError, IntegrityError, TrialError
from ipcbench.harness.group import Group
from ipcbench.models import PRESETS, Model, read_model
from ipcbench.processes.cleanup import find
from ipcbench.processes.run_dir import RunDir
from ipcbench.render.plots import plot_files
from ipcbench.render.text import aligned
from tests.models.test_config import stored

LLAMA = PRESETS["llama-3.2-1b"]
BY_NAME = {stage.name: stage for stage in STAGES}
FUSED = BY_NAME["in place, fused calls"]
ONE_LAYER = Scale(1024, 1, 3)
ODD: dict[str, Any] = {"hidden_size": 36, "num_key_value_heads": 1, "head_dim": 9, "intermediate_size": 51}


@pytest.fixture
def tokens_of_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were made."""
    made: list[str] = []
    original = RunDir.__init__

    def noting(self: RunDir) -> None:
        original(self)
        made.append(self.token)

    monkeypatch.setattr(RunDir, "__init__", noting)
    return made


@pytest.fixture(scope="module")
def fonts() -> None:
    """Have matplotlib open its fonts, which it keeps open, before a test watches for open files."""
    list(plot_files((ladder_chart(made_up(3)),), ""))


@pytest.fixture
def tiny(tmp_path: Path) -> Model:
    """A model of two layers; some of its tensors do not fill whole words."""
    return read_model(stored(tmp_path, **ODD, vocab_size=101))


@pytest.mark.parametrize("stage", [stage for stage in STAGES if not stage.is_fused], ids=lambda stage: stage.label)
@pytest.mark.parametrize("tokens", [1, 7, 1024])
@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-0.6b"])
def test_one_layer_times_its_count_is_the_whole_pass(name: str, tokens: int, stage: Stage) -> None:
    model = PRESETS[name]
    traffic, whole = traffic_of(model, tokens, stage), split_calls(model, tokens, stage.dtype)
    order = [place for part in traffic.order(model.num_hidden_layers) for place in part]
    calls = [traffic.calls[place] for place in order]
    assert [(call.method, sum(call.sent_bytes), sum(call.received_bytes)) for call in calls] == [*whole]
    assert traffic.moved_bytes(model.num_hidden_layers) == sum(sent + received for _, sent, received in whole)
    assert traffic.calls_count(model.num_hidden_layers) == len(whole)


def test_fused_calls_bring_one_tensor_and_take_one() -> None:
    traffic = traffic_of(LLAMA, 1024, FUSED)
    hidden_bytes = 1024 * 2048 * 2
    assert [(call.sent_bytes, call.received_bytes) for call in traffic.layer] == [
        ((hidden_bytes,), (hidden_bytes,))
    ] * 2
    assert traffic.calls_count(16) == 34
    ends_bytes = 8 * 1024 + hidden_bytes + 2 * 2048 + 2 * 128256
    assert traffic.moved_bytes(16) == ends_bytes + 16 * 4 * hidden_bytes


def test_the_tensors_of_a_call_stay_apart() -> None:
    qkv, scores, *_ = traffic_of(LLAMA, 4, BY_NAME["shared memory, gather"]).layer
    assert qkv.received_bytes == (4 * 2048 * 2, 4 * 512 * 2, 4 * 512 * 2)
    assert scores.sent_bytes == (32 * 4 * 64 * 2, 32 * 4 * 64 * 2)


def test_time_in_layers_is_multiplied_and_the_rest_is_not() -> None:
    client = {
        "begin_ns": 1_000,
        "end_ns": 1_000 + 3_000_000_000,
        "layers_ns": 2_000_000_000,
        "touched_ns": [10**9, 10**9],
    }
    assert pass_time_s([client], 1, 16.0) == pytest.approx(1.0 + 32.0)
    assert pass_time_s([client], 2, 16.0) == pytest.approx(16.5)
    assert touched_time_s([client], 2, 16.0, within={1}) == pytest.approx((1.0 + 16.0) / 2)


def test_two_streams_are_one_span_of_time() -> None:
    """A time that adds the streams up, or takes the shorter one."""
    clients = [
        {"begin_ns": 0, "end_ns": 3 * 10**9, "layers_ns": 0},
        {"begin_ns": 10**9, "end_ns": 5 * 10**9, "layers_ns": 0},
    ]
    assert pass_time_s(clients, 1, 1.0) == pytest.approx(2.5)
    assert touched_time_s([{"touched_ns": [10**9]}, {"touched_ns": [3 * 10**9]}], 1, 1.0, within={0}) == pytest.approx(
        1.0
    )


def pilots(per_byte_s: float, start_s: float = 0.1) -> dict[str, Pilot]:
    return {"zmq": Pilot(start_s, per_byte_s), "shm": Pilot(start_s, per_byte_s / 10)}


def test_what_fits_is_carried_out_whole() -> None:
    assert choose_scale(LLAMA, 1024, 5, 1e6, STAGES, pilots(1e-9)) == Scale(1024, 16, 5)


def test_layers_go_before_rounds_and_rounds_before_tokens() -> None:
    one_layer_s = round_s(LLAMA, 1024, 1, STAGES, pilots(1e-8))
    for budget_s, expected in (
        (5.1 * one_layer_s, Scale(1024, 1, 5)),
        (4.9 * one_layer_s, Scale(1024, 1, 3)),
        (2.9 * one_layer_s, Scale(512, 1, 5)),
    ):
        assert choose_scale(LLAMA, 1024, 5, budget_s, STAGES, pilots(1e-8)) == expected


def test_a_sequence_is_not_shortened_for_nothing() -> None:
    """Where starting processes takes all the time, a shorter sequence saves none."""
    assert choose_scale(LLAMA, 8, 3, 1.0, STAGES, pilots(1e-12, start_s=100.0)) == Scale(8, 1, 3)
    assert round_s(LLAMA, 8, 1, STAGES, pilots(1e-12, start_s=100.0)) == pytest.approx(len(STAGES) * (100.0 + TURN_S))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4099])
def test_a_tensor_with_one_other_byte_is_noticed(size: int) -> None:
    tensor = np.full(size, sides.content(254), np.uint8)
    assert sides.is_filled(tensor, 255)
    assert size == 0 or not sides.is_filled(tensor, 1)
    for place in {0, size - 1} if size else ():
        tensor[place] -= 1
        assert not sides.is_filled(tensor, 255)
        tensor[place] += 1


class _Echo(Link):
    """Gives back what was sent, with something changed."""

    def __init__(self, **changes: Any) -> None:
        self._changes = changes

    def send(self, number: int, call: int, tensors: Any) -> None:
        self._sent = Received(number, call, [tensor.copy() for tensor in tensors])

    def receive(self) -> Received:
        return self._sent._replace(**self._changes)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(("changes", "words"), [
    ({"number": 1}, "message 0 came as 1"),
    ({"call": 1}, "the reply to call 0 is that of call 1"),
    ({"tensors": [np.ones(7, np.uint8)]}, r"tensors of \[7\] bytes in place of \[8\]"),
    ({"tensors": []}, r"tensors of \[\] bytes"),
    ({"tensors": [np.full(8, 2, np.uint8)]}, "other content than was sent"),
])  # fmt: skip
def test_another_message_than_expected_ends_the_run(changes: dict[str, Any], words: str) -> None:
    client = sides.ClientSide(_Echo(**changes), [[[8], [8]], [[8], [8]]], serves=False)
    with pytest.raises(IntegrityError, match=words):
        client.call(0)
    good = sides.ClientSide(_Echo(), [[[8], [8]]], serves=False)
    good.call(0)


def test_all_stages_between_real_processes_leave_nothing_behind(tiny: Model, tokens_of_runs: list[str]) -> None:
    told: list[str] = []
    result = measure_ladder(tiny, 5, rounds=2, budget_s=300.0, say=told.append)
    assert [stage.left_out for stage in result.stages] == [""] * len(STAGES)
    assert [len(stage.rounds_s) for stage in result.stages] == [2] * len(STAGES)
    assert (result.measured_layers_count, result.layers_count, result.tokens_count) == (2, 2, 5)
    assert result.is_full
    assert sum(line.startswith("round") for line in told) == 2 * len(STAGES)
    for stage in result.stages:
        assert stage.time_s is not None
        assert stage.touched_s is not None
        assert 0 < stage.touched_s < stage.time_s
        if not stage.is_fused:
            calls = split_calls(tiny, 5, "float32" if "float32" in stage.name else "bfloat16")
            moved_bytes = sum(sent + received for _, sent, received in calls)
            assert (stage.calls_count, stage.moved_bytes, stage.measured_bytes) == (
                len(calls),
                moved_bytes,
                moved_bytes,
            )
    assert [resource for token in tokens_of_runs for resource in find(token)] == []


@pytest.mark.usefixtures("fonts")
def test_every_form_shows_every_stage() -> None:
    result = made_up(3)
    text = "\n".join(aligned(ladder_table(result)))
    assert [stage.name for stage in result.stages if stage.name not in text] == []
    assert len(json.loads(json.dumps(ladder_fields(result), allow_nan=False))["stages"]) == len(STAGES)
    files = list(plot_files((ladder_chart(result),), "a test"))
    assert [file.name for file in files] == ["ladder.png", "ladder.svg"]
    svg = files[1].data.decode()
    assert [stage.label for stage in result.stages if stage.label not in svg] == []


def test_a_killed_process_is_the_reason_of_its_stage(
    tiny: Model, tokens_of_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, killed = Group.tell, []

    def tell(self: Group, questions: Any) -> None:
        if any("carry_out" in str(question) for question in questions.values()) and len(killed) < 2:
            killed.append(self.pids[len(killed)])  # a client, then a server
            os.kill(killed[-1], signal.SIGKILL)
        original(self, questions)

    monkeypatch.setattr(Group, "tell", tell)
    told: list[str] = []
    result = measure_ladder(tiny, 5, rounds=1, budget_s=60.0, full=True, say=told.append)
    reasons = [stage.left_out for stage in result.stages if stage.left_out]
    assert sorted(reason.split(" ")[0] for reason in reasons) == ["client", "server"]
    assert all("was killed by signal 9" in reason and "\n" not in reason for reason in reasons)
    assert sum(line.startswith("warning") for line in told) == 2
    assert sum(stage.time_s is not None for stage in result.stages) == len(STAGES) - 2
    assert [resource for token in tokens_of_runs for resource in find(token)] == []


def test_if_every_stage_fails_that_is_the_error(
    tiny: Model, tokens_of_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Group.connect

    def connect(self: Group, *arguments: Any) -> Group:
        connected = original(self, *arguments)
        os.kill(self.pids[0], signal.SIGKILL)
        return connected

    monkeypatch.setattr(Group, "connect", connect)
    with pytest.raises(TrialError, match="msgpack over zmq tcp, float32: client was killed by signal 9"):
        measure_ladder(tiny, 5, rounds=1, budget_s=10.0)
    assert [resource for token in tokens_of_runs for resource in find(token)] == []


def test_stages_without_room_or_library_have_that_reason(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.statvfs

    def nearly_full(path: Any) -> Any:
        if path != "/dev/shm":
            return original(path)
        return Mock(f_bavail=2, f_frsize=4096)

    monkeypatch.setattr(os, "statvfs", nearly_full)
    result = measure_ladder(tiny, 40, rounds=1, budget_s=60.0, full=True)
    assert [stage.number for stage in result.stages if stage.time_s is not None] == [1, 2, 3, 4, 8]
    reason = result.stages[4].left_out
    assert reason.startswith("/dev/shm has 0.00781 MiB left, and its messages need at least ")
    assert "--shm-size" in reason
    assert any(note.startswith("shared memory, gather: left out: /dev/shm") for note in result.notes)
    assert result.stages[7].before == "raw multipart over zmq ipc"

    refuse = Mock(side_effect=BackendUnavailable("zmq", "Python package 'zmq' is not installed", "pip install pyzmq"))
    monkeypatch.setattr("ipcbench.backends.zmq.backend.ZmqIpc.probe", refuse)
    monkeypatch.setattr(os, "statvfs", original)
    result = measure_ladder(tiny, 5, rounds=1, budget_s=60.0, full=True)
    assert {stage.left_out for stage in result.stages[:4]} == {
        "Python package 'zmq' is not installed; pip install pyzmq"
    }
    assert result.stages[4].before == ""
    assert result.stages[5].before == "shared memory, pack and write"
    assert all(stage.time_s is not None for stage in result.stages[4:])


def test_wrong_values_are_refused_before_anything_is_started(tiny: Model, tokens_of_runs: list[str]) -> None:
    for values, words in (
        ({"tokens": 0}, "tokens: 0"), ({"rounds": 0}, "rounds: 0"), ({"budget_s": 0.5}, "budget: 0.5"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            measure_ladder(tiny, **{"tokens": 4, "rounds": 1, "budget_s": 60.0, **values})  # type: ignore[arg-type]
    assert tokens_of_runs == []


def made_up(rounds: int, scale: Scale = ONE_LAYER, **left_out: str) -> LadderResult:
    """Return a ladder of which every stage takes half the time of the one before, but the last as long."""
    measured = []
    for place, stage in enumerate(STAGES):
        time_s = 8.0 / 2 ** min(place, len(STAGES) - 2)
        times_s = {index: time_s * (1.0 + 0.01 * ((index + place) % 3)) for index in range(rounds)}
        reason = left_out.get(stage.backend, "")
        measured.append(Rounds(stage, {} if reason else times_s, dict(times_s), reason))
    return conclude(LLAMA, 1024, scale, measured, 50.0)


def gains(result: LadderResult) -> list[StageResult]:
    return [stage for stage in result.stages if stage.gain_ratio]


def test_three_rounds_tell_gains_from_none() -> None:
    result = made_up(3)
    assert [stage.verdict for stage in result.stages] == [None, *["faster"] * 7, "no clear difference"]
    for stage in gains(result)[:-1]:
        assert stage.gain_ratio is not None
        assert stage.gain_ratio.estimate == pytest.approx(2.0, rel=0.03)
        assert stage.gain_ratio.interval is not None
        assert stage.gain_ratio.interval.low > 1.5
    last = result.stages[-1]
    assert last.gain_ratio is not None
    assert last.gain_ratio.interval is not None
    assert last.gain_ratio.interval.low < 1.0 < last.gain_ratio.interval.high
    assert last.first_gain_ratio is not None
    assert last.first_gain_ratio.estimate == pytest.approx(128.0, rel=0.05)
    assert "128" in result.notes[0]


@pytest.mark.parametrize("rounds", [1, 2])
def test_two_rounds_claim_nothing(rounds: int) -> None:
    result = made_up(rounds)
    assert {stage.verdict for stage in result.stages} == {None}
    assert {stage.time_interval_s for stage in result.stages} == {None}
    assert {stage.gain_ratio.interval for stage in gains(result) if stage.gain_ratio} == {None}
    assert result.notes[0].startswith("Fewer than 3 rounds")
    assert not any("[" in cell for row in ladder_table(result).rows for cell in row)


def test_the_notes_say_what_was_carried_out() -> None:
    assert any("1 of 16 layers (time in layers × 16.0)" in note for note in made_up(3).notes)
    shorter = made_up(3, Scale(256, 1, 3))
    assert any("256 of 1,024 tokens: all figures are of these" in note for note in shorter.notes)
    assert "over 256 tokens" in ladder_table(shorter).title
    whole = made_up(3, Scale(1024, 16, 3))
    assert whole.is_full
    assert any(note.startswith("All calls of all 16 layers") for note in whole.notes)
    assert any("overlap gains 0" in note for note in whole.notes)


def test_a_stage_that_was_left_out_has_no_figures() -> None:
    result = made_up(3, zmq="no zmq")
    assert [row[2] for row in ladder_table(result).rows[:4]] == ["–"] * 4
    assert [stage.verdict for stage in result.stages[:5]] == [None] * 5
    assert sum("left out: no zmq" in note for note in result.notes) == 4
    assert len(ladder_chart(result).charts[0].series[0].points) == 5
    assert not any("float32" in note for note in result.notes if "left out" not in note)
