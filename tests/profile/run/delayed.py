"""A transport that holds back each message, for a profile to find: `--transport tests.profile.run.delayed:Delayed`."""

from __future__ import annotations

import select
from dataclasses import replace
from typing import Final

from ipcbench.backend import Address
from ipcbench.backends.shm.backend import Shm
from ipcbench.spec import ChannelSpec
from ipcbench.testing.wrapper import BackendWrapper, ReaderWrapper

DELAY_NS: Final = 20_000_000


class _Late(ReaderWrapper):
    def read(self, timeout_s: float | None = None) -> memoryview:
        piece = self.inner.read(timeout_s)
        select.select((), (), (), DELAY_NS / 1e9)
        return piece


class Delayed(BackendWrapper):
    inner = Shm
    name = "tests.profile.run.delayed:Delayed"
    summary = "shm, each message late"
    capabilities = Shm.capabilities
    reader_class = _Late

    def create(self, channel: ChannelSpec) -> Address:
        return replace(super().create(channel), backend=self.name)  # by which ranks open it
