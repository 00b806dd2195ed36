"""Ranks with a fault that a profile must show: it is in a layer of rank 1."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch

from ipcbench.profile.rank import Rank
from ipcbench.util.clock import now_ns

SLOW_NS = 5_000_000
LAYER = "layers.2"
KEPT_BYTES = 100 * 2**20


class _Faulty(Rank):
    """Does something at the begin of each forward pass of the layer."""

    def _setup(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super()._setup(request)
        if self.index == 1:
            self.spoil()
        return answer

    def spoil(self) -> None:
        self.before_layer(self.fault)

    @staticmethod
    def fault() -> object:
        raise NotImplementedError

    def before_layer(self, fault: Callable[[], object]) -> None:
        (layer,) = (module for path, module in self.runner.module.named_modules() if path.endswith(LAYER))
        forward = layer.forward

        def spoiled(*args: Any, **kwargs: Any) -> Any:
            kept = fault()  # until the pass has ended
            result = forward(*args, **kwargs)
            del kept
            return result

        layer.forward = spoiled


class Slow(_Faulty):
    @staticmethod
    def fault() -> object:
        end = now_ns() + SLOW_NS
        while now_ns() < end:
            pass
        return None


class Large(_Faulty):
    @staticmethod
    def fault() -> object:
        return torch.ones(KEPT_BYTES // 4)


class Dying(_Faulty):
    @staticmethod
    def fault() -> object:
        return os.kill(os.getpid(), signal.SIGKILL)


class Wrong(_Faulty):
    def spoil(self) -> None:
        for parameter in self.runner.parameters():
            parameter.data.mul_(1.01)
