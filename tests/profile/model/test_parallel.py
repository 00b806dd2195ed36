"""Every way to divide a model computes what one process does, and sends what was planned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from ipcbench.diagnose.synth import split_calls  # noqa: E402
from ipcbench.profile.model import wire  # noqa: E402
from ipcbench.profile.model.loading import load, prompt  # noqa: E402
from ipcbench.profile.model.parallel import Runner  # noqa: E402
from ipcbench.profile.model.plan import Plan, find_model  # noqa: E402
from ipcbench.profile.records import Setting  # noqa: E402
from tests.profile.model.ranks import in_ranks, logits, relative_error  # noqa: E402
from tests.profile.model.test_decoder import folder_of  # noqa: E402

TINY = Setting(model="qwen3-tiny", seq=16, tokens=2, batch=2)


def _agrees(setting: Setting) -> None:
    plan = Plan.parse(setting.parallel)
    found = in_ranks(plan.world, lambda rank: logits(setting, rank))
    expected = logits(replace(setting, parallel="none"))
    assert expected is not None
    with_logits = {0} if plan.is_split else set(plan.tensor_group(plan.logits_rank))
    assert {rank for rank, item in enumerate(found) if item is not None} == with_logits
    for rank in with_logits:
        assert relative_error(found[rank], expected) < 1e-5


@pytest.mark.parametrize(
    "setting",
    [
        replace(TINY, parallel="tp2"),
        replace(TINY, parallel="tp4", is_fused=True),
        replace(TINY, parallel="pp2", micro_batches=2),
        replace(TINY, parallel="tp2pp2", attention="eager"),
        replace(TINY, parallel="split"),
    ],
    ids=lambda setting: setting.parallel,
)
def test_ranks_compute_what_one_process_does(setting: Setting) -> None:
    _agrees(setting)


@pytest.mark.parametrize("parallel", ["tp2", "pp2"])
def test_models_of_transformers_are_divided_too(parallel: str, tmp_path: Path) -> None:
    facts = replace(find_model("qwen3-tiny"), vocab_size=300)
    folder_of(facts, "qwen3", tmp_path)
    _agrees(replace(TINY, model=str(tmp_path), parallel=parallel))


def _sent_bytes(setting: Setting, rank: int) -> list[tuple[str, int]]:
    """Return what a rank sends, receives and adds up in one prefill."""
    seen: list[tuple[str, int]] = []
    facts = find_model(setting.model)
    runner, ids = Runner(load(setting), setting, rank), prompt(setting, facts.vocab_size)
    for name in ("send", "recv", "all_reduce"):
        setattr(wire.dist, name, _noted(seen, name, getattr(wire.dist, name)))
    runner.step(ids[:, : setting.seq])
    return seen


def _noted(seen: list[tuple[str, int]], name: str, function: Any) -> Any:
    def noted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((name, tensor.nbytes))
        return function(tensor, *args, **kwargs)

    return noted


def test_a_split_model_sends_the_calls_that_are_planned() -> None:
    setting = replace(TINY, parallel="split", batch=1)
    client, server = in_ranks(2, lambda rank: _sent_bytes(setting, rank))
    planned = split_calls(find_model("qwen3-tiny"), setting.seq)
    assert sum(size for name, size in client if name == "send") == sum(sent for _, sent, _ in planned)
    assert [size for name, size in client if name == "recv"] == [received for _, _, received in planned]
    assert [size for name, size in server if name == "send"] == [received for _, _, received in planned]


def test_a_divided_model_sends_two_sums_a_layer_and_hidden_states() -> None:
    setting = replace(TINY, parallel="tp2pp2", micro_batches=2)
    of_rank = in_ranks(4, lambda rank: Counter(_sent_bytes(setting, rank)))
    hidden_bytes = 1 * 16 * 256 * 4  # of one micro-batch: sequences, tokens, elements, bytes of each
    for rank, seen in enumerate(of_rank):
        end = "send" if rank < 2 else "recv"
        assert seen == {("all_reduce", hidden_bytes): 2 * 2 * 2, (end, hidden_bytes): 2}


def test_the_parts_of_all_ranks_are_the_whole() -> None:
    tables = 4096 * 256  # the embedding, which the LM head shares, is whole at each rank that needs it
    for parallel, copies in (("tp2", 2), ("pp2", 2)):
        setting = replace(TINY, parallel=parallel)
        meta = torch.device("meta")
        parts = [Runner(load(setting, is_meta=True), setting, rank, meta) for rank in range(2)]
        whole = Runner(load(TINY, is_meta=True), TINY, 0, meta)
        norms = 0 if parallel == "pp2" else 4 * (2 * 256 + 2 * 32) + 256
        expected = whole.parameters_bytes + 4 * ((copies - 1) * tables + norms)
        assert sum(part.parameters_bytes for part in parts) == expected
        assert sum(part.cache_bytes or 0 for part in parts) == whole.cache_bytes
