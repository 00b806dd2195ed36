"""One rank's part of a model: its share of each layer, its stage, and the tensors that it exchanges with the others.

Of the layers that `tp` ranks share, each has equally many heads and columns of the MLP; their partial sums are added up
twice a layer. Embedding, norms and LM head are whole at each of them. Stages pass hidden states on, one micro-batch
after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
from types import SimpleNamespace
from typing import Any, Final, cast

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from ipcbench.errors import ConfigError
from ipcbench.machine.cgroup import memory_limit_bytes
from ipcbench.models import Model
from ipcbench.profile.model import split, wire
from ipcbench.profile.model.decoder import Cache, Decoder, Fused
from ipcbench.profile.model.loading import DTYPES, Loaded, device_of, is_factory, load
from ipcbench.profile.model.plan import Plan
from ipcbench.profile.records import Setting
from ipcbench.util.units import format_significant

_COLUMNS: Final = ("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj")
"""Each rank has some of their outputs."""
_ROWS: Final = ("o_proj", "down_proj")
"""Each rank has some of their inputs, and a partial sum of every output."""


class Runner(nn.Module):
    """What one rank computes. Its own call is the root of a step's spans: exchanges between stages are inside.

    Attributes:
        first_layer: number in the whole model of the first of its layers.
        cache_bytes: of the keys and values of all tokens; None of the user's own model.
    """

    def __init__(self, loaded: Loaded, setting: Setting, rank: int = 0, device: torch.device | None = None) -> None:
        """Cut the rank's part and give it its weights; collective over the default process group if ranks share layers.

        Args:
            loaded: the whole model, which must not be used any more.
            setting: says how it is divided.
            rank: whose part.
            device: where it runs, and that of the setting if none is given; on `meta` nothing is sent or computed.

        Raises:
            ConfigError: the model cannot be divided so.
        """
        super().__init__()
        plan, facts = Plan.parse(setting.parallel), loaded.facts
        if facts is not None:
            plan.require(facts, setting)
        device = device or device_of(setting, rank)
        self._like = torch.empty(0, dtype=DTYPES[setting.dtype], device=device)
        self._hidden_size = facts.hidden_size if facts else 0
        self._previous, self._next = plan.previous(rank), plan.next(rank)
        self.first_layer = plan.layers(facts, rank).start if facts else 0
        self.model, take = _part(loaded, setting, plan, rank, self._like)
        self._parts_count = plan.micro_batches(setting)
        self._caches = [take() for _ in range(self._parts_count)]
        self.cache_bytes = _cache_bytes(facts, setting, plan, rank)

    @property
    def parameters_bytes(self) -> int:
        """Return the bytes of this rank's parameters; one that two modules share counts once."""
        return sum(parameter.nbytes for parameter in self.parameters())

    @torch.inference_mode()
    def step(self, ids: torch.Tensor, position: int = 0) -> torch.Tensor | None:
        """Return the logits of the last token, (batch, 1, vocabulary), at the ranks of the last stage; else None.

        Args:
            ids: tokens, (batch, tokens), on the rank's device.
            position: how many are before them; from 0 on, what the cache held is forgotten.
        """
        return cast(torch.Tensor | None, self(ids, position))

    def forward(self, ids: torch.Tensor, position: int) -> torch.Tensor | None:
        pieces = zip(ids.chunk(self._parts_count), self._caches, strict=True)
        parts = [self._pass(piece, cache, position) for piece, cache in pieces]
        found = [part for part in parts if part is not None]
        return torch.cat(found) if len(found) > 1 else found[0] if found else None

    def _pass(self, ids: torch.Tensor, cache: Any, position: int) -> torch.Tensor | None:
        inputs = ids
        if self._previous is not None:
            inputs = wire.receive((*ids.shape, self._hidden_size), self._like, self._previous)
        output = cast(torch.Tensor | None, self.model(inputs, cache, position))
        if self._next is None or output is None:
            return output
        wire.send(output, self._next)
        return None


