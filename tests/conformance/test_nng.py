"""Backend `nng` against the contract."""

from __future__ import annotations

import pytest

from ipcbench.testing import ConformanceSuite

pytest.importorskip("pynng")


class TestNng(ConformanceSuite):
    backend = "nng"
