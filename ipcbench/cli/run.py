"""`ipcbench run`: measure a sweep and print its table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.cli.output import FORMATS, RESULTS_ROOT, show_run
from ipcbench.cli.progress import progress_display
from ipcbench.errors import ConfigError
from ipcbench.sweeps.load import DEFAULT_SWEEP, KEYS, PRESETS, builtin_sweeps, describe_sweep, load_sweep

if TYPE_CHECKING:
    from ipcbench.spec import SweepSpec

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def _sweep_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add one option for each key of a sweep file."""
    for key in reversed(KEYS):
        function = click.option(f"--{key.name}", key.name, metavar=key.metavar, help=key.help)(function)
    return function


def _words(preset: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in PRESETS[preset].items())


class _Run(click.Command):
    """The command, with the built-in sweeps at the end of its help text."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Sweeps"):
            formatter.write_dl([(name, describe_sweep(name)) for name in builtin_sweeps()])


@click.command("run", cls=_Run, short_help="Measure a sweep and print its tables.")
@click.argument("sweep", required=False, metavar="[SWEEP]")
@_sweep_options
@click.option("--quick", "preset", flag_value="quick", help=f"Set {_words('quick')}.")
@click.option("--rigorous", "preset", flag_value="rigorous", help=f"Set {_words('rigorous')}.")
@click.option("--out", metavar="FOLDER", help=f"The run's own folder; without it, a new one under {RESULTS_ROOT}/.")
@click.option("--resume", metavar="RUN", help="Go on with an interrupted run; takes no other option but --format.")
@click.option("--format", "form", type=click.Choice(FORMATS), default=FORMATS[0], help="Form of the tables on stdout.")
@click.pass_context
def command(
    context: click.Context,
    /,
    sweep: str | None,
    preset: str | None,
    out: str | None,
    resume: str | None,
    form: str,
    **options: Any,
) -> int:
    """Measure SWEEP, a name below or the path of a TOML file, and print its tables.

    Every option overrides a key of the sweep. Trials are kept as they end: Ctrl-C loses nothing that is measured.
    """
    given = {key: value for key, value in options.items() if value is not None}
    if resume is None:
        spec, folder = load_sweep(sweep or DEFAULT_SWEEP, given, preset), _new_folder(out)
    else:
        _require_alone(sweep, out, {**given, **({preset: True} if preset else {})})
        spec, folder = _stored_sweep(Path(resume)), Path(resume)
    try:
        _measure(spec, folder, goes_on=resume is not None, command=("ipcbench", *context.obj))
    except KeyboardInterrupt:
        _say_what_is_kept(folder)
        return EXIT_INTERRUPTED
    click.echo(f"results in {folder}", err=True)
    sound = show_run(folder, form)
    click.echo(f"plots and a page to look into: ipcbench analyze {folder}", err=True)
    return 0 if sound else EXIT_FAILED


def _measure(spec: SweepSpec, folder: Path, *, goes_on: bool, command: tuple[str, ...]) -> None:
    from ipcbench.harness.sweep import run_sweep

    with progress_display() as show:
        run_sweep(
            spec,
            folder.parent,
            run_dir=None if goes_on else folder,
            resume=folder if goes_on else None,
            command=command,
            on_progress=show,
        )


def _new_folder(out: str | None) -> Path:
    from ipcbench.results.store import new_run_id

    return RESULTS_ROOT / new_run_id() if out is None else Path(out)


def _require_alone(sweep: str | None, out: str | None, given: dict[str, Any]) -> None:
    """Refuse what would change a run that is gone on with: its trials would not belong together."""
    for name, value in {"SWEEP": sweep, "--out": out, **{f"--{key}": value for key, value in given.items()}}.items():
        if value is not None:
            raise ConfigError(name, value, "nothing beside --resume, which goes on with the run's own sweep")


def _stored_sweep(folder: Path) -> SweepSpec:
    from ipcbench.results.store import load_run
    from ipcbench.spec import SweepSpec

    return SweepSpec.from_dict(load_run(folder).info.sweep)


def _say_what_is_kept(folder: Path) -> None:
    if not folder.is_dir():
        click.echo("ipcbench: interrupted before the first trial; nothing is kept", err=True)
        return
    click.echo(f"ipcbench: interrupted; every trial that had ended is kept in {folder}", err=True)
    click.echo(f"  see it:    ipcbench analyze {folder}", err=True)
    click.echo(f"  go on:     ipcbench run --resume {folder}", err=True)
