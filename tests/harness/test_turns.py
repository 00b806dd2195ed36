"""Paced cells of a round take turns: never two at once, each by the clock; a failure in one leaves the others alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ipcbench.harness.plan import SILENCE_NS
from ipcbench.results.store import Run
from tests.harness.small_runs import FATAL, measure, single, sound, tiny

pytestmark = pytest.mark.usefixtures("broken_on_path")

INTERVAL_NS = 1_000_000


def turns_of(run: Run) -> list[tuple[int, int, str]]:
    """Return (when its first message was due, when its last was, backend) of every turn."""
    turns = []
    for trial in run.trials:
        if trial.spec.tail:
            continue
        due = run.samples(trial.trial_id, ("writer.intended_ns",))["writer.intended_ns"]
        for turn in np.split(due, np.flatnonzero(np.diff(due) > 2 * INTERVAL_NS) + 1):
            assert (np.diff(turn) == INTERVAL_NS).all()
            turns.append((int(turn[0]), int(turn[-1]), trial.spec.backend))
    return sorted(turns)


def test_backends_alternate_and_leave_a_gap(tmp_path):
    backends = ("shm", "pipe", "null")
    run = sound(tiny(backends=backends, modes=("paced",), window_s=0.15), tmp_path)
    assert {trial.spec.turns for trial in run.trials if not trial.spec.tail} == {4}
    turns = turns_of(run)
    order = [backend for _, _, backend in turns]
    assert sorted(order[:3]) == sorted(backends)
    assert order == order[:3] * 4
    gaps = [later - (end + INTERVAL_NS) for (_, end, _), (later, _, _) in pairwise(turns)]
    assert min(gaps) >= SILENCE_NS


def test_every_message_of_a_window_in_turns_is_validated_and_counted(tmp_path):
    run = sound(tiny(backends=("shm", "pipe"), modes=("paced",), readers=3, control=True, window_s=0.1), tmp_path)
    trials = [trial for trial in run.trials + run.controls if not trial.spec.tail]
    assert len(trials) == 3
    for trial in trials:
        assert trial.achieved_rate_per_s == pytest.approx(1000.0, rel=0.5), "a busy machine makes a turn longer"
        assert [endpoint.messages_count for endpoint in trial.endpoints] == [150] * 4
        for reader in trial.readers:
            assert reader.integrity.errors_count == 0
            assert reader.decode.count >= 5


def test_one_backend_alone_is_measured_in_the_same_way(tmp_path):
    run, trial = single(tiny(modes=("paced",)), tmp_path)
    assert trial.spec.turns == len(turns_of(run))


@pytest.mark.parametrize("changes", [{"rate_per_s": 1000.0}, {"delivery": "latest_value"}])
def test_a_given_rate_and_latest_value_take_no_turns(changes, tmp_path):
    run = sound(tiny(backends=("shm", "lmdb"), modes=("paced",), **changes), tmp_path)
    assert [trial.spec.turns for trial in run.trials] == [1, 1]


FAILING = dict(FATAL) | {
    "HangingReader": ["reader-0, reader-1 did not answer 'turn' within", "the transport hangs"],
    "LosingWriter": ["1 lost"],
    "DuplicatingWriter": ["1 duplicated"],
    "TearingReader": ["1 torn"],
}


@pytest.mark.parametrize(("name", "words"), FAILING.items())
def test_a_failure_in_a_turn_fails_that_trial_only(name, words, tmp_path):
    run, _ = measure(tiny(backends=("shm", f"broken:{name}", "pipe"), modes=("paced",)), tmp_path, stall_s=1.0)
    trials = {trial.spec.backend: trial for trial in run.trials if not trial.spec.tail}
    assert [(trials[backend].status, trials[backend].reason) for backend in ("shm", "pipe")] == [("ok", "")] * 2
    broken = trials[f"broken:{name}"]
    assert broken.status == "failed"
    assert [word for word in words if word not in broken.reason] == [], broken.reason
