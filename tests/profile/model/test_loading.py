"""Models by name, file, folder and factory; what cannot be is told in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from ipcbench.errors import ConfigError  # noqa: E402
from ipcbench.profile.model.loading import device_of, load, prompt  # noqa: E402
from ipcbench.profile.model.parallel import Runner, require_memory  # noqa: E402
from ipcbench.profile.records import Setting  # noqa: E402
from ipcbench.profile.run import resolved  # noqa: E402

_OWN = """
import torch

def small():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.ones(2, 4)

def wrong():
    return torch.nn.Linear(4, 3)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own with factories."""
    (tmp_path / "own_model_of_test.py").write_text(_OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_model_of_test"


def test_a_factory_runs_as_it_is(own: str) -> None:
    setting = Setting(model=f"{own}:small", phases=("prefill",))
    runner = Runner(load(setting), setting)
    output = runner.step(torch.zeros(1, 1, dtype=torch.int64))
    assert output is not None
    assert output.shape == (2, 3)
    assert runner.parameters_bytes == 4 * (4 * 3 + 3)
    assert runner.cache_bytes is None


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("{own}:missing", "a name that exists"),
        ("no_such_module_at_all:make", "can be imported"),
        ("{own}:wrong", "its inputs"),
        ("nothing-of-that-name", "qwen3-tiny"),
    ],
)
def test_a_model_that_is_not_there_is_told(model: str, words: str, own: str) -> None:
    with pytest.raises(ConfigError, match=words) as told:
        load(Setting(model=model.format(own=own), phases=("prefill",)))
    assert "\n" not in str(told.value)


def test_a_factory_is_not_divided_and_does_not_decode(own: str) -> None:
    for setting in (Setting(model=f"{own}:small", parallel="tp2"), Setting(model=f"{own}:small", phases=("decode",))):
        with pytest.raises(ConfigError, match="without --parallel, --phase decode alone"):
            resolved(setting)


def test_a_config_gives_the_shapes(tmp_path: Path) -> None:
    facts = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    facts |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(facts))
    setting = Setting(model=str(file), seq=8, tokens=1)
    output = Runner(load(setting), setting).step(prompt(setting, 100)[:, :8])
    assert output is not None
    assert output.shape == (1, 1, 100)


def test_a_model_larger_than_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(ConfigError, match=r"GiB\) within the free") as told:
        require_memory(Setting(model="llama-3.1-70b", parallel="tp8", batch=4096, seq=8192))
    assert "\n" not in str(told.value)
    require_memory(Setting(model="qwen3-tiny", parallel="tp2"))


def test_types_and_devices_that_are_not_there_are_told() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        load(Setting(model="qwen3-tiny", dtype="float8"))
    with pytest.raises(ConfigError, match="device"):
        device_of(Setting(model="qwen3-tiny", device="nonsense"), 0)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="there are 0"):
            device_of(Setting(model="qwen3-tiny", device="cuda"), 0)
    assert device_of(Setting(model="qwen3-tiny"), 3).type == "cpu"


def test_with_a_gpu_the_client_of_split_inference_stays_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    split = Setting(model="qwen3-tiny", parallel="split", device="cuda")
    assert [device_of(split, rank).type for rank in range(2)] == ["cpu", "cuda"]
    both = [device_of(replace(split, parallel="tp2"), rank) for rank in range(2)]
    assert both == [torch.device("cuda", 0)] * 2  # they share it
    free = iter([2**50, 0])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (next(free), 2**50))
    require_memory(split)
    with pytest.raises(ConfigError, match="within the free 0 GiB"):
        require_memory(split)


def test_the_prompt_is_the_same_at_every_rank() -> None:
    setting = Setting(model="qwen3-tiny", seq=8, tokens=2, batch=3)
    ids = prompt(setting, 50)
    assert ids.shape == (3, 10)
    assert torch.equal(ids, prompt(replace(setting, parallel="tp2"), 50))
    assert int(ids.max()) < 50


def test_a_folder_of_another_shape_is_told(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ConfigError, match="model_type: 'gpt2'"):
        load(Setting(model=str(tmp_path)))
