"""A payload, a codec and a sample of the user's own: measured in other processes, interrupted, continued, published."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.shell import TINY, Shell

OWN = """
import pickle, zlib
class Frame:
    def __init__(self, size):
        self.pixels = bytes(size)
def frame(size):
    return Frame(size)
class Deflate:
    def encode(self, obj): return zlib.compress(pickle.dumps(obj), 1)
    def decode(self, view): return pickle.loads(zlib.decompress(view))
"""


@pytest.fixture
def own(shell: Shell) -> Shell:
    (shell.folder / "own_things.py").write_text(OWN, encoding="utf-8")
    return shell


@pytest.mark.parametrize("backends", ["shm,pipe", "mpi,null"])
def test_readers_decode_objects_of_own_classes_by_an_own_codec(own: Shell, backends: str) -> None:
    what = ("--payload", "own_things:frame", "--codec", "own_things:Deflate", "--backends", backends)
    done = own("run", *TINY, *what, "--mode", "paced", "--out", "run", "--format", "json")
    assert done.returncode == 0, done.stderr
    (setting,) = json.loads(done.stdout)["settings"]
    assert (setting["payload"], setting["size"], setting["codec"]) == ("own_things:frame", 10, "own_things:Deflate")
    assert all(cell["decode_p50_us"] for cell in setting["cells"])
    shown = own("analyze", "run")
    assert shown.returncode == 0, shown.stderr
    assert "own_things:frame of size 10" in shown.stdout


def test_a_sample_is_measured_and_its_folder_stays_private(
    own: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sample = tmp_path_factory.mktemp("private") / "state.json"
    sample.write_text(json.dumps({"weights": [0.5] * 40}), encoding="utf-8")
    short = ("--readers", "1", "--window", "50ms", "--warmup", "10ms", "--mode", "saturate", "--control", "no")
    done = own("run", *short, "--backends", "shm", "--rounds", "1", "--sample", str(sample), "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "sample state.json of 213 B" in done.stdout
    stored = "".join(path.read_text(encoding="utf-8") for path in (own.folder / "run").glob("*.json*"))
    assert "state.json" in stored
    assert sample.parent.name not in stored

    resumed = own("run", "--resume", "run")
    assert (resumed.returncode, resumed.stdout) == (2, "")
    assert "…/state.json" in resumed.stderr
    resumed = own("run", "--resume", "run", "--sample", str(sample))
    assert resumed.returncode == 0, resumed.stderr
    sample.write_text("{}", encoding="utf-8")
    changed = own("run", "--resume", "run", "--sample", str(sample))
    assert changed.returncode != 0
    assert "encoded payloads" in changed.stderr


def test_loading_a_pickle_is_warned_of_and_asked_for_as_it_is(own: Shell) -> None:
    own.python("-c", "import pickle; pickle.dump([1] * 300, open('state.pkl', 'wb'))")
    done = own("recommend", "--sample", "state.pkl", "--readers", "1", "--needs", "persistent,cross-host")
    assert done.returncode == 2
    warning, error = done.stderr.splitlines()
    assert warning.startswith("warning: loading state.pkl runs the code that is in it")
    assert "persistent" in error
