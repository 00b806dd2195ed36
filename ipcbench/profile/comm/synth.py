"""The communication of a model that nobody has run, from its config alone: the calls that a run of it records."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Final

from ipcbench.errors import ConfigError
from ipcbench.models import Model
from ipcbench.profile.model.plan import Plan, require_ranges
from ipcbench.profile.records import Call, Op, Setting

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
_ID = "int64"
_MOST_CALLS = 2_000_000
"""Of a plan: it takes half a gigabyte then."""
_CLIENT, _SERVER = 0, 1


def planned(model: Model, plan: Plan, setting: Setting) -> tuple[Call, ...]:
    """Return the calls of one repetition, the prompt and then each token, of all ranks; step 0 is the first.

    Raises:
        ConfigError: the degrees do not divide the model, the type is unknown, a number is out of its range, or there
            are too many calls.
    """
    if setting.dtype not in ITEM_BYTES:
        raise ConfigError("dtype", setting.dtype, tuple(ITEM_BYTES))
    require_ranges(setting)
    plan.require(model, setting)
    lengths = [(setting.seq, 0)] if "prefill" in setting.phases else []
    lengths += [(1, setting.seq + n) for n in range(setting.tokens)] if "decode" in setting.phases else []
    calls: list[Call] = []
    for step, (tokens, before) in enumerate(lengths):
        for rank in range(plan.world):
            make = _split if plan.is_split else partial(_divided, plan=plan, rank=rank)
            rows = enumerate(make(model, setting, tokens, before))
            calls += [_call(rank, step, sequence, setting.dtype, *row) for sequence, row in rows]
            if len(calls) * len(lengths) > _MOST_CALLS * (step + 1):
                expected = f"at most {_MOST_CALLS:,} in all: fewer tokens, layers, ranks or micro-batches"
                raise ConfigError(
                    "plan", f"over {len(calls):,} calls in {step + 1:,} of {len(lengths):,} steps", expected
                )
    return tuple(calls)


_Row = tuple[Op, tuple[int, ...], tuple[int, ...], str, str]
"""Operation, ranks, shape, module, and the type if it is not the tensors'."""


def _call(
    rank: int, step: int, sequence: int, dtype: str, op: Op, ranks: tuple[int, ...], shape: tuple[int, ...],
    path: str, kind: str,
) -> Call:  # fmt: skip
    if op == "send":
        op = "send" if rank == ranks[0] else "recv"
    size_bytes = prod(shape) * (8 if kind == _ID else ITEM_BYTES[dtype])
    return Call(rank, step, sequence, op, ranks, size_bytes, kind or dtype, path)


def _divided(model: Model, setting: Setting, tokens: int, _before: int, *, plan: Plan, rank: int) -> Iterator[_Row]:
    """Yield what a rank of tensor and pipeline parallelism says in one step."""
    parts = plan.micro_batches(setting)
    shape = (setting.batch // parts, tokens, model.hidden_size)
    previous, following = plan.previous(rank), plan.next(rank)
    for _ in range(parts):
        if previous is not None:
            yield "send", (previous, rank), shape, "", ""
        for layer in plan.layers(model, rank) if plan.tp > 1 else ():
            for path in ("self_attn.o_proj", "mlp.down_proj"):
                yield "all_reduce", plan.tensor_group(rank), shape, f"layers.{layer}.{path}", ""
        if following is not None:
            yield "send", (rank, following), shape, "", ""


def _split(model: Model, setting: Setting, tokens: int, before: int) -> Iterator[_Row]:
    """Yield what client and server of split inference say to each other in one step: inputs there, one output back."""
    batch, hidden, query = setting.batch, model.hidden_size, model.query_size
    heads, total = model.num_attention_heads, before + tokens
    there, back = (_CLIENT, _SERVER), (_SERVER, _CLIENT)
    states, of_tokens, of_all, scores = (
        (batch, tokens, hidden),
        (batch, heads, tokens, model.head_dim),
        (batch, heads, total, model.head_dim),
        (batch, heads, tokens, total),
    )
    yield "send", there, (batch, tokens), "embed_tokens", _ID
    yield "send", back, states, "embed_tokens", ""
    for layer in range(model.num_hidden_layers):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        for path, inputs, output in (
            (f"{attention}.qkv_proj", [states], (batch, tokens, query + 2 * model.key_value_size)),
            (attention, [of_tokens, of_all], scores),
            (attention, [scores, of_all], of_tokens),
            (f"{attention}.o_proj", [(batch, tokens, query)], states),
            (f"{mlp}.gate_up_proj", [states], (batch, tokens, 2 * model.intermediate_size)),
            (f"{mlp}.down_proj", [(batch, tokens, model.intermediate_size)], states),
        ):
            for shape in inputs:
                yield "send", there, shape, path, ""
            yield "send", back, output, path, ""
    yield "send", there, (batch, 1, hidden), "lm_head", ""
    yield "send", back, (batch, 1, model.vocab_size), "lm_head", ""
