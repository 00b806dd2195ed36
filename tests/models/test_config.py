"""What a config.json says: presets, other files, and files that are refused with one line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcbench.errors import ConfigError, IpcbenchError, StoreError
from ipcbench.models import PRESETS, Model, operations, parameters_count, read_model

SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": True,
}  # fmt: skip

PUBLISHED = {
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824, "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496, "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264,
}  # fmt: skip
"""Preset → parameters, as published with the weights; tied embeddings once."""


def stored(folder: Path, **changes: Any) -> Path:
    """Store a config.json; a change to None removes the field."""
    facts = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_as_many_parameters_as_published(name: str) -> None:
    assert parameters_count(PRESETS[name]) == PUBLISHED[name]


@pytest.mark.parametrize("model", PRESETS.values(), ids=PRESETS)
def test_shapes_follow_from_one_another(model: Model) -> None:
    steps = list(operations(model, 5))
    assert len(steps) == 2 + 6 * model.num_hidden_layers
    stays = {"scores": "attention", "attention": "o", "o": "gate_up", "gate_up": "down", "down": "qkv"}
    widths = {step.name: [shape[-1] for shape in step.outputs] for step in steps[1:7]}
    assert widths["qkv"] == [model.query_size, model.key_value_size, model.key_value_size]
    for before, after in stays.items():
        (step,) = [step for step in steps[1:7] if step.name == after]
        expected = model.query_size if before == "attention" else widths[before][0]
        assert step.inputs[0][-1] == expected, (before, after)
    assert steps[0].outputs == ((5, model.hidden_size),)
    assert (steps[-1].inputs, steps[-1].outputs) == (((1, model.hidden_size),), ((1, model.vocab_size),))


def test_flops_are_two_for_each_product(tmp_path: Path) -> None:
    steps = {step.name: step for step in operations(read_model(stored(tmp_path, num_hidden_layers=1)), 3)}
    assert {name: step.flops_count for name, step in steps.items()} == {
        "embedding": 0, "qkv": 2 * 3 * 64 * (64 + 32 + 32), "scores": 2 * 4 * 3 * 3 * 16,
        "attention": 2 * 4 * 3 * 3 * 16, "o": 2 * 3 * 64 * 64, "gate_up": 2 * 3 * 64 * 192, "down": 2 * 3 * 96 * 64,
        "lm_head": 2 * 64 * 100,
    }  # fmt: skip


def test_weights_and_norms_are_all_parameters(tmp_path: Path) -> None:
    """A weight of an operation that is not counted, or counted twice."""
    for tied in (True, False):
        model = read_model(stored(tmp_path, model_type="qwen3", head_dim=8, tie_word_embeddings=tied))
        weights = [rows * size for step in operations(model, 1) for rows, size in step.weights]
        norms = 2 * (2 * 64 + 2 * 8) + 64
        assert parameters_count(model) == sum(weights) + norms - tied * 100 * 64


def test_biases_are_parameters(tmp_path: Path) -> None:
    plain = parameters_count(read_model(stored(tmp_path)))
    assert parameters_count(read_model(stored(tmp_path, attention_bias=True))) - plain == 2 * (64 + 32 + 32 + 64)
    assert parameters_count(read_model(stored(tmp_path, mlp_bias=True))) - plain == 2 * (96 + 96 + 64)


def test_what_is_left_out_has_the_usual_value(tmp_path: Path) -> None:
    model = read_model(stored(tmp_path, num_key_value_heads=None, tie_word_embeddings=None))
    assert (model.head_dim, model.num_key_value_heads, model.tie_word_embeddings) == (16, 4, False)
    assert read_model(stored(tmp_path, head_dim=24)).query_size == 96


def test_a_folder_and_its_file_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    model = read_model(stored(folder))
    assert model == read_model(folder / "config.json") == read_model(str(folder))
    assert model.name == "my-model"
    assert read_model("Llama-3.2-1B") is PRESETS["llama-3.2-1b"]


def test_an_architecture_alone_is_enough(tmp_path: Path) -> None:
    model = read_model(stored(tmp_path, model_type=None, architectures=["Qwen3ForCausalLM"]))
    assert model.has_qk_norm


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "bert"}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": None}, "architectures"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "architectures"),
        ({"architectures": "nothing"}, "architectures"),
        ({"architectures": [["LlamaForCausalLM"]]}, "architectures"),
        ({"model_type": "qwen3", "num_experts": 128}, "num_experts"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 64.0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"vocab_size": 10**30}, "vocab_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"head_dim": []}, "head_dim"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_a_bad_field_is_named_with_its_file(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_model(stored(tmp_path, **changes))
    assert str(refused.value).startswith(f"{tmp_path / 'config.json'}: {field}: ")
    assert "\n" not in str(refused.value)


def test_a_misspelt_preset_is_guessed() -> None:
    with pytest.raises(ConfigError, match=r"model: 'lama-3.2-1b' is not valid \(did you mean 'llama-3.2-1b'\?\)"):
        read_model("lama-3.2-1b")


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_a_file_that_is_no_config_is_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(StoreError, match=r"config.json: ") as refused:
        read_model(tmp_path)
    assert "\n" not in str(refused.value)


def test_an_empty_folder_and_a_device_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "config.json", "/dev/zero", "", "a\0b", "x" * 5000):
        with pytest.raises(IpcbenchError):
            read_model(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
FIELDS = [*SMALL, "architectures", "head_dim", "num_experts", "is_encoder_decoder", "attention_bias", "mlp_bias"]


@given(changes=st.dictionaries(st.sampled_from(FIELDS), JSON | st.integers(-2, 2**33), max_size=4))
def test_any_value_gives_a_model_or_one_line(tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    try:
        model = read_model(stored(tmp_path_factory.mktemp("m"), **changes))
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert all(value >= 0 for value in asdict(model).values() if not isinstance(value, str))
        assert parameters_count(model) > 0


@given(data=st.binary(max_size=200))
def test_any_file_gives_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("m") / "any.json"
    path.write_bytes(data)
    with pytest.raises((ConfigError, StoreError)):
        read_model(path)


@pytest.mark.parametrize("tokens", [0, -1, 2**20 + 1, 1.5, "3", True, None])
def test_a_sequence_has_a_whole_number_of_tokens(tokens: Any) -> None:
    with pytest.raises(ConfigError, match=r"^tokens: "):
        operations(PRESETS["qwen3-0.6b"], tokens)
