"""Imported by the ranks of a run (`--import benchmarks.pageable_staging`): copies between GPU and host use plain memory
in place of pinned memory, to compare the two.
"""

from __future__ import annotations

import torch

from ipcbench.profile.comm import group


def _pageable(tensor: torch.Tensor, *, is_filled: bool) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor.contiguous()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    return copy.copy_(tensor) if is_filled else copy


group._copy = _pageable
