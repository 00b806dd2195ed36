"""A setting's model: a preset, a config.json, a folder of transformers, or anyone's own factory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from ipcbench.errors import ConfigError
from ipcbench.models import Model, read_model
from ipcbench.profile.model.decoder import SEED, Decoder, Form
from ipcbench.profile.model.plan import find_model
from ipcbench.profile.model.split import CLIENT
from ipcbench.profile.records import Setting
from ipcbench.util.reference import is_reference, load_reference, users_own

DTYPES: Final = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
_WEIGHTS: Final = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class Loaded:
    """A model, whole.

    Attributes:
        module: with parameters on `meta` if they follow from the seed: they take memory when a rank's part is cut.
        facts: None of the user's own, which runs on one rank only.
        example: inputs of the user's own model, which it is called with; empty for a decoder.
    """

    module: nn.Module
    facts: Model | None
    example: tuple[Any, ...] = field(default=())


def load(setting: Setting, *, is_meta: bool = False) -> Loaded:
    """Return the model of a setting.

    Args:
        setting: `model`, `dtype`, `attention` and `is_fused` decide.
        is_meta: whether a folder's weights are left out too, so that only shapes are there.

    Raises:
        ConfigError: there is no such model, or it cannot be run in that form.
        StoreError: its file cannot be read.
    """
    if setting.dtype not in DTYPES:
        raise ConfigError("dtype", setting.dtype, tuple(DTYPES))
    if Path(setting.model).is_dir():
        return _from_folder(Path(setting.model), setting, is_meta=is_meta)
    if is_factory(setting.model):
        return _from_factory(setting)
    facts = find_model(setting.model)
    with torch.device("meta"):
        return Loaded(Decoder(facts, Form(setting.attention, setting.is_fused)), facts)


def is_factory(model: str) -> bool:
    """Return whether a model is the user's own, named as `module:factory`."""
    return is_reference(model) and not Path(model).exists()


def _from_factory(setting: Setting) -> Loaded:
    """Return what the user's factory makes: a module and the inputs that it is called with."""
    name = setting.model
    factory = load_reference(name, "model")
    with users_own("model", name, "a factory that does not fail"):
        made = factory()
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module) or inputs is None:
        raise ConfigError("model", name, "a factory that returns (torch module, its inputs)")
    return Loaded(module.eval(), None, inputs if isinstance(inputs, tuple) else (inputs,))


def _from_folder(folder: Path, setting: Setting, *, is_meta: bool) -> Loaded:
    try:
        from transformers import AutoConfig, AutoModelForCausalLM, __version__
    except ImportError as error:
        hint = "a preset or a config.json without transformers; for a folder, pip install transformers"
        raise ConfigError("model", str(folder), hint) from error
    facts = read_model(folder)
    if setting.is_fused:
        raise ConfigError("model", str(folder), "without --fused: its layers are its own")
    is_old = tuple(int(part) for part in __version__.split(".")[:2]) < (4, 56)
    form = {
        "attn_implementation": setting.attention,
        "torch_dtype" if is_old else "dtype": DTYPES[setting.dtype],
    }
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if is_meta or not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
            torch.manual_seed(SEED)
            with torch.device("meta" if is_meta else "cpu"):
                module = AutoModelForCausalLM.from_config(config, **form)
        else:
            module = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **form)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:150]
        raise ConfigError("model", str(folder), f"a folder that transformers reads ({reason})") from error
    return Loaded(module.eval().requires_grad_(False), facts)


def device_of(setting: Setting, rank: int) -> torch.device:
    """Return the device of a rank: ranks take GPUs in turn unless one is named. The client of split inference stays on
    the processor.

    Raises:
        ConfigError: there is no such device.
    """
    name = setting.device if setting.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError("device", name, "auto, cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    index = rank % count if device.index is None and count else device.index or 0
    if index >= count:
        raise ConfigError("device", name, f"cpu, or a CUDA device: there are {count}")
    is_client = setting.parallel == "split" and rank == CLIENT
    return torch.device("cpu") if is_client else torch.device("cuda", index)


def prompt(setting: Setting, vocabulary: int) -> torch.Tensor:
    """Return the ids of the prompt and of the tokens that are decoded after it, (batch, seq + tokens).

    They follow from the seed and are the same at every rank: what the logits would choose is not sent around, and the
    work does not depend on it.
    """
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(vocabulary, (setting.batch, setting.seq + setting.tokens), generator=generator)
