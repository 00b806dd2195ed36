"""Backend `lmdb` against the contract."""

from ipcbench.testing import ConformanceSuite


class TestLmdb(ConformanceSuite):
    backend = "lmdb"
