"""Spans: which modules, whose time is within whose, and that the model is left as it was."""

from __future__ import annotations

import select
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from ipcbench.profile.model.loading import load, prompt  # noqa: E402
from ipcbench.profile.model.parallel import Runner  # noqa: E402
from ipcbench.profile.records import Detail, Setting, Span  # noqa: E402
from ipcbench.profile.timing.blocks import targets  # noqa: E402
from ipcbench.profile.timing.spans import Spans  # noqa: E402

TINY = Setting(model="qwen3-tiny", seq=16, tokens=1)
CPU = torch.device("cpu")


def _taken(detail: Detail, slow_s: float = 0.0) -> list[Span]:
    runner = Runner(load(TINY), TINY)
    if slow_s:
        layer = runner.model.layers[2]
        usual = layer.forward
        layer.forward = lambda *args: (select.select((), (), (), slow_s), usual(*args))[1]
    with Spans(runner, detail, CPU, rank=3) as spans:
        runner.step(prompt(TINY, 4096)[:, :16])
        assert not spans.current_path
    return spans.taken(7)


def test_blocks_are_the_parts_of_the_model() -> None:
    spans = _taken("block")
    paths = [span.path for span in spans]
    layers = [
        name for index in range(4) for name in (f"layers.{index}.self_attn", f"layers.{index}.mlp", f"layers.{index}")
    ]
    assert paths == ["embed_tokens", *layers, "norm", "lm_head", ""]
    assert [span.kind for span in spans[:4]] == ["embedding", "attention", "mlp", "layer"]
    assert {(span.rank, span.step) for span in spans} == {(3, 7)}
    assert spans[-1].kind == "root"


@pytest.mark.parametrize("detail", ["block", "module"])
def test_exclusive_times_add_up_to_the_root(detail: Detail) -> None:
    spans = _taken(detail)
    assert sum(span.exclusive_ns for span in spans) == spans[-1].duration_ns
    assert min(span.exclusive_ns for span in spans) >= 0
    if detail == "module":
        assert "layers.1.mlp.down_proj" in {span.path for span in spans}


def test_a_slow_layer_is_that_layers_own_time() -> None:
    runs = [{span.path: span.exclusive_ns for span in _taken("block", slow_s=0.1)} for _ in range(3)]
    own = {path: min(run[path] for run in runs) for path in runs[0]}  # a busy machine may hold up any layer once
    assert max(own, key=own.__getitem__) == "layers.2"
    assert own["layers.2"] >= 100_000_000


def test_the_model_is_left_as_it_was() -> None:
    runner = Runner(load(TINY), TINY)
    layer = runner.model.layers[0]
    mine = layer.forward = layer.mlp.forward
    with Spans(runner, "module", CPU) as spans:
        assert layer.forward is not mine
        layer.mlp.down_proj.forward = lambda _: 1 / 0
        with pytest.raises(ZeroDivisionError):
            layer.mlp(torch.zeros(1, 1, 256))
    assert layer.forward is mine
    assert not any("forward" in vars(module) for module in runner.modules() if module is not layer)
    assert not spans.current_path
    assert [span.path for span in spans.taken()][-1] == "layers.0.mlp"
    assert spans.taken() == []


def test_layers_have_the_number_of_the_whole_model() -> None:
    setting = replace(TINY, parallel="pp2")
    runner = Runner(load(setting, is_meta=True), setting, 1, torch.device("meta"))
    assert [target.path for target in targets(runner) if target.kind == "layer"] == ["layers.2", "layers.3"]


def test_models_of_other_names_show_their_children() -> None:
    own, linear = torch.nn.Module(), torch.nn.Linear(2, 2)
    own.stem, own.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    own.body = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ModuleList([torch.nn.Tanh()]))
    own.unit = torch.nn.TransformerEncoderLayer(2, 1)  # what is in it is no child of the model
    own.norms = torch.nn.ModuleList([torch.nn.LayerNorm(2)])
    blocks = ["stem", "head", "body.0", "body.1.0", "unit", "norms.0"]
    found = [(target.path, target.kind) for target in targets(own)]
    assert found == [("", "root"), *((path, "block") for path in blocks)]
    finer = {target.path: target.kind for target in targets(own, "module")}
    assert finer.items() > {"stem": "block", "body": "module", "unit.linear1": "module"}.items()
    assert [target.path for target in targets(torch.nn.Sequential(linear))] == ["", "0"]


class _Event:
    """Stands for a CUDA event: it has the time of the fake device at which it was recorded."""

    now_ms = 0.0
    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        _Event.made += 1

    def record(self, _: object = None) -> None:
        _Event.now_ms += 1.0
        self.at_ms = _Event.now_ms

    def elapsed_time(self, other: _Event) -> float:
        return other.at_ms - self.at_ms


def test_on_a_gpu_events_are_read_after_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait within a step would hold up what it measures; events made within it would take time."""
    waits: list[Any] = []
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_stream", object)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    runner, ids = Runner(load(TINY), TINY), prompt(TINY, 4096)
    with Spans(runner, "block", torch.device("cuda", 1)) as spans:
        made = _Event.made
        for step in range(3):
            waits.clear()
            runner.step(ids[:, :16])
            assert waits == []
            taken = spans.taken(step)
            assert set(waits) == {torch.device("cuda", 1)}
            assert taken[-1].duration_ns == 31_000_000  # 16 spans, of each an event before and after, 1 ms apart
            assert sum(span.exclusive_ns for span in taken) == taken[-1].duration_ns
        assert _Event.made == made
