"""`ipcbench trace top` and `ipcbench trace tail`: a trace while it is being recorded."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ipcbench.cli.options import Choice, a_path
from ipcbench.cli.output import tell, trace_paths
from ipcbench.errors import StoreError
from ipcbench.util.shell import shell_command

if TYPE_CHECKING:
    from types import FrameType

    from ipcbench.trace.live.lines import Lines
    from ipcbench.trace.live.meter import Meter
    from ipcbench.trace.live.watch import Watch
    from ipcbench.trace.readers.everything import Source

_LOOKS_PER_S = 10
_POLL_S = 0.1
_WINDOW_S = 2.0


@click.command(
    "top",
    short_help="Watch a traced application: rates, percentiles, stages.",
    help="""Watch the application that records into DIR. For each method, show calls/s, p50, p99, MiB/s and where the
    time goes over the last two seconds, ten times a second. "In flight" is the mean number of calls under way.

    Ctrl-C ends it. When its output is a pipe, or with --once, it prints one table after one interval.""",
)
@click.argument("folder", metavar="DIR", shell_complete=a_path("file"))
@click.option("--once", is_flag=True, help="Print one table after one interval, and exit.")
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Interval of --once.")
def top(folder: str, once: bool, interval: str) -> None:
    """Watch until Ctrl-C."""
    from ipcbench.trace.live.meter import Meter
    from ipcbench.util.units import parse_duration_s

    watch = _watch(folder)
    interval_s = parse_duration_s(interval, "--interval")
    if once or not sys.stdout.isatty():
        if not watch.folder.exists():
            raise StoreError(f"{folder}: there is no such folder; on a terminal, `ipcbench trace top` waits for it")
        _print_once(Meter(watch, 2 * interval_s), watch, interval_s)
        return
    with _until_interrupted() as stop:
        _show(Meter(watch, _WINDOW_S), watch, stop)


class _Interrupt:
    """A flag that Ctrl-C sets. A `threading.Event` is unsuitable: the interrupted thread may hold its lock."""

    def __init__(self) -> None:
        self.is_set = False
        self._told, self._tell = os.pipe()

    def set(self) -> None:
        """Set the flag; safe in signal handlers."""
        self.is_set = True
        os.write(self._tell, b"!")

    def wait(self, timeout_s: float) -> None:
        """Sleep until the flag is set, at most `timeout_s`."""
        select.select([self._told], [], [], max(0.0, timeout_s))

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._told)
        os.close(self._tell)


@contextmanager
def _until_interrupted() -> Iterator[_Interrupt]:
    """Yield a flag that Ctrl-C sets, so that no line is cut in two; a second Ctrl-C interrupts at once."""
    stop = _Interrupt()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
        stop.close()


def _watch(name: str) -> Watch:
    from ipcbench.trace.live.watch import Watch
    from ipcbench.trace.readers.everything import find

    (folder,) = trace_paths(name)
    report = shell_command("ipcbench", "trace", "report", folder)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: a file, not the folder of a trace; `{report}` reads a log")
    if folder.is_dir() and (source := find([folder])).logs and not (source.segments or source.histograms):
        raise StoreError(f"{folder}: a folder of logs, not of a trace; `{report}` reads them")
    return Watch(folder)


def _print_once(meter: Meter, watch: Watch, interval_s: float) -> None:
    from rich.console import Console

    from ipcbench.trace.live.screen import draw

    meter.look(time.monotonic())
    select.select([], [], [], interval_s)
    now_s = time.monotonic()
    meter.look(now_s)
    console = Console(highlight=False, file=sys.stdout)
    console.print(draw(meter.reading(now_s), str(watch.folder), console.width, list(watch.problems.values())))
    sys.stdout.flush()  # report a closed pipe here, not after the exit


def _show(meter: Meter, watch: Watch, stop: _Interrupt) -> None:
    from rich.console import Console
    from rich.live import Live

    from ipcbench.trace.live.screen import draw

    console = Console(highlight=False)
    now_s = time.monotonic()
    meter.look(now_s)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        due_s = now_s
        while not stop.is_set:
            reading = meter.reading(time.monotonic())
            room = max(1, console.size.height - 6)
            problems = list(watch.problems.values())
            live.update(draw(reading, str(watch.folder), console.width, problems, room), refresh=True)
            due_s = max(due_s + 1 / _LOOKS_PER_S, time.monotonic())
            stop.wait(due_s - time.monotonic())
            meter.look(time.monotonic())


@click.command(
    "tail",
    short_help="Print recorded calls as lines, also in the older log formats.",
    help="""Print the recorded calls in PATH, in the order in which they ended: as JSON, as rows of zmq_performance.log
    (calls with the stages serialize, send, wait, deserialize), or as [TQ-…] lines (get, compute, put). Programs that
    read such logs can read these.

    Rows of zmq_performance.log end with its summary. At the end, stderr counts the calls that the format cannot
    express.""",
)
@click.argument("path", metavar="PATH", shell_complete=a_path("file"))
@click.option("-f", "--follow", is_flag=True, help="Continue with new calls until Ctrl-C; PATH must be a folder.")
@click.option("--format", "form", type=Choice(["zmq", "tq", "jsonl"]), default="jsonl", show_default=True,
              help="Format of the lines.")  # fmt: skip
def tail(path: str, follow: bool, form: str) -> None:
    """Print recorded calls, and with --follow new ones."""
    from ipcbench.trace.live.lines import FORMATS
    from ipcbench.trace.readers.everything import find

    lines = FORMATS[form]()
    with _until_interrupted() as stop:
        if follow:
            _follow(_watch(path), lines, stop)
        else:
            _print_all(find(trace_paths(path)), lines, stop)
    sys.stdout.writelines(f"{line}\n" for line in lines.end())
    if lines.unsized_count:
        tell(f"the bytes of {lines.unsized_count:,} calls are unknown; this format prints them as 0")
    if lines.left_out_count:
        other = "" if form == "jsonl" else "; --format jsonl has them"
        tell(f"left out: {lines.left_out_count:,} calls of other stages{other}")
    sys.stdout.flush()  # report a closed pipe here, not after the exit


def _print_all(source: Source, lines: Lines, stop: _Interrupt) -> None:
    """Print the recorded calls.

    Raises:
        KeyboardInterrupt: they are not all printed.
        StoreError: there are none.
    """
    from ipcbench.trace.report.gather import no_calls

    is_empty = True
    for row in source.in_order():
        if stop.is_set:
            raise KeyboardInterrupt
        is_empty = False
        sys.stdout.writelines(f"{line}\n" for line in lines.call(row))
    if is_empty and not source.without_record_count():
        raise no_calls(source.paths, source.notes)
    if source.notes.damaged_count:
        tell(f"warning: {source.notes.damaged_count:,} damaged: {source.notes.examples[0]}")


def _follow(watch: Watch, lines: Lines, stop: _Interrupt) -> None:
    """Print new calls, until interrupted."""
    from ipcbench.trace.readers.calls import rows_of

    reported: set[str] = set()
    while not stop.is_set:
        rows = [row for calls in watch.new_calls() for row in rows_of(calls)]
        rows.sort(key=lambda row: row.end_ns + (row.process.unix_ns or 0))
        for row in rows:
            sys.stdout.writelines(f"{line}\n" for line in lines.call(row))
        sys.stdout.flush()
        for name in watch.problems.keys() - reported:
            reported.add(name)
            tell(f"warning: {watch.problems[name]}")
        stop.wait(_POLL_S)
