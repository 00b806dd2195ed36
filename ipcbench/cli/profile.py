"""`ipcbench profile`: where a model's time goes, layer by layer, and what its ranks say to each other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.cli import EXIT_FAILED
from ipcbench.cli.options import Group, a_path, format_option, one_word, progress_options
from ipcbench.cli.output import tell, text_width
from ipcbench.cli.profile_options import (
    import_all,
    import_option,
    model_options,
    out_folder,
    print_lines,
    read,
    running_options,
    sayer,
    setting_of,
    shape_options,
    transport_option,
)
from ipcbench.cli.profile_sweep import sweep
from ipcbench.cli.profile_traffic import give, replay, synth, take
from ipcbench.errors import ConfigError

if TYPE_CHECKING:
    from ipcbench.profile.records import Profile


@click.group("profile", cls=Group, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Profile a model: its layers and operators, and the communication of its ranks over any transport.

    `run`, `sweep seq`, `sweep parallel` and gloo need torch: pip install 'ipcbench[profile]'. Everything that reads,
    plans or replays a profile does not.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _part in (sweep, synth, replay, take, give):
    command.add_command(_part)


@command.command("run", short_help="Run a model on one rank or several, and say where its time goes.")
@model_options
@running_options
@shape_options
@transport_option
@one_word(
    "--detail",
    ("op", "block", "module"),
    "Spans of blocks, or of every module; `op`: of blocks, and their operators in repetitions of their own.",
)
@import_option
@click.option("--out", metavar="FOLDER", show_default="results/profile-TIME", help="Where the files go.")
@progress_options
def run(**given: Any) -> int:
    """Run a model, and say where its time goes, layer by layer, and what its ranks say to each other.

    The logits of several ranks are compared with those of one process. Under torchrun, this process is a rank.

    Exit codes: 0 done; 1 a rank or your own function failed, or the logits are wrong; 2 bad input, or torch is missing.
    """
    from ipcbench.profile.run import profile

    folder = out_folder(given["out"], time.strftime("profile-%Y%m%d-%H%M%S"))
    import_all(given["imports"])
    made = profile(setting_of(given), imports=given["imports"], say=sayer(given))
    if made is None:
        return 0
    return _show(made, folder, quiet=given["quiet"])


def _show(made: Profile, folder: Path, form: str = "text", *, full: bool = False, quiet: bool = False) -> int:
    """Write a profile's files, print it, one screen or all, and return the exit code: 1 if its logits are wrong, or a
    function of the user's own has failed.
    """
    from ipcbench.profile.advice import advise
    from ipcbench.profile.files import as_json, write_files
    from ipcbench.profile.files.tables import every_table, screen
    from ipcbench.profile.summary import summarize

    written = write_files(made, folder)
    summary = summarize(made)
    advice = advise(summary)
    if form == "json":
        print_lines(as_json(written.analysis).decode().splitlines())
    else:
        print_lines((every_table if full else screen)(summary, advice))
    if not quiet:
        tell(f"files: {folder}")
    errors = [f"{each.what}: needs {each.needs}" for each in written.unavailable if each.is_failure]
    if made.agreement is not None and not made.agreement.holds:
        errors.append(made.agreement.words)
    for each in errors:
        tell(f"ipcbench: error: {each}")
    return EXIT_FAILED if errors else 0


@command.command("check", short_help="Say what can be measured on this machine, and what that needs.")
@progress_options
def check(**given: Any) -> int:
    """Say within half a minute what this machine can and cannot measure, and what the rest needs.

    Exit codes: 0 a model can be run; 1 torch is missing.
    """
    from ipcbench.profile.check import check as look
    from ipcbench.render.text import wrapped

    found = look(sayer(given))
    words = {True: "yes", False: "no", None: "partly"}
    for each in found:
        text = f"{each.what}: {each.detail}" if each.detail else each.what
        print_lines(wrapped(text, text_width(), first=f"{words[each.can]:6}  ", indent=" " * 8))
    return 0 if found[0].can else EXIT_FAILED


@command.command("report", short_help="Print a profile again, and write its files anew.")
@click.argument("path", metavar="FOLDER", shell_complete=a_path("dir"))
@click.option("--full", is_flag=True, help="Every table in place of one screen.")
@format_option("text", "json")
@import_option
@click.option("--out", metavar="FOLDER", show_default="the profile's own", help="Where the files go.")
def report(path: str, full: bool, form: str, imports: tuple[str, ...], out: str | None) -> int:
    """Print a profile, a folder or its profile.json, and write its files anew.

    Exit codes: 0 done; 1 its logits are wrong, or your own function failed.
    """
    import_all(imports)
    made = read(path)
    own = Path(path) if Path(path).is_dir() else Path(path).parent
    return _show(made, own if out is None else out_folder(out, ""), form, full=full)


@command.command("compare", short_help="Compare two profiles, figure by figure.")
@click.argument("a", metavar="A,…", shell_complete=a_path("dir"))
@click.argument("b", metavar="B,…", shell_complete=a_path("dir"))
def compare(a: str, b: str) -> int:
    """Compare profile B with profile A: wall times, buckets, layers and communication, each ratio with its interval.

    Several runs of one setting are named with commas: A,A2,A3 B,B2,B3. With three or more of each, runs are compared
    with runs; of single ones, only a difference of more than a factor of 2 is called clear.
    """
    from ipcbench.profile.compare import compare as compared
    from ipcbench.profile.files.tables import comparison_lines
    from ipcbench.profile.summary import summarize

    for paths in (a, b):
        if not all(map(str.strip, paths.split(","))):
            raise ConfigError("profiles", paths, "folders of profiles, with commas between them")
    sides = [[summarize(read(path)) for path in paths.split(",")] for paths in (a, b)]
    print_lines(comparison_lines(compared(*sides)))
    return 0
