"""The modules of a model that a profile tells apart, with their kinds, and what is put around their forward passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from torch import nn

from ipcbench.profile.records import Detail

Forward: TypeAlias = Callable[..., Any]

BLOCKS: Final = ("root", "embedding", "layer", "attention", "mlp", "norm", "lm_head", "block")
"""Kinds that the detail `block` shows; the last is what takes their place in a model whose names say nothing."""

_CONTAINERS = re.compile(r"^(?:model(?:\.|$))+")
_NUMBER = re.compile(r"^(\w+\.)(\d+)")


@dataclass(frozen=True, slots=True)
class Target:
    """A module that is told apart.

    Attributes:
        path: its name, with the number that a layer has in the whole model; empty for the root.
        kind: of `BLOCKS`, or `module`.
    """

    path: str
    kind: str
    module: nn.Module


def targets(root: nn.Module, detail: Detail = "block") -> list[Target]:
    """Return the modules of a model that a detail shows, the root first.

    Without any attention, as in a model of unusual names, the root's children are its blocks, and a list's items.

    Args:
        root: may say by `first_layer` which number the first of its layers has in the whole model.
        detail: `module` shows all modules, the others blocks.
    """
    found = [Target("", "root", root)]
    for name, module in root.named_modules():
        path = _CONTAINERS.sub("", name)
        if path:
            path = _NUMBER.sub(lambda match: f"{match[1]}{int(match[2]) + getattr(root, 'first_layer', 0)}", path)
            found.append(Target(path, _kind(path, module), module))
    if all(target.kind != "attention" for target in found):
        found = _of_unusual_names(found)
    return [
        target
        for target in found
        if (detail == "module" or target.kind in BLOCKS)
        and not isinstance(target.module, nn.ModuleList | nn.ModuleDict)
    ]


def _of_unusual_names(found: Sequence[Target]) -> list[Target]:
    """Return targets, of which the root's children are blocks; in the place of a list of modules, its items are."""
    divided, kinds = {""}, []
    for target in found:
        is_within = target.path.rpartition(".")[0] in divided
        if is_within and type(target.module) in {nn.Sequential, nn.ModuleList, nn.ModuleDict}:
            divided.add(target.path)
            is_within = False
        kinds.append("root" if target.kind == "root" else "block" if is_within else "module")
    return [replace(target, kind=kind) for target, kind in zip(found, kinds, strict=True)]


def _kind(path: str, module: nn.Module) -> str:
    first, *rest = path.split(".")
    last, kind = path.rpartition(".")[2], "module"
    if not rest:
        if isinstance(module, nn.Embedding):
            kind = "embedding"
        elif "norm" in first or first == "ln_f":
            kind = "norm"
        elif first.endswith("head"):
            kind = "lm_head"
    elif rest[0].isdigit() and len(rest) <= 2 and not first.isdigit():
        if len(rest) == 1:
            kind = "layer"
        elif ("attn" in last or "attention" in last) and "norm" not in last:  # not post_attention_layernorm
            kind = "attention"
        elif last in {"mlp", "ffn", "feed_forward"}:
            kind = "mlp"
    return kind


def within(context: Callable[[Target], AbstractContextManager[object]]) -> Callable[[Target, Forward], Forward]:
    """Return what `around` needs for each pass to run within a context, where time is of no matter."""

    def make(target: Target, forward: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            with context(target):
                return forward(*args, **kwargs)

        return run

    return make


@contextmanager
def around(found: Iterable[Target], make: Callable[[Target, Forward], Forward]) -> Iterator[None]:
    """Replace the forward pass of each target by what `make` returns, until the end of the block.

    That is quicker than hooks, of which each call would look up several tables.
    """
    before = [(target.module, target.module.__dict__.get("forward")) for target in found]
    try:
        for target in found:
            target.module.forward = make(target, target.module.forward)
        yield
    finally:
        for module, forward in before:
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.forward = forward
