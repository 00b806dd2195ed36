"""What operators are for, which share they have, what they do, and what is kept in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from ipcbench.errors import ConfigError  # noqa: E402
from ipcbench.models import operations  # noqa: E402
from ipcbench.profile.model.loading import load, prompt  # noqa: E402
from ipcbench.profile.model.parallel import Runner  # noqa: E402
from ipcbench.profile.model.plan import find_model  # noqa: E402
from ipcbench.profile.records import Setting  # noqa: E402
from ipcbench.profile.summary import BUCKETS  # noqa: E402
from ipcbench.profile.timing import buckets, flops  # noqa: E402
from ipcbench.profile.timing.buckets import Use, bucket, register_bucket  # noqa: E402
from ipcbench.profile.timing.memory import measure  # noqa: E402
from ipcbench.profile.timing.operators import operators  # noqa: E402

EAGER = Setting(model="qwen3-tiny", seq=16, tokens=2, attention="eager")
CPU = torch.device("cpu")
EVERY_PASS = """
import sys
from dataclasses import asdict
from ipcbench.profile.rank import Rank
from ipcbench.profile.records import Setting

rank, setting = Rank(0), asdict(Setting(model="qwen3-tiny", seq=8, tokens=2, detail="op"))
for asked in (
    {"do": "prepare", "setting": setting, "imports": []},
    {"do": "setup", "addresses": [], "init_method": ""},
    {"do": "iterate", "source": "spans", "number": 0},
    *({"do": name} for name in ("operators", "memory", "logits", "close")),
):
    answer = rank.answer(asked)
    assert answer["ok"], answer
assert not {"torch._dynamo", "torch._inductor", "sympy"} & {*sys.modules}
"""


@pytest.fixture
def own_buckets() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(buckets._own)
    yield
    buckets._own.clear()
    buckets._own.update(before)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (Use("aten::addmm", "layers.0.self_attn.k_proj", "attention"), "qkv"),
        (Use("aten::mm", "layers.0.mlp.gate_up_proj", "mlp"), "gate_up"),
        (Use("aten::mul", "layers.0.input_layernorm", "layer"), "norms"),
        (Use("aten::cat", "layers.0.self_attn", "attention"), "rope"),
        (Use("aten::bmm", "layers.0.self_attn", "attention"), "scores"),
        (Use("aten::bmm", "layers.0.self_attn", "attention", follows_softmax=True), "attention"),
        (Use("aten::silu", "layers.0.mlp", "mlp"), "activation"),
        (Use("c10d::allreduce_", "layers.0.mlp.down_proj", "mlp"), "communication"),
        (Use("aten::add", "layers.0", "layer"), "other"),
    ],
)
def test_operators_have_a_purpose(use: Use, expected: str) -> None:
    assert bucket(use) == expected


@pytest.mark.usefixtures("own_buckets")
def test_own_buckets_come_first() -> None:
    register_bucket("copies", lambda use: use.operator == "aten::copy_")
    assert bucket(Use("aten::copy_", "layers.0.self_attn.q_proj", "attention")) == "copies"
    for name in ("copies", "qkv", "rope", "scores", *BUCKETS):
        with pytest.raises(ConfigError, match="a name that no bucket has"):
            register_bucket(name, lambda _: True)


def test_each_operator_is_in_a_block_and_has_its_share() -> None:
    runner, ids = Runner(load(EAGER), EAGER), prompt(EAGER, 4096)
    work = flops.counted(lambda: runner.step(ids[:, :16]), runner)
    rows = operators(lambda: runner.step(ids[:, :16]), runner, "prefill", 2, CPU, rank=1, work=work)
    of_attention = {row.bucket: row for row in rows if row.path == "layers.1.self_attn"}
    assert {"qkv", "scores", "attention", "output", "norms", "rope"} <= set(of_attention)
    assert of_attention["qkv"].calls == 3
    assert of_attention["qkv"].flops == 2 * 16 * 256 * (256 + 2 * 128)
    assert {row.bucket for row in rows if row.path == "layers.1.mlp"} == {"gate_up", "down", "activation"}
    for path in {row.path for row in rows}:
        shares = [row.share_ratio or 0.0 for row in rows if row.path == path]
        assert min(shares) > 0
        assert sum(shares) <= 1.0
    assert {row.rank for row in rows} == {1}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_flops_are_those_of_the_shapes(attention: Any) -> None:
    setting = replace(EAGER, attention=attention)
    counted = _work(setting)
    planned = sum(step.flops_count for step in operations(find_model("qwen3-tiny"), 16))
    assert sum(work.flops or 0 for work in counted.values()) == planned
    assert counted["layers.0.mlp", "activation"].flops is None
    assert counted["layers.0.mlp", "down"].bytes == 4 * (16 * 768 + 768 * 256 + 16 * 256)
    assert counted["embed_tokens", "other"].bytes == 2 * 4 * 16 * 256 + 8 * 16  # not the whole table
    on_meta = _work(setting, torch.device("meta"))
    assert {key: work.flops for key, work in on_meta.items()} == {key: work.flops for key, work in counted.items()}


def test_ranks_share_the_work() -> None:
    setting = replace(EAGER, parallel="tp2")
    half = _work(setting, torch.device("meta"))["layers.0.mlp", "down"].flops  # there, nothing is sent
    assert half == 2 * 16 * 768 * 256 // 2


def _work(setting: Setting, device: Any = CPU) -> dict[tuple[str, str], flops.Work]:
    """Return the work of a prompt of 16 tokens."""
    runner = Runner(load(setting), setting, 0, device)
    ids = prompt(setting, 4096).to(device)
    return flops.counted(lambda: runner.step(ids[:, :16]), runner)


def test_no_step_brings_in_the_compiler_of_torch(tmp_path: Path) -> None:
    """It would take seconds of each rank, and leave a folder behind."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", EVERY_PASS], check=True, timeout=200, env=environment)
    assert list(tmp_path.iterdir()) == []


