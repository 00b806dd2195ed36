"""What this machine can and cannot measure, within half a minute: libraries, transports, cores, memory, noise, GPUs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import psutil

from ipcbench.errors import IpcbenchError
from ipcbench.machine.describe import usable_cores
from ipcbench.models import PRESETS, parameters_count
from ipcbench.profile.files.tables import cost_words, figure_words
from ipcbench.profile.records import Setting
from ipcbench.profile.run import INSTALL, INSTALL_CPU, Ranks, Say, resolved, unavailable
from ipcbench.profile.summary import summarize
from ipcbench.registry import get_backend, names, status

_STEPS = 30
_RUN_S = 6.0
"""Of the tiny model's repetitions; with the start of its process, that leaves most of the half minute."""
_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Ability:
    """One line of the answer."""

    what: str
    can: bool | None
    """None: only partly."""
    detail: str
    """What is there; if something is not, what that needs."""


def check(say: Say = lambda _: None) -> list[Ability]:
    """Return what can be measured here; runs a tiny model for some seconds if torch is there."""
    has_torch = find_spec("torch") is not None
    found = [_library("torch", f"{INSTALL}; for a CPU alone, {INSTALL_CPU}")]
    found.append(_library("transformers", "only for models from a folder: pip install transformers"))
    found += [_cores(), _memory(), *_transports(has_torch=has_torch)]
    if has_torch:
        say("a tiny model, to see what this tool costs and how quiet the machine is")
        found += _own_cost()
    return [*found, *_gpus(has_torch=has_torch)]


def _library(name: str, needs: str) -> Ability:
    is_there = find_spec(name) is not None
    return Ability(name, is_there, version(name) if is_there else needs)


def _cores() -> Ability:
    cores = usable_cores()
    text = f"{cores:g} for all ranks together; more ranks than that wait for one another's cores"
    return Ability("cores", cores >= 2 or None, text)


def _memory() -> Ability:
    free = psutil.virtual_memory().available
    fitting = [name for name, model in PRESETS.items() if 4 * parameters_count(model) < free]
    largest = max(fitting, key=lambda name: parameters_count(PRESETS[name]), default="no preset")
    return Ability("memory", bool(fitting) or None, f"{free / 2**30:.1f} GiB are free: up to {largest} in float32")


def _transports(*, has_torch: bool) -> Iterator[Ability]:
    yield Ability("transport gloo", has_torch, "" if has_torch else "torch")
    there = []
    for name in names():
        found = status(name)
        if not found.available:
            yield Ability(f"transport {name}", can=False, detail=f"{found.reason}; {found.hint}")
        elif get_backend(name).capabilities.launcher not in {"inline", "fork"}:
            there.append(name)
    yield Ability("transports between ranks", bool(there), ", ".join(there))


def _own_cost() -> Iterator[Ability]:
    """Yield what spans cost a step of a tiny model, with the interval, and how closely two steps can be told apart."""
    setting = resolved(Setting(model="qwen3-tiny", steps=_STEPS, tokens=_TOKENS, warmup=2, detail="block"))
    try:
        with Ranks(1) as ranks:
            made = ranks.profile(setting, None, until_s=time.monotonic() + _RUN_S)
    except IpcbenchError as error:
        yield Ability("a run", can=False, detail=str(error))
        return
    count = sum(step.source == "plain" and step.phase == "prefill" for step in made.steps)
    if count < _STEPS:
        yield Ability("cost of spans", can=None, detail=f"{count} of {_STEPS} repetitions fitted into {_RUN_S:.0f} s")
    for total in summarize(made).totals:
        step = f"; a step takes {figure_words(total.latency)}" if total.latency else ""
        name = f"cost of spans, {total.phase} of {setting.model}"
        yield Ability(name, total.overhead.is_resolved or None, cost_words(total.overhead) + step)


def _gpus(*, has_torch: bool) -> Iterator[Ability]:
    count = 0
    if has_torch:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for index in range(count):
            yield Ability(f"GPU {index}", can=True, detail=torch.cuda.get_device_name(index))
    for missing in unavailable(count):
        yield Ability(missing.what, can=False, detail=f"needs {missing.needs}")
