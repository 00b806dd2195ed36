"""The transport obeys the contract: one test for each of its laws."""

from ipcbench.testing import ConformanceSuite


class TestNng(ConformanceSuite):
    backend = "ipcbench_nng:Nng"
