"""What the commands of `ipcbench profile` share: the options of a setting, reading, progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ipcbench.cli.options import DTYPES, one_word, options, whole
from ipcbench.cli.output import RESULTS_ROOT, tell
from ipcbench.errors import ConfigError, StoreError
from ipcbench.util.files import as_store_errors
from ipcbench.util.reference import users_own

if TYPE_CHECKING:
    from ipcbench.profile.records import Profile, Setting
    from ipcbench.profile.run import Say

_TELL_EVERY_S = 2.0
_MODEL = "qwen3-tiny, qwen3-small, a preset as qwen3-0.6b, a config.json, a folder of transformers, or module:factory."


model_options = options(
    click.option("--model", default="qwen3-tiny", show_default=True, metavar="NAME", help=f"What to run: {_MODEL}"),
    one_word("--dtype", DTYPES, "Of weights and activations."),
    one_word("--attn", ("sdpa", "eager"), "Attention."),
    click.option("--fused", is_flag=True, help="One linear layer for q, k and v, and one for gate and up."),
)
running_options = options(
    whole("--steps", 10, "Repetitions with instruments, and as many without."),
    whole("--warmup", 3, "Repetitions before, which are not counted."),
    click.option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda or cuda:N."),
    whole("--threads", 1, "Threads of each rank."),
)
shape_options = options(
    click.option(
        "--parallel",
        default="none",
        show_default=True,
        metavar="PLAN",
        help="How the model is divided: none, tpN, ppN, tpNppM or split.",
    ),
    whole("--seq", 128, "Tokens of the prompt."),
    whole("--batch", 1, "Sequences."),
    whole("--tokens", 8, "Tokens decoded after the prompt."),
    click.option(
        "--phase", default="prefill,decode", show_default=True, metavar="NAME,…", help="prefill, decode, or both."
    ),
    whole("--micro-batches", 1, "Parts into which a pipeline divides the batch."),
)
import_option = click.option(
    "--import", "imports", multiple=True, metavar="MODULE", help="Import it first: your own buckets, metrics, plots."
)
transport_option = click.option(
    "--transport",
    default="none",
    show_default="gloo for several ranks",
    metavar="NAME",
    help="nccl or a backend; gloo is torch's own.",
)


def setting_of(given: dict[str, Any]) -> Setting:
    """Return the setting of the options.

    Raises:
        ConfigError: a phase is unknown, or there is none.
    """
    from ipcbench.profile.records import Phase, Setting

    known = get_args(Phase)
    asked = [name.strip() for name in str(given.get("phase", "prefill,decode")).split(",") if name.strip()]
    if not asked or not {*asked} <= {*known}:
        raise ConfigError("--phase", given.get("phase"), known)
    names = {"attn": "attention", "fused": "is_fused"}
    values = {names.get(name, name): value for name, value in given.items()}
    fields = {name: values[name] for name in Setting.__dataclass_fields__ if name in values}
    return Setting(**fields, phases=tuple(name for name in known if name in asked))


def sayer(given: dict[str, Any]) -> Say:
    """Return what prints the progress, at most a line every two seconds; nothing if it is not wanted."""
    last_s = 0.0

    def say(line: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _TELL_EVERY_S:
            last_s = time.monotonic()
            tell(line)

    return say if given["progress"] and not given["quiet"] else lambda _: None


def import_all(names: Sequence[str]) -> None:
    """Import the modules that `--import` names."""
    for name in names:
        with users_own("--import", name, "a module that can be imported"):
            import_module(name)


def print_lines(lines: Sequence[str]) -> None:
    """Print lines to stdout."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()  # so that a closed pipe is an error here, not after the exit


def read(path: str) -> Profile:
    """Return the profile of a folder, or of its profile.json."""
    from ipcbench.profile.records import read_profile

    return read_profile(Path(path))


def named(out: str) -> Path:
    """Return the path that `--out` names; raise ConfigError if it names none."""
    if not out.strip():
        raise ConfigError("--out", out, "the path of a file or folder")
    return Path(out)


def out_folder(out: str | None, name: str, own: Sequence[str] = ("profile.json",)) -> Path:
    """Return the folder for the files, after a look whether they can be written there; it is not made.

    Args:
        out: which was asked for; None for a new one in the results.
        name: of the new one.
        own: patterns of files that show a folder to be ours, whose files may be replaced.

    Raises:
        ConfigError: it has no name.
        StoreError: it has files but none of these, or cannot be made or written.
    """
    if out is not None:
        named(out)
    folder = Path(out or RESULTS_ROOT / name)
    if os.environ.get("RANK", "0") != "0":  # torchrun's first rank writes
        return folder
    with as_store_errors(folder):
        if folder.exists():
            if any(folder.iterdir()) and not any(any(folder.glob(pattern)) for pattern in own):
                raise StoreError(f"{folder}: exists already, and its files are of something else; choose another --out")
            if any(folder.iterdir()):
                tell(f"{folder}: files of the same names will be replaced")
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
        for each in made:
            each.rmdir()
    if not is_writable:
        raise StoreError(f"{folder}: cannot be written to; choose another --out")
    return folder
