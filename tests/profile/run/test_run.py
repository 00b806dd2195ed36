"""Runs of real ranks: their logits, their calls, and faults that must show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from ipcbench.errors import IpcbenchError, TrialError, WorkerCrashed
from ipcbench.profile.advice import BUSY, advise
from ipcbench.profile.comm.synth import planned
from ipcbench.profile.model import parallel
from ipcbench.profile.model.parallel import require_memory
from ipcbench.profile.model.plan import Plan, find_model
from ipcbench.profile.rank import Rank
from ipcbench.profile.records import Profile, Setting, read_profile, write_profile
from ipcbench.profile.run import Logits, Ranks, _concluded, _Made, agreement, profile
from ipcbench.profile.summary import TRANSFER, WAIT, summarize
from ipcbench.registry import status
from tests.profile.run.delayed import DELAY_NS, Delayed
from tests.profile.run.faulty import DYING, KEPT_BYTES, LARGE, LAYER, SLOW, SLOW_NS, WRONG

SHORT = Setting(model="qwen3-tiny", seq=16, tokens=2, batch=2, steps=1, warmup=0)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(5) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def reference(ranks: Ranks) -> Logits:
    return ranks.reference(SHORT)


@pytest.mark.parametrize(
    ("parallel", "transport"),
    [
        *[("tp2", name) for name in ("gloo", "shm", "pipe", "zmq", "zmq-tcp", "tcp", "lmdb")],
        ("tp4", "shm"), ("pp2", "pipe"), ("tp2pp2", "shm"), *[("split", name) for name in ("gloo", "shm", "pipe")],
    ],
)  # fmt: skip
def test_logits_are_those_of_one_process_and_calls_those_planned(
    parallel: str, transport: str, ranks: Ranks, reference: Logits
) -> None:
    _check(ranks, parallel, transport, reference)


def test_what_was_measured_on_a_gpu_says_on_which() -> None:
    made = _Made([("cuda:0", "A GPU"), ("cuda:0", "A GPU")], [], [])
    shared = _concluded(SHORT, made, None, 0)
    assert shared.verified_on == f"A GPU, torch {shared.versions['torch']}"
    assert shared.remarks[0].startswith("2 ranks share 1 GPU")
    assert [each.needs for each in shared.unavailable] == ["2 GPUs with CUDA"]
    split = _concluded(SHORT, _Made([("cpu", ""), ("cuda:0", "A GPU")], [], []), None, 0)
    assert (split.remarks, split.machine["devices"]) == ((), ["cpu", "cuda:0 A GPU"])
    assert _concluded(SHORT, _Made([("cpu", "")], [], []), None, 0).verified_on is None


def test_nccl_without_a_gpu_for_each_rank_is_refused() -> None:
    with pytest.raises(IpcbenchError, match=r"a CUDA device of its own|a build of torch with CUDA"):
        profile(replace(SHORT, parallel="tp2", transport="nccl"))


def test_logits_over_mpi_are_those_of_one_process(reference: Logits) -> None:
    if not (found := status("mpi-p2p")).available:
        pytest.skip(found.reason)
    with Ranks(2, launcher="mpiexec") as ranks:
        _check(ranks, "tp2", "mpi-p2p", reference)


def _check(ranks: Ranks, parallel: str, transport: str, reference: Logits) -> None:
    made = ranks.profile(replace(SHORT, parallel=parallel, transport=transport), reference)
    assert made.agreement is not None
    assert made.agreement.holds, made.agreement
    plan = planned(find_model(SHORT.model), Plan.parse(parallel), made.setting)
    numbers = sorted({step.number for step in made.steps if step.source == "spans"})
    found = [(c.rank, numbers.index(c.step), c.sequence, c.op, c.ranks, c.bytes, c.dtype) for c in made.calls]
    assert sorted(found) == sorted((c.rank, c.step, c.sequence, c.op, c.ranks, c.bytes, c.dtype) for c in plan)


@pytest.fixture(scope="module")
def faulty() -> Iterator[Ranks]:
    with Ranks(2, verbs="tests.profile.run.faulty:Faulty") as ranks:
        yield ranks


def _spoiled(ranks: Ranks, reference: Logits, batch: int, transport: str = "shm", steps: int = 1) -> Profile:
    """Return the profile of two ranks, of which one has the fault that this batch means."""
    of_batch = [each.reshape(SHORT.batch, -1)[:1].repeat(batch, 0).reshape(-1) for each in reference]
    setting = replace(SHORT, parallel="tp2", transport=transport, steps=steps, batch=batch)
    return ranks.profile(setting, of_batch)


def test_a_slow_layer_shows_there_and_as_waiting_at_the_other_rank(faulty: Ranks, reference: Logits) -> None:
    summary = summarize(_spoiled(faulty, reference, SLOW, steps=3))
    decode = {each.rank: each for each in summary.phases if each.phase == "decode"}
    (layer,) = (part for part in decode[1].layers if part.name.endswith(LAYER))
    assert layer.figure.value >= SLOW_NS
    assert decode[0].ns(WAIT) >= 0.9 * SLOW_NS
    total = summary.total("decode")
    assert total is not None
    assert total.totals is not None
    late = {(each.rank, each.path): each.late_ns for each in total.totals.stragglers}
    assert max(ns for (rank, path), ns in late.items() if rank == 1 and f"{LAYER}." in path) >= 0.5 * SLOW_NS


def test_a_slow_transport_shows_as_transfer_and_not_as_waiting(tmp_path: Path) -> None:
    options = ["--parallel", "tp2", "--transport", Delayed.name, "--seq", "8", "--tokens", "2", "--detail", "block"]
    command = [sys.executable, "-m", "ipcbench", "profile", "run", *options, "--steps", "3", "--warmup", "1", "-q"]
    subprocess.run([*command, "--out", str(tmp_path)], check=True, timeout=200, cwd=Path(__file__).parents[3])
    summary = summarize(read_profile(tmp_path))
    messages_count = 8  # 2 a layer, in each phase's step
    assert len(summary.phases) == 4
    for each in summary.phases:
        assert each.ns(TRANSFER) >= messages_count * DELAY_NS
    assert next(each.rule for each in advise(summary) if each.rule != BUSY) == "transfer"


def test_a_large_allocation_shows_as_memory_of_its_layer(faulty: Ranks, reference: Logits) -> None:
    small, large = sorted(_spoiled(faulty, reference, LARGE).memory, key=lambda each: each.rank)
    (layer,) = (path for path in large.layers if path.endswith(LAYER))
    assert large.layers[layer] >= KEPT_BYTES > small.layers[layer]
    assert large.peak_rss_bytes - small.peak_rss_bytes > KEPT_BYTES // 2


def test_wrong_logits_do_not_agree(faulty: Ranks, reference: Logits) -> None:
    made = _spoiled(faulty, reference, WRONG)
    assert made.agreement is not None
    assert not made.agreement.holds


def test_logits_that_are_no_numbers_do_not_agree_and_can_be_read_again(tmp_path: Path) -> None:
    found = agreement([[np.array([1, np.nan], np.float32)]], [np.array([1, 2], np.float32)], "float32")
    write_profile(tmp_path, Profile(SHORT, agreement=found))
    assert read_profile(tmp_path).agreement == found
    assert not found.holds
    assert found.words.startswith("WRONG: some logits are no numbers")


def test_decoding_alone_has_no_span_of_the_prompt() -> None:
    rank = Rank(0)
    setting = replace(SHORT, phases=("decode",))
    for question in ({"do": "prepare", "setting": asdict(setting), "imports": []},
                     {"do": "setup", "addresses": [], "init_method": ""}):  # fmt: skip
        assert rank.answer(question)["ok"]
    made = rank.iterate("spans", 0)
    steps = {step.number: step for step in made.steps}
    assert [step.phase for step in made.steps] == ["decode"] * SHORT.tokens
    assert all(steps[span.step].start_ns <= span.start_ns for span in made.spans)
    rank.answer({"do": "close"})


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_a_dying_rank_ends_the_run_in_one_line_that_names_it(transport: str, reference: Logits) -> None:
    with (
        Ranks(2, verbs="tests.profile.run.faulty:Faulty") as ranks,
        pytest.raises(WorkerCrashed, match=r"^rank 1 was killed by signal 9") as caught,
    ):
        _spoiled(ranks, reference, DYING, transport)
    assert "\n" not in str(caught.value)
    with pytest.raises(TrialError, match="an earlier run"):
        ranks.profile(SHORT, None)


def test_a_model_larger_than_memory_is_refused_in_one_line() -> None:
    with pytest.raises(IpcbenchError, match=r"llama-3\.1-70b.*GiB") as caught:
        profile(replace(SHORT, model="llama-3.1-70b"))
    assert not isinstance(caught.value, TrialError)


def test_parts_of_a_step_add_up_and_the_root_covers_it() -> None:
    made = profile(Setting(model="qwen3-tiny", seq=64, tokens=4, steps=3, warmup=1, detail="op"))
    assert made is not None
    summary = summarize(made)
    assert [each.phase for each in summary.phases] == ["prefill", "decode"]
    assert summary.core_wait() is not None
    for each in summary.phases:
        assert sum(part.ns for part in each.buckets) == pytest.approx(each.wall_ns, rel=0.005)
        assert each.coverage_ratio > 0.7  # 0.97 and more where nothing else runs
        assert each.operators


def test_a_bucket_that_fails_leaves_all_but_the_shares_of_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_bucket.py").write_text("""
from ipcbench.profile.timing.buckets import register_bucket
def fail(use): raise KeyError("no")
register_bucket("fails", fail)
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = profile(replace(SHORT, parallel="pp2", detail="op"), imports=["own_bucket"])
    assert made is not None
    assert len(made.memory) == 2
    assert made.spans
    assert made.operators == ()
    (failure,) = [each for each in made.unavailable if each.is_failure]
    assert "'fails'" in failure.what
    assert failure.needs.endswith("(KeyError: 'no', own_bucket.py:3)")


def test_memory_that_a_limit_refuses_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "getrlimit", lambda _: (2**20, 2**20))
    with pytest.raises(IpcbenchError, match=r"within the free 0\.00"):
        require_memory(SHORT)
    rank = Rank(0)

    def refused(_: object) -> dict[str, object]:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory")

    rank.verbs["setup"] = refused
    assert rank.answer({"do": "setup"})["error"] == "out of memory"
