"""`ipcbench profile synth`, `replay`, `import` and `export`: calls between ranks, planned, sent again, exchanged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipcbench.cli import EXIT_FAILED
from ipcbench.cli.options import Choice, a_path, duration, progress_options, several, whole
from ipcbench.cli.output import tell, text_width
from ipcbench.cli.profile_options import (
    model_options,
    named,
    out_folder,
    print_lines,
    read,
    sayer,
    setting_of,
    shape_options,
)
from ipcbench.util.units import format_significant

if TYPE_CHECKING:
    from ipcbench.profile.comm.replay import Replayed
    from ipcbench.stats.estimates import Interval

_FORMATS_READ = ("kineto", "chakra", "param")
_FORMATS_WRITTEN = ("perfetto", "chrome", "chakra")


@click.command("synth", short_help="Plan the calls of a model that nobody has run, from its config alone.")
@model_options
@shape_options
@click.option("--out", metavar="FOLDER", required=True, help="Where profile.json goes.")
def synth(out: str, **given: Any) -> int:
    """Plan what the ranks of a model say to each other in a prompt and its decoding; without torch, weights or times.

    `ipcbench profile replay` sends these calls over any transport.
    """
    from ipcbench.profile.comm.synth import planned
    from ipcbench.profile.files.tables import screen
    from ipcbench.profile.model.plan import Plan, find_model
    from ipcbench.profile.records import Profile, write_profile
    from ipcbench.profile.summary import summarize

    setting = setting_of(given)
    calls = planned(find_model(setting.model), Plan.parse(setting.parallel), setting)
    made = Profile(setting, calls=calls, is_planned=True)
    write_profile(out_folder(out, ""), made)
    print_lines(screen(summarize(made)))
    return 0


@click.command("replay", short_help="Send a profile's calls over other transports.")
@click.argument("path", metavar="FOLDER", shell_complete=a_path("dir"))
@several("--transports", "shm,pipe,zmq", "Backends to replay over.")
@whole("--rounds", 5, "Replays over each of them.")
@duration("--budget", "60s", "As many of the first calls are replayed as fit, and a few at least.")
@progress_options
def replay(path: str, transports: str, rounds: int, budget: str, **given: Any) -> int:
    """Send the calls of a profile, measured, planned or imported, between real processes, with the ranks' own work
    between them; print what they took, and what a table of single calls predicts.

    Exit codes: 0 done; 1 a transport failed; 2 bad input. It does not need torch.
    """
    from ipcbench.profile.comm.replay import replay as replayed
    from ipcbench.spec.checks import whole_number
    from ipcbench.util.units import parse_duration_s

    whole_number("--rounds", rounds, 1, 10_000)
    names = [name.strip() for name in transports.split(",") if name.strip()]
    found = replayed(read(path), names, parse_duration_s(budget, "--budget"), rounds, sayer(given))
    print_lines(replay_lines(found))
    return EXIT_FAILED if any(each.failure for each in found.transports.values()) else 0


def replay_lines(found: Replayed) -> list[str]:
    """Return a replay as text: a row for each transport, the quickest first, and what cannot be said."""
    from ipcbench.profile.advice import percent
    from ipcbench.profile.files.tables import interval_words
    from ipcbench.profile.summary import BUSY_RATIO
    from ipcbench.render.table import NOT_MEASURED, Table, make_columns, number
    from ipcbench.render.text import aligned, paragraphs

    def words(values_ns: Sequence[float], interval: Interval | None) -> str:
        return number(statistics.median(values_ns), 1e6) + interval_words(interval, 1e6) if values_ns else NOT_MEASURED

    over = sorted(found.transports.items(), key=lambda item: statistics.median(item[1].walls_ns or [math.inf]))
    rows = [
        (name, words(each.walls_ns, each.measured), words(each.predicted_ns, each.predicted), each.failure)
        for name, each in over
    ]
    rows += [(name, NOT_MEASURED, NOT_MEASURED, reason) for name, reason in found.left_out.items()]
    heads = ["transport", "replayed, ms", "predicted, ms", ""]
    steps = f"steps: {found.steps_count:,} of {found.all_steps_count:,}"
    said = [f"{found.calls_count:,} calls were replayed ({steps})."]
    if found.calls_count < found.all_calls_count:
        said = [
            f"Only the first {found.calls_count:,} of {found.all_calls_count:,} calls were replayed, as many as "
            f"--budget allows, a few at least ({steps}); what the others would take is not known."
        ]
    if found.recorded_ns is not None:
        recorded = found.recorded_ns / 1e6
        said.append(f"As recorded, with the recorded transport, they took {format_significant(recorded)} ms.")
    for name, waited in found.core_waits.items():
        if waited < BUSY_RATIO:
            continue
        said.append(
            f"Over {name}, a rank was ready and had no core for {percent(waited)} of the replay: replay on a machine "
            "where each rank has a core for itself; this time holds the wait for one."
        )
    if not found.is_claim:
        said.append("Too few rounds to say which transport is quicker: allow more with --rounds and --budget.")
    table = Table("Replay", make_columns(heads, left=(0, 3)), tuple(rows)).without_empty_columns()
    return [*aligned(table, text_width()), "", *paragraphs([" ".join(said)], text_width())]


@click.command("import", short_help="Take over calls from the traces of another tool.")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", shell_complete=a_path("file"))
@click.option("--format", "form", type=Choice(_FORMATS_READ), required=True, help="Whose traces they are.")
@click.option("--out", metavar="FOLDER", required=True, help="Where profile.json goes.")
def take(paths: tuple[str, ...], form: str, out: str) -> int:
    """Make a profile of the communication in traces of torch.profiler (kineto), Chakra or PARAM, one file a rank."""
    from ipcbench.profile.exchange.traces import read_calls, unfit
    from ipcbench.profile.records import write_profile

    folder = out_folder(out, "")
    made = read_calls([Path(path) for path in paths], form)
    written = write_profile(folder, made)
    print_lines([f"{len(made.calls):,} calls of {len(made.ranks)} ranks: {written}"])
    if said := unfit(made.calls):
        tell(said)
    return 0


@click.command("export", short_help="Write a profile for another tool.")
@click.argument("path", metavar="FOLDER", shell_complete=a_path("dir"))
@click.option("--format", "form", type=Choice(_FORMATS_WRITTEN), required=True, help="For which tool.")
@click.option("--out", metavar="PATH", required=True, help="A file (perfetto, chrome), or a folder (chakra).")
def give(path: str, form: str, out: str) -> int:
    """Write a profile's timeline for Perfetto or Chrome, or its calls for Chakra."""
    from ipcbench.profile.exchange.traces import unfit, write_calls

    made = read(path)
    for written in write_calls(made, form, named(out)):
        tell(f"written: {written}")
    if said := unfit(made.calls):
        tell(said)
    return 0
