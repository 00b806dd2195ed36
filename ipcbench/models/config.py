"""What a config.json says of a decoder shaped like Llama or Qwen3, and the facts of common models by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ipcbench.errors import ConfigError, StoreError
from ipcbench.spec.checks import whole_number
from ipcbench.util.files import as_store_errors, read_limited, regular

_FILE = "config.json"
_MOST_FILE_BYTES = 2**20

_LIMITS: Final = {
    "hidden_size": 2**18,
    "intermediate_size": 2**20,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**12,
    "num_key_value_heads": 2**12,
    "head_dim": 2**14,
    "vocab_size": 2**24,
}
"""Field → more than any model has; a larger number is a mistake."""

_FAMILIES: Final = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""`model_type` → architecture."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
"""Only models with experts have these; some write 0 or null without having any."""


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder whose layers are: norm, attention with grouped keys and values, norm, gated MLP.

    Sizes are numbers of elements and have the names of config.json, so that they can be looked up there.

    Attributes:
        name: of a preset, or of the folder that holds the config.json, or of a file with another name.
        hidden_size: elements of a token between layers.
        intermediate_size: elements of a token inside the MLP.
        num_hidden_layers: layers.
        num_attention_heads: heads of the queries.
        num_key_value_heads: heads of keys and values; each serves equally many heads of the queries.
        head_dim: elements of a head.
        vocab_size: tokens that there are.
        tie_word_embeddings: whether the LM head uses the weights of the embedding.
        has_qk_norm: whether each head's queries and keys are normalized, as in Qwen3.
        attention_bias, mlp_bias: whether the linear layers there add a bias.

    Raises:
        ConfigError: on construction, naming the field, its value and what is allowed.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    has_qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        for field, most in _LIMITS.items():
            whole_number(field, getattr(self, field), 1, most)
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if heads % groups:
            raise ConfigError("num_key_value_heads", groups, f"a divisor of num_attention_heads, {heads}")

    @property
    def query_size(self) -> int:
        """Elements of a token's queries, of all heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Elements of a token's keys, of all their heads; of its values, as many."""
        return self.num_key_value_heads * self.head_dim


def _preset(name: str, sizes: tuple[int, int, int, int, int, int, int], *, tied: bool) -> Model:
    return Model(name, *sizes, tie_word_embeddings=tied, has_qk_norm=name.startswith("qwen3"))


PRESETS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        # hidden_size, intermediate_size, layers, heads, heads of keys and values, head_dim, vocab_size
        _preset("llama-3.2-1b", (2048, 8192, 16, 32, 8, 64, 128256), tied=True),
        _preset("llama-3.2-3b", (3072, 8192, 28, 24, 8, 128, 128256), tied=True),
        _preset("llama-3.1-8b", (4096, 14336, 32, 32, 8, 128, 128256), tied=False),
        _preset("llama-3.1-70b", (8192, 28672, 80, 64, 8, 128, 128256), tied=False),
        _preset("qwen3-0.6b", (1024, 3072, 28, 16, 8, 128, 151936), tied=True),
        _preset("qwen3-1.7b", (2048, 6144, 28, 16, 8, 128, 151936), tied=True),
        _preset("qwen3-4b", (2560, 9728, 36, 32, 8, 128, 151936), tied=True),
        _preset("qwen3-8b", (4096, 12288, 36, 32, 8, 128, 151936), tied=False),
        _preset("qwen3-14b", (5120, 17408, 40, 40, 8, 128, 151936), tied=False),
        _preset("qwen3-32b", (5120, 25600, 64, 64, 8, 128, 151936), tied=False),
    )
}
"""By name, the facts of published config.json files."""


def read_model(name_or_path: str | Path) -> Model:
    """Return the model of a preset's name, of a config.json, or of the folder that holds it.

    A name goes before a folder of that name, which can be given as `./name`.

    Raises:
        ConfigError: there is neither such a preset nor such a path; or the file describes another kind of model, or
            lacks a field, or has an impossible value in it.
        StoreError: the file cannot be read, or is not JSON.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, str) and text.lower() in PRESETS:
        return PRESETS[text.lower()]
    path = Path(text)
    if not text or "\0" in text:
        raise ConfigError("model", text, (*PRESETS, f"a {_FILE}", "the folder that holds it"))
    with as_store_errors(path):
        path = path / _FILE if path.is_dir() else path
        if not path.exists():
            if path.name == _FILE:
                raise StoreError(f"{path}: there is no such file; name a {_FILE}, or the folder that holds it")
            raise ConfigError("model", text, (*PRESETS, f"a {_FILE}", "the folder that holds it"))
    try:
        return _model_of(_facts(path), path.resolve().parent.name if path.name == _FILE else path.name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.field}", error.value, error.allowed) from error


def _facts(path: Path) -> dict[str, Any]:
    data = read_limited(regular(path), _MOST_FILE_BYTES)
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not JSON: {' '.join(str(error).split())[:100]}") from error
    if not isinstance(facts, dict):
        raise StoreError(f"{path}: a JSON object is needed, with the fields of a {_FILE}")
    return facts


def _model_of(facts: Mapping[str, Any], name: str) -> Model:
    family = _family(facts)
    sizes = {field: _size(facts, field) for field in _LIMITS if field not in {"num_key_value_heads", "head_dim"}}
    heads = sizes["num_attention_heads"]
    return Model(
        name,
        **sizes,
        num_key_value_heads=_size(facts, "num_key_value_heads", heads),
        head_dim=_head_dim(facts, sizes["hidden_size"], heads),
        tie_word_embeddings=_switch(facts, "tie_word_embeddings"),
        has_qk_norm=family == "qwen3",
        attention_bias=_switch(facts, "attention_bias"),
        mlp_bias=family == "llama" and _switch(facts, "mlp_bias"),
    )


def _family(facts: Mapping[str, Any]) -> str:
    """Return the family that a config.json says it is of; refuse those whose shapes are others."""
    for field in _EXPERTS:
        if facts.get(field):
            raise ConfigError(field, facts[field], "none: models with experts have other shapes")
    if facts.get("is_encoder_decoder"):
        raise ConfigError("is_encoder_decoder", facts["is_encoder_decoder"], "false: a decoder alone")
    kind, architectures = facts.get("model_type"), facts.get("architectures")
    if kind is not None and (not isinstance(kind, str) or kind not in _FAMILIES):
        raise ConfigError("model_type", kind, tuple(_FAMILIES))
    if architectures is None and kind is not None:
        return str(kind)
    known = {name: family for family, name in _FAMILIES.items() if kind in {None, family}}
    named = architectures if isinstance(architectures, list) else [architectures]
    for name in named:
        if isinstance(name, str) and name in known:
            return known[name]
    raise ConfigError("architectures", architectures, tuple(known))


def _size(facts: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = facts.get(field)
    return whole_number(field, default if value is None else value, 1, _LIMITS[field])


def _head_dim(facts: Mapping[str, Any], hidden_size: int, heads: int) -> int:
    if facts.get("head_dim") is None and hidden_size % heads:
        raise ConfigError("num_attention_heads", heads, f"a divisor of hidden_size, {hidden_size}, without head_dim")
    return _size(facts, "head_dim", hidden_size // heads)


def _switch(facts: Mapping[str, Any], field: str) -> bool:
    value = facts.get(field)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(field, value, "true or false")
    return bool(value)