def require_memory(setting: Setting) -> None:
    """Raise ConfigError if parameters and caches of all ranks are larger than the memory that is free.

    Only shapes are made. Call it once, before ranks start; a factory's own model is not looked at.
    """
    plan = Plan.parse(setting.parallel)
    devices = [device_of(setting, rank) for rank in range(plan.world)]
    if is_factory(setting.model):
        return
    needed: Counter[torch.device] = Counter()
    for first in range(0, plan.world, plan.tp):  # those that share layers have equally much
        part = Runner(load(setting, is_meta=True), setting, first, torch.device("meta"))
        for rank in plan.tensor_group(first):
            needed[devices[rank]] += part.parameters_bytes + (part.cache_bytes or 0)
    for device, needed_bytes in needed.items():
        free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_bytes()
        if needed_bytes > free_bytes:
            sizes = [f"{format_significant(size / 2**30)} GiB" for size in (needed_bytes, free_bytes)]
            raise ConfigError("model", setting.model, f"parameters and cache ({sizes[0]}) within the free {sizes[1]}")


def _free_bytes() -> int:
    free: int = psutil.virtual_memory().available
    limits = [memory_limit_bytes(Path("/")), getrlimit(RLIMIT_AS)[0]]
    return min([free, *(limit for limit in limits if limit is not None and limit != RLIM_INFINITY)])


def _part(
    loaded: Loaded, setting: Setting, plan: Plan, rank: int, like: torch.Tensor
) -> tuple[nn.Module, Callable[[], Any]]:
    """Return a rank's part, called with (inputs, cache, position), and what makes it a cache for one micro-batch."""
    facts = loaded.facts
    if facts is None:
        return _Whole(loaded, like), lambda: None
    layers = plan.layers(facts, rank)
    batch, heads = setting.batch // plan.micro_batches(setting), facts.num_key_value_heads // plan.tp
    capacity = setting.seq + setting.tokens
    take = partial(Cache, len(layers), batch, capacity, (heads, facts.head_dim), like)
    if plan.is_split:
        if not isinstance(loaded.module, Decoder):
            raise ConfigError("parallel", "split", "a preset or a config.json as the model")
        is_client = rank == split.CLIENT
        return split.part(facts, rank, like), take if is_client else lambda: None
    group = None if plan.tp == plan.world or like.is_meta else _group(plan, rank)
    shard = partial(_shard, rank=plan.tensor_rank(rank), degree=plan.tp, group=group)
    if isinstance(loaded.module, Decoder):
        with torch.device("meta"):
            decoder = Decoder(facts, loaded.module.form, layers)
        decoder.fill(like, shard if plan.tp > 1 else None)
        return decoder, take
    adapted = _Adapted(loaded.module, layers)
    for layer in adapted.layers if plan.tp > 1 else ():
        shard(layer)
    return adapted.to(like.device), partial(SimpleNamespace, value=None)


def _cache_bytes(facts: Model | None, setting: Setting, plan: Plan, rank: int) -> int | None:
    if facts is None:
        return None
    if plan.is_split and rank == split.SERVER:
        return 0
    elements = 2 * len(plan.layers(facts, rank)) * setting.batch * facts.key_value_size // plan.tp
    return elements * (setting.seq + setting.tokens) * int(DTYPES[setting.dtype].itemsize)


def _group(plan: Plan, rank: int) -> dist.ProcessGroup | None:
    """Return the group of the ranks that share this one's layers; all ranks make the groups of all stages."""
    if plan.tp == 1:
        return None
    groups = [dist.new_group(list(plan.tensor_group(stage * plan.tp))) for stage in range(plan.pp)]
    return groups[plan.stage(rank)]


