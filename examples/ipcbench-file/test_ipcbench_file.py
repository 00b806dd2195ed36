"""The transport obeys the contract: one test for each of its laws."""

from ipcbench.testing import ConformanceSuite


class TestFile(ConformanceSuite):
    backend = "ipcbench_file:File"
