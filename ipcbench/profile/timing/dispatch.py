"""Every operator that torch runs in a step, one after the other: for steps that are not timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_PARTS = torch._C.DispatchKey.CompositeImplicitAutograd
_is_made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key
"""Whether an operator has a kernel that only calls others. Those in Python would bring in torch's compiler."""


class Watch(TorchDispatchMode):
    """Is told of each operator, as a context manager; of one that is made of others, it is told of these instead."""

    whole: tuple[Any, ...] = ()
    """Operators to be told of as they are."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: to be left out of what torch compiles would bring in its compiler, seconds a process."""
        return False

    def ran(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Take note of an operator that has run."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket not in self.whole and _is_made_of_others(func.name(), _PARTS):
            with self:
                return func._op_dk(_PARTS, *args, **kwargs)
        result = func(*args, **kwargs)
        self.ran(func, args, kwargs, result)
        return result


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Return the tensors among arguments or results."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
