"""`ipcbench profile sweep`: latency by length, what more ranks bring, bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.cli import EXIT_FAILED
from ipcbench.cli.options import (
    FunctionOrCommand,
    Group,
    backend_names,
    duration,
    options,
    progress_options,
    several,
    whole,
)
from ipcbench.cli.output import tell
from ipcbench.cli.profile_options import model_options, out_folder, print_lines, running_options, sayer, setting_of
from ipcbench.errors import ConfigError

if TYPE_CHECKING:
    from ipcbench.profile.records import Setting, SweepPoint
    from ipcbench.profile.sweep.cases import Budget, Done


@click.group("sweep", cls=Group, invoke_without_command=True)
@click.pass_context
def sweep(context: click.Context) -> None:
    """Measure many settings: latency by length, what more ranks bring, bandwidth."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _listed(name: str, default: str, text: str) -> Callable[[FunctionOrCommand], FunctionOrCommand]:
    return click.option(name, default=default, show_default=True, metavar="A,…", help=text)


_COMMON = ("model", "dtype", "device", "attention", "is_fused", "steps", "warmup")
"""What all cases of a model's sweep have in common."""
_transports = several("--transport", "gloo,shm", "Transports to measure.", backend_names)
_end = options(
    duration("--budget", "2min", "What does not fit is not measured."),
    click.option("--full", is_flag=True, help="Measure every case, however long it takes."),
    click.option("--out", metavar="FOLDER", show_default="results/profile-sweep-TIME", help="Where the files go."),
    progress_options,
)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers of a list, of which each is at least 1.

    Raises:
        ConfigError: there is none, or one is something else.
    """
    names = _names(text)
    if not names or not all(name.isdecimal() and int(name) > 0 for name in names):
        raise ConfigError(option, text, "whole numbers from 1, joined by commas")
    return tuple(int(name) for name in names)


def _budget(given: dict[str, Any]) -> Budget:
    from ipcbench.profile.sweep.cases import Budget
    from ipcbench.util.units import parse_duration_s

    limit_s = parse_duration_s(given["budget"], "--budget")
    return Budget(None if given["full"] else limit_s)


def _keeper(given: dict[str, Any], base: Setting | None = None) -> tuple[Done, Path]:
    """Return what writes the cases so far, and the folder."""
    from ipcbench.machine.describe import describe_machine, describe_versions
    from ipcbench.profile.files.sweeps import FILES, write_sweep

    setting = {name: getattr(base, name) for name in _COMMON} if base else {}
    facts = {"started_unix_s": time.time(), "setting": setting, "machine": describe_machine()}
    facts["versions"] = describe_versions("torch", "transformers")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = out_folder(given["out"], f"profile-sweep-{stamp}", [f"{name}_*.json" for name in FILES.values()])

    def done(points: Sequence[SweepPoint]) -> None:
        write_sweep(points, folder, stamp, facts)

    return done, folder


def _finish(points: Sequence[SweepPoint], folder: Path) -> int:
    """Print what was found, write the pictures and the report, and return the exit code."""
    from ipcbench.profile.files.sweeps import sweep_lines, write_report

    print_lines(sweep_lines(points))
    write_report(folder)
    tell(f"files: {folder}")
    return EXIT_FAILED if all(point.status != "measured" for point in points) else 0


@sweep.command("seq", short_help="Latency by length, batch and output, for several ways to divide the model.")
@model_options
@running_options
@_listed("--seq", "128,256,512,1024,2048,4096,8192", "Tokens of the prompt.")
@_listed("--batch", "1,2,4,8", "Sequences.")
@_listed("--tokens", "50,100,200", "Tokens decoded.")
@_listed("--parallel", "none,tp2,pp2", "Ways to divide the model.")
@click.option("--transport", default="shm", show_default=True, metavar="NAME", help="Of several ranks.")
@_end
def seq(**given: Any) -> int:
    """Measure the time to the first token, the time per further token, and tokens per second.

    Exit codes: 0 done; 1 nothing could be measured; 2 bad input.
    """
    from ipcbench.profile.sweep.models import sweep_seq

    axes = {name: given.pop(name) for name in ("seq", "batch", "tokens", "parallel")}
    lengths, batches, outputs = (_numbers(f"--{name}", axes[name]) for name in ("seq", "batch", "tokens"))
    plans, base = _names(axes["parallel"]), setting_of(given)
    done, folder = _keeper(given, base)
    points = sweep_seq(base, lengths, batches, outputs, plans, _budget(given), done, sayer(given))
    return _finish(points, folder)


@sweep.command("parallel", short_help="What more ranks bring, by degree and transport.")
@model_options
@running_options
@whole("--seq", 128, "Tokens of the prompt.")
@whole("--batch", 1, "Sequences.")
@whole("--tokens", 8, "Tokens decoded.")
@whole("--rounds", 3, "How often each has its turn.")
@_listed("--parallel", "tp2,pp2", "Ways to divide the model.")
@_transports
@_end
def parallel(**given: Any) -> int:
    """Measure speed-up and efficiency against one process, with the threads of one rank and with all, and the share of
    communication.

    Exit codes: 0 done; 1 nothing could be measured; 2 bad input.
    """
    from ipcbench.profile.sweep.models import sweep_parallel
    from ipcbench.spec.checks import whole_number

    plans, names = _names(given.pop("parallel")), _names(given.pop("transport"))
    whole_number("--rounds", given["rounds"], 1, 10_000)
    base = setting_of(given)
    done, folder = _keeper(given, base)
    return _finish(sweep_parallel(base, plans, names, given["rounds"], _budget(given), done, sayer(given)), folder)


@sweep.command("bandwidth", short_help="Bytes per second of memory, transports and collective operations.")
@_listed("--sizes", "1MiB,4MiB,16MiB,64MiB,256MiB,1GiB,2GiB", "Bytes of a message; what does not fit is not measured.")
@whole("--ranks", 2, "Processes of a collective operation.")
@_transports
@_end
def bandwidth(**given: Any) -> int:
    """Measure copies in memory, messages one way and both ways, and collective operations, over every transport.

    Exit codes: 0 done; 1 nothing could be measured; 2 bad input. Only gloo needs torch.
    """
    from ipcbench.profile.sweep.bandwidth import sweep_bandwidth
    from ipcbench.spec.checks import whole_number
    from ipcbench.util.units import parse_bytes

    ranks = whole_number("--ranks", given["ranks"], 2, 64)
    sizes = [parse_bytes(text, "--sizes") for text in _names(given["sizes"])]
    if not sizes or any(size == 0 or size % (4 * ranks) for size in sizes):
        raise ConfigError("--sizes", given["sizes"], f"multiples of {4 * ranks} bytes, 4 for each rank")
    done, folder = _keeper(given)
    names = _names(given["transport"])
    return _finish(sweep_bandwidth(names, sizes, ranks, _budget(given), done, sayer(given)), folder)
