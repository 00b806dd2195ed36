"""Who computes what: words, degrees that do not divide, neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipcbench.errors import ConfigError
from ipcbench.models import PRESETS
from ipcbench.profile.model.plan import Plan, find_model
from ipcbench.profile.records import Setting


@pytest.mark.parametrize(
    ("text", "expected", "world"),
    [
        ("none", Plan(), 1),
        ("tp2", Plan(tp=2), 2),
        ("pp4", Plan(pp=4), 4),
        ("tp2pp3", Plan(2, 3), 6),
        ("split", Plan(is_split=True), 2),
    ],
)
def test_words_give_degrees(text: str, expected: Plan, world: int) -> None:
    assert Plan.parse(text) == expected
    assert expected.world == world


@pytest.mark.parametrize("text", ["", "tp", "tp0", "tp1", "pp1", "tp1pp1", "pp2tp2", "tp-2", "tp99", "TP2", "tp2 "])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"parallel: .* allowed: none, tpN"):
        Plan.parse(text)


def test_ranks_know_their_layers_and_neighbours() -> None:
    plan, model = Plan(tp=2, pp=2), find_model("qwen3-tiny")
    assert [plan.layers(model, rank) for rank in range(4)] == [range(2), range(2), range(2, 4), range(2, 4)]
    assert [plan.previous(rank) for rank in range(4)] == [None, None, 0, 1]
    assert [plan.next(rank) for rank in range(4)] == [2, 3, None, None]
    assert [plan.tensor_group(rank) for rank in range(4)] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert plan.logits_rank == 2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(model="qwen3-tiny", parallel="tp3"), "num_attention_heads of qwen3-tiny, 8"),
        (Setting(model="qwen3-tiny", parallel="tp8"), "num_key_value_heads of qwen3-tiny, 4"),
        (Setting(model="qwen3-tiny", parallel="pp3"), "layers of qwen3-tiny, 4"),
        (Setting(model="qwen3-tiny", parallel="pp2", batch=3, micro_batches=2), "the batch, 3"),
    ],
)
def test_degrees_must_divide(setting: Setting, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Plan.parse(setting.parallel).require(find_model(setting.model), setting)


def test_only_a_pipeline_divides_the_batch() -> None:
    setting = Setting(model="qwen3-tiny", batch=4, micro_batches=2)
    assert (Plan().micro_batches(setting), Plan(pp=2).micro_batches(setting)) == (1, 2)


def test_presets_are_found_by_name() -> None:
    assert find_model("Qwen3-Tiny").num_hidden_layers == 4
    assert find_model("qwen3-0.6b") == PRESETS["qwen3-0.6b"]
    with pytest.raises(ConfigError, match="did you mean 'qwen3-tiny'"):
        find_model("qwen3-tinny")


def test_positions_need_heads_of_an_even_size() -> None:
    with pytest.raises(ConfigError, match=r"head_dim: 15 .*even"):
        Plan().require(replace(find_model("qwen3-tiny"), head_dim=15), Setting(model="qwen3-tiny"))