class RowLinear(nn.Linear):
    """A linear layer of which this rank has some of the inputs; the group's partial sums are added up."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, group: dist.ProcessGroup | None) -> None:
        """Take over weights of shape (outputs, this rank's inputs), and the whole bias."""
        super().__init__(1, 1, bias=bias is not None, device="meta")
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        summed = wire.all_reduce(functional.linear(inputs, self.weight), self._group)
        return summed if self.bias is None else summed + self.bias


def _shard(layer: nn.Module, rank: int, degree: int, group: dist.ProcessGroup | None) -> None:
    """Leave a rank's part of a layer's linear layers, known by their names.

    Raises:
        ConfigError: the layer has others.
    """
    names = {name.rpartition(".")[2] for name, module in layer.named_modules() if isinstance(module, nn.Linear)}
    if not names <= {*_COLUMNS, *_ROWS}:
        raise ConfigError("parallel", f"tp{degree}", f"for layers with {', '.join((*_COLUMNS, *_ROWS))} alone")
    for owner in list(layer.modules()):
        for name, module in list(owner.named_children()):
            if name in _COLUMNS:
                _keep_columns(module, rank, degree)
            elif name in _ROWS:
                weight = module.weight.chunk(degree, dim=1)[rank].clone()
                setattr(owner, name, RowLinear(weight, module.bias, group))


def _keep_columns(linear: nn.Module, rank: int, degree: int) -> None:
    parts = list(linear.parts.values()) if isinstance(linear, Fused) else [linear.weight.shape[0]]
    for kind, parameter in list(linear.named_parameters(recurse=False)):
        kept = [part.chunk(degree)[rank] for part in parameter.split(parts)]
        whole = torch.cat(kept) if len(kept) > 1 else kept[0].clone()  # on `meta`, a cat loads torch's compiler
        setattr(linear, kind, nn.Parameter(whole, requires_grad=False))


class _Whole(nn.Module):
    """The user's own model, called with its own inputs."""

    def __init__(self, loaded: Loaded, like: torch.Tensor) -> None:
        super().__init__()
        self.model = loaded.module if like.is_meta else loaded.module.to(like.device)
        self._example = [item.to(like.device) if isinstance(item, torch.Tensor) else item for item in loaded.example]

    def forward(self, _inputs: torch.Tensor, _cache: None, _position: int) -> torch.Tensor | None:
        output = self.model(*self._example)
        return output if isinstance(output, torch.Tensor) else None


class _Adapted(nn.Module):
    """A model of transformers, or the layers of one stage of it."""

    def __init__(self, model: Any, layers: range) -> None:
        super().__init__()
        inner, config = model.model, model.config
        self.is_first, self.is_last = layers.start == 0, layers.stop == len(inner.layers)
        inner.layers = nn.ModuleList([inner.layers[index] for index in layers])
        for index, layer in enumerate(inner.layers):  # its place in the cache of this rank
            layer.self_attn.layer_idx = index
        config.num_hidden_layers = len(layers)
        if getattr(config, "layer_types", None):  # transformers 5
            config.layer_types = config.layer_types[layers.start : layers.stop]
        if not self.is_first:
            inner.embed_tokens = None
        if not self.is_last:
            inner.norm = nn.Identity()
        self.model = model if self.is_last else inner

    @property
    def layers(self) -> nn.ModuleList:
        """Return the layers of this stage."""
        return cast(nn.ModuleList, (self.model.model if self.is_last else self.model).layers)

    def forward(self, inputs: torch.Tensor, cache: SimpleNamespace, position: int) -> torch.Tensor:
        if position == 0:  # transformers' cache is made anew
            from transformers import DynamicCache

            cache.value = DynamicCache()
        positions = torch.arange(position, position + inputs.shape[1], device=inputs.device)[None]
        keys = {"input_ids" if self.is_first else "inputs_embeds": inputs, "position_ids": positions}
        if self.is_last:
            keys["logits_to_keep"] = 1
        output = self.model(**keys, past_key_values=cache.value, use_cache=True)
        return cast(torch.Tensor, output.logits if self.is_last else output.last_hidden_state)
