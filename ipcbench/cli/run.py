"""`ipcbench run`: measure a sweep and print its tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.cli import EXIT_FAILED, EXIT_INTERRUPTED, format_option
from ipcbench.cli.output import FORMATS, RESULTS_ROOT, command_line, show_run, tell
from ipcbench.cli.progress import progress_display
from ipcbench.errors import ConfigError
from ipcbench.registry import names
from ipcbench.sweeps.load import (
    DEFAULT_SWEEP,
    KEYS,
    PRESETS,
    VARIANTS_SWEEP,
    builtin_sweeps,
    describe_sweep,
    load_sweep,
)

if TYPE_CHECKING:
    from ipcbench.spec import SweepSpec


def _sweep_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add one option for each key of a sweep file."""
    for key in reversed(KEYS):
        option = click.option(f"--{key.name}", key.name, metavar=key.metavar, help=key.help, multiple=key.repeated)
        function = option(function)
    return function


def _words(preset: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in PRESETS[preset].items())


class _Run(click.Command):
    """The command; its help text ends with the built-in sweeps."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Sweeps"):
            formatter.write_dl([(name, describe_sweep(name)) for name in builtin_sweeps()])


@click.command("run", cls=_Run, short_help="Measure a sweep and print its tables.")
@click.argument("sweep", required=False, metavar="[SWEEP]")
@_sweep_options
@click.option("--quick", "preset", flag_value="quick", help=f"Set {_words('quick')}.")
@click.option("--rigorous", "preset", flag_value="rigorous", help=f"Set {_words('rigorous')}.")
@click.option(
    "--insecure", is_flag=True, help="Also measure zmq-tcp without its keys, as zmq-tcp-insecure: what do they cost?"
)
@click.option("--out", metavar="FOLDER", help=f"Folder for this run; by default a new one in {RESULTS_ROOT}/.")
@click.option("--resume", metavar="RUN", help="Continue an interrupted run; allows only --format beside it.")
@format_option(*FORMATS)
@click.pass_context
def command(
    context: click.Context,
    /,
    sweep: str | None,
    preset: str | None,
    insecure: bool,
    out: str | None,
    resume: str | None,
    form: str,
    **options: Any,
) -> int:
    """Measure SWEEP, a name from the list below or the path of a TOML file, and print its tables.

    Every option overrides a key of the sweep. Each trial is stored as it ends, so Ctrl-C keeps every finished trial.
    """
    given = {key: value for key, value in options.items() if value not in (None, ())}
    if resume is None:
        usual = VARIANTS_SWEEP if "variant" in given else DEFAULT_SWEEP
        spec, folder = load_sweep(sweep or usual, given, preset), _new_folder(out)
        spec = _with_insecure(spec) if insecure else spec
    else:
        flags = dict.fromkeys([*([preset] if preset else []), *(["insecure"] if insecure else [])], True)
        _require_alone(sweep, out, {**given, **flags})
        spec, folder = _stored_sweep(Path(resume)), Path(resume)
    try:
        _measure(spec, folder, goes_on=resume is not None, command=command_line(context.obj))
    except KeyboardInterrupt:
        _say_what_is_kept(folder)
        return EXIT_INTERRUPTED
    tell(f"results in {folder}")
    sound = show_run(folder, form)
    tell(f"for plots and an interactive report: ipcbench analyze {folder}")
    if "variant" in given:
        tell(f"which figures of the variants differ:     ipcbench compare {folder}")
    return 0 if sound else EXIT_FAILED


def _measure(spec: SweepSpec, folder: Path, *, goes_on: bool, command: tuple[str, ...]) -> None:
    from ipcbench.harness.sweep import run_sweep

    with progress_display() as show:
        run_sweep(
            spec,
            folder.parent,
            results_dir=None if goes_on else folder,
            resume=folder if goes_on else None,
            command=command,
            on_progress=show,
        )


def _new_folder(out: str | None) -> Path:
    from ipcbench.results.store import new_run_id

    return RESULTS_ROOT / new_run_id() if out is None else Path(out)


def _with_insecure(spec: SweepSpec) -> SweepSpec:
    """Return the sweep with each backend that has keys followed by the one without."""
    pairs = [(name, f"{name}-insecure") for name in spec.backends]
    known = names()
    if not any(twin in known for _, twin in pairs):
        raise ConfigError("--insecure", ", ".join(spec.backends), "a sweep with zmq-tcp: no other backend has keys")
    backends = dict.fromkeys(name for pair in pairs for name in pair if name in spec.backends or name in known)
    return replace(spec, backends=tuple(backends))


def _require_alone(sweep: str | None, out: str | None, given: dict[str, Any]) -> None:
    """Refuse options beside --resume: they would change the run, and its trials would not belong together."""
    for name, value in {"SWEEP": sweep, "--out": out, **{f"--{key}": value for key, value in given.items()}}.items():
        if value is not None:
            raise ConfigError(name, value, "nothing beside --resume, which continues the run's own sweep")


def _stored_sweep(folder: Path) -> SweepSpec:
    from ipcbench.results.store import load_run, stored_sweep

    return stored_sweep(load_run(folder))


def _say_what_is_kept(folder: Path) -> None:
    if not folder.is_dir():
        tell("ipcbench: interrupted before the first trial; nothing is kept")
        return
    tell(f"ipcbench: interrupted; every finished trial is kept in {folder}")
    tell(f"  show it:      ipcbench analyze {folder}")
    tell(f"  continue it:  ipcbench run --resume {folder}")
