"""What an operator of torch is for, from its name and the module that calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ipcbench.errors import ConfigError
from ipcbench.profile.records import NO_FAILURE, Unavailable
from ipcbench.util.reference import require_new_name, users_own


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an operator.

    Attributes:
        operator: as torch names it: `aten::addmm`.
        module: path of the innermost module around it: `layers.3.self_attn.q_proj`.
        kind: of the innermost block around it: `attention`.
        follows_softmax: whether that block has taken a softmax before.
    """

    operator: str
    module: str
    kind: str
    follows_softmax: bool = False


Matches: TypeAlias = Callable[[Use], bool]

_LINEARS: Final = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj"), "gate_up"),
    "o_proj": "output",
    "down_proj": "down",
}
_TAKEN: Final = {
    *_LINEARS.values(), "activation", "attention", "communication", "communication transfer", "communication wait",
    "embedding", "host overhead", "lm_head", "mlp", "norms", "other", "other blocks", "rope", "scores",
}  # fmt: skip
"""Buckets of ours, and parts of a step."""
_COMMUNICATION: Final = ("c10d", "gloo:", "nccl:", "record_param_comms")
_PRODUCTS: Final = ("aten::bmm", "aten::matmul", "aten::baddbmm", "aten::mm")
_TURNS: Final = ("aten::neg", "aten::cat", "aten::chunk", "aten::split", "aten::add", "aten::mul")
_own: dict[str, Matches] = {}
failed: Final[dict[str, Unavailable]] = {}
"""Buckets of one's own whose function has failed in this run; they are asked no more."""


def register_bucket(name: str, matches: Matches) -> None:
    """Add a bucket of one's own, which is asked before those that there are.

    Args:
        name: as it is shown.
        matches: whether a use of an operator belongs to it.

    Raises:
        ConfigError: the name is taken, or has other characters than letters, digits, `_`, `-`, `.` and spaces.
    """
    require_new_name("bucket", name, _TAKEN | _own.keys())
    _own[name] = matches


def bucket(use: Use) -> str:
    """Return the bucket of one use of an operator; `other` where none fits."""
    for name in [name for name in _own if name not in failed]:
        try:
            with users_own("bucket", name, NO_FAILURE, ""):
                if _own[name](use):
                    return name
        except ConfigError as error:  # not raised: other ranks may wait for this one's next call
            failed[name] = Unavailable(f"shares of operators, with bucket {name!r}", str(error.allowed))
    leaf = use.module.rpartition(".")[2]
    if any(word in use.operator for word in _COMMUNICATION):
        return "communication"
    if leaf in _LINEARS:
        return _LINEARS[leaf]
    if "norm" in leaf or "rotary" in leaf:
        return "norms" if "norm" in leaf else "rope"
    return _of_attention(use) if use.kind == "attention" else "activation" if use.kind == "mlp" else "other"


def _of_attention(use: Use) -> str:
    """Return the bucket of what attention does beside its linear layers and norms."""
    if use.operator in _TURNS and not use.follows_softmax:
        return "rope"
    return "scores" if use.operator in _PRODUCTS and not use.follows_softmax else "attention"