def test_an_allocation_shows_in_its_layer_and_in_no_other() -> None:
    runner, ids = Runner(load(EAGER), EAGER), prompt(EAGER, 4096)
    before = measure(lambda: runner.step(ids[:, :16]), runner, CPU)
    mlp = runner.model.layers[2].mlp
    usual = mlp.forward

    def greedy(hidden: Any) -> Any:
        kept = torch.zeros(25_000_000)
        return usual(hidden + kept[0])

    mlp.forward = greedy
    after = measure(lambda: runner.step(ids[:, :16]), runner, CPU)
    assert before.activations_bytes is not None
    assert after.activations_bytes is not None
    grown = {path for path, size in after.layers.items() if size > before.layers[path] + 90_000_000}
    assert grown == {"layers.2", "layers.2.mlp"}
    assert after.activations_bytes >= before.activations_bytes + 90_000_000
    assert after.peak_rss_bytes >= 100_000_000
    assert (after.parameters_bytes, after.kv_cache_bytes) == (runner.parameters_bytes, runner.cache_bytes)
    assert after.allocated_bytes is None


def test_on_a_gpu_the_peak_of_a_layer_holds_those_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module's peak is looked at anew, so one that runs within it must not take it away."""
    state = {"live": 1000, "peak": 1000}
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: state["live"])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 4096)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: state["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: state.update(peak=state["live"]))
    runner, ids = Runner(load(EAGER), EAGER), prompt(EAGER, 4096)
    mlp = runner.model.layers[1].mlp
    usual = mlp.forward

    def greedy(hidden: Any) -> Any:
        state["peak"] = state["live"] + 500
        state["live"] += 20  # which stays
        return usual(hidden)

    mlp.forward = greedy
    taken = measure(lambda: runner.step(ids[:, :16]), runner, torch.device("cuda", 0))
    assert (taken.layers["layers.1.mlp"], taken.layers["layers.1"], taken.layers["layers.0"]) == (500, 500, 0)
    assert (taken.activations_bytes, taken.peak_allocated_bytes, taken.allocated_bytes) == (500, 1500, 1020)
