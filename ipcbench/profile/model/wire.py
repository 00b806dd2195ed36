"""What ranks of a model exchange, over torch's default process group: sums and tensors. Nothing leaves a rank whose
tensors are on `meta`, so that shapes can be followed without a peer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return the sum of the group's tensors, in place; None is the group of all ranks."""
    if not tensor.is_meta:
        dist.all_reduce(tensor, group=group)
    return tensor


def send(tensor: torch.Tensor, to: int) -> None:
    """Send a tensor to a rank."""
    if not tensor.is_meta:
        dist.send(tensor.contiguous(), to)


def receive(shape: Sequence[int], like: torch.Tensor, source: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the tensor of that shape that a rank sends; of the device of `like`, and of its type unless one is given.

    What is given as `like` decides by its device alone whether there is a peer.
    """
    tensor = torch.empty(tuple(shape), dtype=dtype or like.dtype, device=like.device)
    if not tensor.is_meta:
        dist.recv(tensor, source)
    return tensor
