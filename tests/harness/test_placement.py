"""The placement probe between two real processes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from ipcbench.harness.placement import allowed_cores, make_probe_file, ping_pong_ns, probe_length
from ipcbench.testing.agents.client import until

SIDE = """
import os, sys
from pathlib import Path
from ipcbench.harness.placement import ping_pong_ns
path, side, base, core = sys.argv[1:]
os.sched_setaffinity(0, {int(core)})
print(ping_pong_ns(Path(path), int(side), int(base), 60.0))
"""


def probe(path: Path, base: int, *cores: int) -> list[str]:
    """Return what each of two processes, one on each of these cores, says of the distance between them."""
    sides = [
        subprocess.Popen(
            [sys.executable, "-c", SIDE, str(path), str(side), str(base), str(core)], stdout=subprocess.PIPE, text=True
        )
        for side, core in enumerate(cores)
    ]
    return [side.communicate(timeout=100)[0].strip() for side in sides]


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="one core")
def test_two_cores_have_a_distance_and_one_core_has_none_to_itself(tmp_path: Path) -> None:
    near, far = sorted(allowed_cores())[:2]
    make_probe_file(tmp_path / "probe")
    assert probe(tmp_path / "probe", 0, near, near) == ["None", "None"]
    tries = itertools.count(1)

    def both_answer() -> bool:  # not if a neighbour has taken a core
        said = probe(tmp_path / "probe", next(tries) * probe_length(), near, far)
        return "None" not in said and all(10 < float(half_ns) < 100_000 for half_ns in said)

    assert until(both_answer, 100.0)


def test_the_other_side_may_be_missing(tmp_path: Path) -> None:
    make_probe_file(tmp_path / "probe")
    assert ping_pong_ns(tmp_path / "probe", 0, 0, 0.05) is None
