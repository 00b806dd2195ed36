"""The decoder's forms agree with one another, with its cache, with the shapes of models, and with transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from ipcbench.models import Model, parameters_count  # noqa: E402
from ipcbench.profile.model.decoder import Decoder, Form  # noqa: E402
from ipcbench.profile.model.loading import load, prompt  # noqa: E402
from ipcbench.profile.model.parallel import Runner  # noqa: E402
from ipcbench.profile.model.plan import find_model  # noqa: E402
from ipcbench.profile.records import Setting  # noqa: E402
from tests.profile.model.ranks import logits, relative_error  # noqa: E402

TINY = Setting(model="qwen3-tiny", seq=24, tokens=3, batch=2)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("is_fused", [False, True])
def test_every_form_computes_the_same(attention: Any, is_fused: bool) -> None:
    found, expected = logits(replace(TINY, attention=attention, is_fused=is_fused)), logits(TINY)
    assert found is not None
    assert expected is not None
    assert relative_error(found, expected) < 1e-5


def test_the_cache_stands_for_the_tokens_before() -> None:
    setting, ids = TINY, prompt(TINY, 4096)
    decoded = logits(setting)
    whole = Runner(load(setting), setting).step(ids)
    assert decoded is not None
    assert whole is not None
    assert relative_error([decoded[-1]], [whole.numpy()]) < 1e-5


def test_a_prompt_forgets_the_one_before() -> None:
    runner, ids = Runner(load(TINY), TINY), prompt(TINY, 4096)
    first = runner.step(ids[:, :24])
    runner.step(ids[:, 24:25], 24)
    again = runner.step(ids[:, :24])
    assert torch.equal(first, again)


@pytest.mark.parametrize("is_tied", [True, False])
def test_parameters_are_those_that_are_counted(is_tied: bool) -> None:
    facts = replace(
        find_model("qwen3-tiny"), tie_word_embeddings=is_tied, attention_bias=True, mlp_bias=True, vocab_size=500
    )
    with torch.device("meta"):
        decoder = Decoder(facts, Form(is_fused=True))
    decoder.fill(torch.empty(0))
    assert sum(parameter.numel() for parameter in decoder.parameters()) == parameters_count(facts)
    assert not any(parameter.is_meta for parameter in decoder.parameters())


def test_bytes_follow_from_the_type() -> None:
    setting = replace(TINY, dtype="bfloat16")
    runner = Runner(load(setting), setting)
    assert runner.parameters_bytes == 2 * parameters_count(find_model("qwen3-tiny"))
    assert runner.cache_bytes == 2 * 4 * 2 * (24 + 3) * 4 * 32 * 2  # k and v, layers, batch, tokens, heads, elements
    found, expected = logits(setting), logits(TINY)
    assert found is not None
    assert expected is not None
    assert relative_error(found, expected) < 0.05


def folder_of(facts: Model, family: str, folder: Path) -> Path:
    """Write a folder of transformers with random weights, and return it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = {name: getattr(facts, name) for name in (*names, "head_dim", "vocab_size", "tie_word_embeddings")}
    config = transformers.AutoConfig.for_model(family, **sizes, max_position_embeddings=512)
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    assert written["num_hidden_layers"] == facts.num_hidden_layers
    return folder


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_it_computes_what_transformers_does(family: str, tmp_path: Path) -> None:
    facts = replace(find_model("qwen3-tiny"), vocab_size=300, num_hidden_layers=2, has_qk_norm=family == "qwen3")
    setting = replace(TINY, model=str(folder_of(facts, family, tmp_path)))
    theirs, ids = Runner(load(setting), setting), prompt(setting, 300)
    weights = {name.removeprefix("model.model."): value for name, value in theirs.state_dict().items()}
    mine = Runner(load(replace(setting, model=str(tmp_path / "config.json"))), setting)
    named = {name.removeprefix("model."): value for name, value in weights.items()}
    mine.model.load_state_dict({name: value for name, value in named.items() if "inv_freq" not in name})
    for step in (lambda runner: runner.step(ids[:, :24]), lambda runner: runner.step(ids[:, 24:25], 24)):
        expected, found = step(theirs), step(mine)
        assert relative_error([found.numpy()], [expected.numpy()]) < 1e-5
