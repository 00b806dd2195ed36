"""`ipcbench run`: measure a sweep and print its tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.cli import EXIT_FAILED, EXIT_INTERRUPTED
from ipcbench.cli.options import a_path, backend_names, format_option, one_of, progress_options, some_of
from ipcbench.cli.output import FORMATS, RESULTS_ROOT, command_line, show_run, stored_run, tell, warn_of_code
from ipcbench.cli.progress import Show, progress_display
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
    sweep_texts,
)
from ipcbench.util.shell import shell_command

if TYPE_CHECKING:
    from ipcbench.harness.hosts import HostPlan
    from ipcbench.spec import SweepSpec


_NAMING = ("--hosts", "--place")
"""Options whose values name hosts, which no record keeps."""
_UNITS = frozenset({"ms", "s", "seconds", "min", "minutes", "h", "B", "KiB", "MiB", "%", "/s"})
"""What stands alone where a space precedes the unit of an option's value."""


def _sweep_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add one option for each key of a sweep file."""
    for key in reversed(KEYS):
        complete = some_of(backend_names if key.name == "backends" else key.choices)
        option = click.option(
            f"--{key.name}", metavar=key.metavar, help=key.help, multiple=key.repeated, shell_complete=complete
        )
        function = option(function)
    return function


def _words(preset: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in PRESETS[preset].items())


class _Run(click.Command):
    """The command; its help text shows the default sweep's values, and ends with the built-in sweeps."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        usual = sweep_texts(DEFAULT_SWEEP)
        for param in self.params:
            if isinstance(param, click.Option) and (key := str(param.name).replace("_", "-")) in usual:
                param.help = f"{param.help}  [default: {usual[key]}]"
        super().format_options(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Sweeps"):
            formatter.write_dl([(name, describe_sweep(name)) for name in builtin_sweeps()])


@click.command("run", cls=_Run)
@click.argument("sweep", nargs=-1, metavar="[SWEEP]", shell_complete=one_of(builtin_sweeps))
@_sweep_options
@click.option("--quick", "preset", flag_value="quick", help=f"Set {_words('quick')}.")
@click.option("--rigorous", "preset", flag_value="rigorous", help=f"Set {_words('rigorous')}.")
@click.option(
    "--insecure", is_flag=True, help="Also measure zmq-tcp without its keys, as zmq-tcp-insecure: what do they cost?"
)
@click.option("--full", is_flag=True, help="Print every table and note, as `ipcbench analyze` does.")
@click.option(
    "--out",
    metavar="FOLDER",
    shell_complete=a_path("file"),
    help=f"Folder for this run; by default a new one in {RESULTS_ROOT}/.",
)
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=a_path("dir"),
    help="Continue an interrupted run; of the options above, only --sample may stand beside it.",
)
@click.option(
    "--hosts",
    metavar="HOSTS",
    help="Run the endpoints on other hosts: a,b,c, a hostfile, a TOML inventory, or `slurm`; see docs/hosts.md.",
)
@click.option(
    "--place",
    default="spread",
    show_default=True,
    metavar="RULE",
    help="Which endpoints on which hosts: spread, pack, or writer=HOST.",
)
@click.option(
    "--launch",
    metavar="LAUNCHER",
    help="What starts programs on the hosts: ssh, hydra or srun.  [default: ssh; srun with --hosts slurm]",
)
@format_option(*FORMATS)
@progress_options
@click.pass_context
def command(
    context: click.Context,
    /,
    sweep: tuple[str, ...],
    preset: str | None,
    insecure: bool,
    out: str | None,
    resume: str | None,
    full: bool,
    form: str,
    progress: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Measure SWEEP, a name from the list below or the path of a TOML file, and print the answer.

    Every option overrides a key of the sweep; the defaults below are those of the sweep `default`. Each trial is stored
    as it ends, so Ctrl-C keeps every finished trial.
    """
    given = _given(options)
    if resume is None:
        usual = VARIANTS_SWEEP if "variant" in given else DEFAULT_SWEEP
        spec, folder = load_sweep(_sweep_name(sweep, given) or usual, given, preset), _new_folder(out)
        spec = _with_insecure(spec) if insecure else spec
    else:
        sample = given.pop("sample", "")
        flags = dict.fromkeys([*([preset] if preset else []), *(["insecure"] if insecure else [])], True)
        _require_alone(" ".join(sweep) or None, out, {**given, **flags})
        spec, folder = _stored_sweep(Path(resume), sample), Path(resume)
    warn_of_code(spec.sample)
    try:
        with progress_display(progress=progress, quiet=quiet) as show:
            _measure(spec, folder, show, context.obj, options, goes_on=resume is not None)
    except KeyboardInterrupt:
        is_kept, is_screen = _say_what_is_kept(folder), form == "text" and not full and sys.stdout.isatty()
        if is_kept:
            show_run(folder, form, full=full)
        if is_kept and not is_screen:  # which ends with these commands
            tell(f"  show it:      {shell_command('ipcbench', 'analyze', folder)}")
            tell(f"  continue it:  {shell_command('ipcbench', 'run', '--resume', folder, *_hosts_again(options))}")
        return EXIT_INTERRUPTED
    if not quiet and (full or form != "text"):
        analyze = shell_command("ipcbench", "analyze", folder)
        tell(f"results in {folder}; for plots and an interactive report: {analyze}")
    return 0 if show_run(folder, form, full=full) else EXIT_FAILED


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a sweep that were given, by their keys."""
    values = {key.name: options[key.name.replace("-", "_")] for key in KEYS}
    return {name: value for name, value in values.items() if value not in (None, ())}


def _sweep_name(words: tuple[str, ...], given: Mapping[str, Any]) -> str:
    """Return the name of the sweep, empty for none; refuse what belongs to an option.

    Raises:
        ConfigError: the words are backends, a stored run, or part of a value of an option.
    """
    from ipcbench.results.store import INFO_FILE

    text = " ".join(words)
    if not words or text in builtin_sweeps():
        return text
    parts = [part for word in words for part in word.split(",") if part]
    if set(parts) <= set(names()):
        chosen = ",".join((*filter(None, given.get("backends", "").split(",")), *parts))
        raise ConfigError("SWEEP", text, f"one sweep; backends are chosen by --backends {chosen}")
    if (Path(text) / INFO_FILE).is_file():
        analyze = shell_command("ipcbench", "analyze", text)
        raise ConfigError("SWEEP", text, f"one sweep; this is a run, which `{analyze}` shows")
    if len(words) > 1 or (given and words[0] in _UNITS):
        raise ConfigError("SWEEP", text, "one sweep; the value of an option has no spaces: --budget 5min")
    return text


def _published(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command line for the run's record, without the names of hosts."""
    shown: list[str] = []
    for word in words:
        option, _, value = word.partition("=")
        if shown and shown[-1] in _NAMING:
            shown.append(_without_host(shown[-1], word))
        else:
            shown.append(f"{option}={_without_host(option, value)}" if option in _NAMING and value else word)
    return command_line(tuple(shown))


def _without_host(option: str, value: str) -> str:
    rule, names_one, _ = value.partition("=")
    return "HOSTS" if option == "--hosts" else f"{rule}=HOST" if names_one else rule


def _measure(
    spec: SweepSpec, folder: Path, show: Show, words: Sequence[str], options: Mapping[str, Any], *, goes_on: bool
) -> None:
    from ipcbench.harness.sweep import run_sweep

    run_sweep(
        spec,
        folder.parent,
        results_dir=None if goes_on else folder,
        resume=folder if goes_on else None,
        command=_published(words),
        on_progress=show,
        hosts=_plan(options),
    )


def _hosts_again(options: Mapping[str, Any]) -> list[str]:
    """Return the options that name the hosts of a run, which its record does not."""
    named = [name for name in ("hosts", "place", "launch") if options["hosts"] and options[name]]
    return [word for name in named for word in (f"--{name}", options[name])]


def _plan(options: Mapping[str, Any]) -> HostPlan | None:
    """Return on which hosts a run takes place; None for this one."""
    if options["hosts"] is None:
        for name, usual in (("place", "spread"), ("launch", None)):
            if options[name] != usual:
                raise ConfigError(f"--{name}", options[name], "this only with --hosts")
        return None
    from ipcbench.harness.hosts import HostPlan
    from ipcbench.hosts.inventory import SLURM, read_hosts

    launcher = options["launch"] or ("srun" if options["hosts"] == SLURM else "ssh")
    return HostPlan(read_hosts(options["hosts"]), options["place"], launcher)


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


def _stored_sweep(folder: Path, sample: str) -> SweepSpec:
    """Return the sweep of a run to continue; `sample` is where its sample is now, if that was said."""
    from ipcbench.results.store import stored_sweep

    run = stored_run(folder)
    sweep = stored_sweep(run)
    if run.info.status == "complete":
        tell(f"{folder} is complete; for more rounds begin a new run")
    return replace(sweep, sample=sample) if sample else sweep


def _say_what_is_kept(folder: Path) -> bool:
    """Say whether an interrupted run has a trial, and return it."""
    from ipcbench.results.store import TRIALS_FILE

    trials = folder / TRIALS_FILE
    if not (trials.is_file() and trials.stat().st_size):
        resume = shell_command("ipcbench", "run", "--resume", folder)
        again = f"; {resume} begins it again" if folder.is_dir() else ""
        tell(f"ipcbench: interrupted before the first trial{again}")
        return False
    tell(f"ipcbench: interrupted; every finished trial is kept in {folder}")
    return True
