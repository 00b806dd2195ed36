"""Which rank computes which part of a model, from the words of `--parallel` and the facts of the model; without torch.

Ranks are numbered stage by stage: rank = stage · tp + place among the ranks that share each layer of the stage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipcbench.errors import ConfigError
from ipcbench.models import PRESETS, Model, read_model
from ipcbench.profile.records import Setting
from ipcbench.spec.checks import require_range

MOST_RANKS: Final = 64

SMALL_PRESETS: Final[Mapping[str, Model]] = {
    name: Model(name, *sizes, tie_word_embeddings=True, has_qk_norm=True)
    for name, sizes in {
        # hidden_size, intermediate_size, layers, heads, heads of keys and values, head_dim, vocab_size
        "qwen3-tiny": (256, 768, 4, 8, 4, 32, 4096),
        "qwen3-small": (512, 1536, 6, 8, 4, 64, 8192),
    }.items()
}
"""Models that a processor runs in milliseconds; shaped like Qwen3, published by nobody."""

_WORDS = re.compile(r"(?:tp([1-9]\d?))?(?:pp([1-9]\d?))?")
_ALLOWED = "none, tpN, ppN, tpNppM or split, with N and M from 2"


_MOST: Final = {"seq": 2**20, "batch": 2**12, "steps": 10**5, "threads": 2**10, "micro_batches": 2**12}


def require_ranges(setting: Setting) -> None:
    """Raise ConfigError if a number of a setting is out of its range."""
    for name, most in _MOST.items():
        require_range(f"--{name.replace('_', '-')}", getattr(setting, name), 1, most)
    require_range("--warmup", setting.warmup, 0, _MOST["steps"])
    require_range("--tokens", setting.tokens, 1 if "decode" in setting.phases else 0, _MOST["seq"])


def find_model(name_or_path: str) -> Model:
    """Return the facts of a preset, a small one too, of a config.json, or of the folder that holds it.

    Raises:
        ConfigError: there is none of that name, or it is of another kind.
        StoreError: its file cannot be read.
    """
    small = SMALL_PRESETS.get(name_or_path.lower())
    if small is None and name_or_path.lower() not in PRESETS and not Path(name_or_path).exists():
        raise ConfigError(
            "model", name_or_path, (*SMALL_PRESETS, *PRESETS, "a config.json", "a folder", "module:factory")
        )
    return small or read_model(name_or_path)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is divided among ranks.

    Attributes:
        tp: ranks that share each layer.
        pp: stages, each with equally many layers.
        is_split: rank 0 keeps tensors, norms, rotations, softmax and activations; rank 1 multiplies.
    """

    tp: int = 1
    pp: int = 1
    is_split: bool = False

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Return the plan of `none`, `tp2`, `pp2`, `tp2pp2` or `split`.

        Raises:
            ConfigError: it is none of these, or has more than `MOST_RANKS` ranks.
        """
        if text in {"none", "split"}:
            return cls(is_split=text == "split")
        found = _WORDS.fullmatch(text)
        plan = cls(int(found[1] or 1), int(found[2] or 1)) if found else cls()
        if not 2 <= plan.world <= MOST_RANKS:
            raise ConfigError("parallel", text, f"{_ALLOWED}; at most {MOST_RANKS} ranks")
        return plan

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return 2 if self.is_split else self.tp * self.pp

    @property
    def logits_rank(self) -> int:
        """Return the first of the ranks that have the logits."""
        return (self.pp - 1) * self.tp

    def tensor_rank(self, rank: int) -> int:
        """Return a rank's place, from 0, among those that share each of its layers."""
        return rank % self.tp

    def tensor_group(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that share each layer with this one, itself among them."""
        first = rank - rank % self.tp
        return tuple(range(first, first + self.tp))

    def stage(self, rank: int) -> int:
        """Return a rank's stage, from 0."""
        return 0 if self.is_split else rank // self.tp

    def previous(self, rank: int) -> int | None:
        """Return the rank whose hidden states this one takes; None in the first stage."""
        return rank - self.tp if self.stage(rank) > 0 else None

    def next(self, rank: int) -> int | None:
        """Return the rank that takes this one's hidden states; None in the last stage."""
        return rank + self.tp if self.stage(rank) < self.pp - 1 else None

    def layers(self, model: Model, rank: int) -> range:
        """Return the numbers of a rank's layers."""
        each = model.num_hidden_layers // self.pp
        return range(self.stage(rank) * each, (self.stage(rank) + 1) * each)

    def micro_batches(self, setting: Setting) -> int:
        """Return into how many parts the batch is divided, in prefill and in decoding: one without a pipeline."""
        return setting.micro_batches if self.pp > 1 else 1

    def require(self, model: Model, setting: Setting) -> None:
        """Raise ConfigError unless the model can be run, the degrees divide it, and the micro-batches the batch."""
        if model.head_dim % 2:
            raise ConfigError("head_dim", model.head_dim, "an even number: positions turn its elements in pairs")
        for field, size in (
            ("num_attention_heads", model.num_attention_heads),
            ("num_key_value_heads", model.num_key_value_heads),
            ("intermediate_size", model.intermediate_size),
        ):
            if size % self.tp:
                raise ConfigError("parallel", f"tp{self.tp}", f"a divisor of {field} of {model.name}, {size}")
        if model.num_hidden_layers % self.pp:
            layers = model.num_hidden_layers
            raise ConfigError("parallel", f"pp{self.pp}", f"a divisor of the layers of {model.name}, {layers}")
        if setting.micro_batches < 1 or setting.batch % setting.micro_batches:
            raise ConfigError("--micro-batches", setting.micro_batches, f"a divisor of the batch, {setting.batch}")
