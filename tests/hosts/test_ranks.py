"""What MPICH's mpiexec says is to be started on each of several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipcbench.errors import ConfigError
from ipcbench.hosts.launchers import hydra_here
from ipcbench.hosts.ranks import Ranks, proxy_here

ADDRESSES = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]


@pytest.fixture(autouse=True)
def _hydra() -> None:
    try:
        hydra_here()
    except ConfigError as error:
        pytest.skip(str(error))


def test_a_proxy_of_each_host_is_said_whole_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at what it had said moved the place where it wrote on, so that lines were lost."""
    monkeypatch.setattr("ipcbench.hosts.ranks._LOOK_S", 0.000_02)
    for _ in range(20):
        ranks = Ranks([0, 1, 2, 3, 1], ADDRESSES, ["python"] * 4, "module:factory")
        ranks.kill()
        assert [command[-2:] for command in ranks.proxies] == [["--proxy-id", str(number)] for number in range(4)]
        assert {command[1] for command in ranks.proxies} == {"--control-port"}
        assert len({len(command) for command in ranks.proxies}) == 1
        assert Path(proxy_here(ranks.proxies[0])[0]).exists()
