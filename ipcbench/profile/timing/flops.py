"""FLOPs and bytes of each block's operators, from the shapes of what torch runs in a step that is not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from ipcbench.profile.timing.blocks import BLOCKS, Target, around, targets, within
from ipcbench.profile.timing.buckets import Use, bucket
from ipcbench.profile.timing.dispatch import Watch, tensors


@dataclass(slots=True)
class Work:
    """What operators of one bucket do in one step.

    Attributes:
        flops: None if no operator of it has any that torch knows.
        bytes: read and written, if nothing is cached; views are none.
    """

    flops: int | None = None
    bytes: int = 0


def counted(run: Callable[[], object], module: nn.Module) -> dict[tuple[str, str], Work]:
    """Run one step, and return its work by (path of the block, bucket).

    It runs where the model is: shapes on `meta` would be the same, but bring in torch's compiler, seconds a process.
    """
    counter = _Counter()
    with torch.inference_mode(), around(targets(module, "module"), within(counter.following)), counter:
        run()
    return counter.work


class _Counter(Watch):
    """Sees each operator that runs, and knows the module that is running."""

    whole = (*flop_registry, torch.ops.aten.scaled_dot_product_attention)

    def __init__(self) -> None:
        super().__init__()
        self.work: dict[tuple[str, str], Work] = {}
        self._block: Target | None = None
        self._use = Use("", "", "")

    @contextmanager
    def following(self, target: Target) -> Iterator[None]:
        """Note within which module operators run."""
        before = self._block, self._use
        if target.kind in BLOCKS:
            self._block, self._use = target, Use("", target.path, target.kind)
        else:
            self._use = replace(self._use, module=target.path)
        try:
            yield
        finally:
            self._block, self._use = before

    def ran(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = str(operator.overloadpacket).replace(".", "::", 1)
        if "softmax" in name:
            self._use = replace(self._use, follows_softmax=True)
        is_communication = operator.namespace == "c10d"  # its calls are recorded with their bytes
        if self._block is None or name == "aten::_unsafe_view" or is_communication or _is_view(operator):
            return
        is_sdpa = operator.overloadpacket is torch.ops.aten.scaled_dot_product_attention
        formula = _attention_flops if is_sdpa else flop_registry.get(operator.overloadpacket)
        flops = None if formula is None else int(formula(*args, **kwargs, out_val=result))
        if name == "aten::embedding":  # of its table, it reads only the rows that it returns
            args = (result, *args[1:])
        size = sum(_bytes(tensor) for tensor in tensors((args, kwargs, result)))
        use = replace(self._use, operator=name)
        total = self.work.setdefault((self._block.path, bucket(use)), Work())
        total.bytes += size
        if flops is not None:
            total.flops = (total.flops or 0) + flops


def _attention_flops(query: torch.Tensor, key: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    """Return the FLOPs of both products, also of pairs that a causal mask hides."""
    return 4 * int(query.numel() * key.shape[-2])


def _is_view(operator: Any) -> bool:
    return any(item.alias_info is not None and not item.alias_info.is_write for item in operator._schema.returns)


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; one that is expanded has no more than what it is a view of."""
    return int(min(tensor.nbytes, tensor.untyped_storage().nbytes()))
