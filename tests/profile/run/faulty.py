"""Ranks with a fault that a profile must show: it is in a layer of rank 1, and the batch says which."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import torch

from ipcbench.profile.rank import Rank
from ipcbench.util.clock import now_ns

SLOW_NS: Final = 20_000_000
LAYER: Final = "layers.2"
KEPT_BYTES: Final = 100 * 2**20
SLOW, LARGE, DYING, WRONG = FAULTS = range(1, 5)
"""Sequences of the batch."""


class Faulty(Rank):
    def _setup(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super()._setup(request)
        if self.rank == 1:
            self._spoil()
        return answer

    def _spoil(self) -> None:
        """Do something at the begin of each forward pass of the layer."""
        (layer,) = (module for path, module in self.runner.named_modules() if path.endswith(LAYER))
        forward, fault = layer.forward, self.setting.batch

        def spoiled(*args: Any, **kwargs: Any) -> Any:
            kept = _do(fault)  # until the pass has ended
            result = forward(*args, **kwargs)
            del kept
            return result * 1.01 if fault == WRONG else result

        layer.forward = spoiled


def _do(fault: int) -> object:
    end = now_ns() + SLOW_NS
    while fault == SLOW and now_ns() < end:
        pass
    if fault == DYING:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.ones(KEPT_BYTES // 4) if fault == LARGE else None
