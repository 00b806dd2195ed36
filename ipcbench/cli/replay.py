"""`ipcbench replay`: how long recorded calls would take over other transports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipcbench.cli import EXIT_FAILED
from ipcbench.cli.options import (
    a_path,
    backend_names,
    duration,
    format_option,
    one_of,
    one_word,
    progress_options,
    several,
    whole,
)
from ipcbench.cli.output import FORMATS, make_folder, tell, trace_paths, write_file

if TYPE_CHECKING:
    from ipcbench.replay.outcome import ReplayOutcome

_BACKENDS = "zmq,zmq-tcp,shm,pipe"


@click.command(
    "replay",
    help="""Replay the calls of TRACE between real processes over each backend, and predict the end-to-end time there.

    TRACE is a trace folder or a zmq_performance.log. Each client's calls keep their order, their sizes, and the work
    before, inside and between them; the server does the recorded work. Requests and replies are real.

    Exit codes: 0 done; 1 a backend failed; 2 bad input, or nothing to replay.""",
)
@click.argument("trace", metavar="TRACE", shell_complete=a_path("file"))
@several("--backends", _BACKENDS, "Backends to replay over.")
@click.option(
    "--recorded-over",
    default="",
    show_default="none",
    shell_complete=one_of(backend_names),
    metavar="NAME",
    help="Backend that the trace was recorded over; gains are then relative to a replay over it.",
)
@one_word("--think", ("recorded", "none"), "Whether the server does its recorded work.")
@whole("--rounds", 5, "Replays over each backend.")
@duration("--budget", "60s", "Time limit; no round starts that would exceed it.")
@click.option(
    "--calls",
    type=int,
    default=None,
    metavar="N",
    help="Replay only the first N calls of each client; by default as many as the budget allows.",
)
@whole("--seed", 1, "Seed of the order in each round.")
@format_option(*FORMATS)
@progress_options
@click.option("--out", default=None, metavar="FOLDER", help="Also write replay.md, .json and .csv into this folder.")
def command(
    trace: str,
    backends: str,
    recorded_over: str,
    think: str,
    rounds: int,
    budget: str,
    calls: int | None,
    seed: int,
    form: str,
    progress: bool,
    quiet: bool,
    out: str | None,
) -> int:
    """Read, replay, conclude, print."""
    from ipcbench.replay import render
    from ipcbench.replay.clients import read_traffic
    from ipcbench.replay.outcome import conclude
    from ipcbench.replay.run import Request, replay
    from ipcbench.util.units import parse_duration_s

    request = Request(
        backends=tuple(dict.fromkeys(name.strip() for name in backends.split(",") if name.strip())),
        rounds=rounds,
        budget_s=parse_duration_s(budget, "--budget"),
        calls_count=calls,
        think=think == "recorded",
        source=recorded_over,
        seed=seed,
    )
    (path,) = trace_paths(trace)
    folder = None if out is None else Path(out)
    listener = tell if progress and not quiet else (lambda _: None)
    with _folder_for(folder):
        outcome = conclude(replay(read_traffic(path), request, listener))
    if folder is not None:
        _write_files(outcome, folder)
    sys.stdout.write(render.FORMS[form](outcome))
    sys.stdout.flush()  # report a closed pipe here, not after the exit
    return EXIT_FAILED if any(backend.failure for backend in outcome.backends) or outcome.failed else 0


@contextmanager
def _folder_for(folder: Path | None) -> Iterator[None]:
    """Make the folder of the files before the replay, which would otherwise be wasted; if that fails, unmake it."""
    new = [] if folder is None else [each for each in (folder, *folder.parents) if not os.path.exists(each)]
    if folder is not None:
        make_folder(folder)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # somebody else has put something there
            for each in new:
                each.rmdir()
        raise


def _write_files(outcome: ReplayOutcome, folder: Path) -> None:
    from ipcbench.replay import render

    for name, form in (("replay.md", "markdown"), ("replay.json", "json"), ("replay.csv", "csv")):
        write_file(folder / name, render.FORMS[form](outcome).encode())
