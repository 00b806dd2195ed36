"""Backend `pipe` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestPipe(ConformanceSuite):
    backend = "pipe"
