"""`ipcbench trace run`: a program, unmodified, whose calls are recorded."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from ipcbench.cli.options import a_path
from ipcbench.errors import ConfigError, StoreError


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a program, unmodified, and record its messages.",
    help="""Run COMMAND, such as `python app.py` or `jupyter console`, and record the messages of the libraries that it
    and its Python children import: pyzmq (blocking, asyncio, gevent), multiprocessing, redis, grpc, requests, httpx.

    The program takes this one's place: exit code, signals, stdin and stdout are its own. `ipcbench trace report DIR`
    says what was recorded, and which programs could not be seen: those that are not Python, and Python with -I, -E
    or -S.""",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.option("--out", default="trace", show_default=True, metavar="DIR", shell_complete=a_path("file"),
              help="Folder of the trace; others may be recorded there already.")  # fmt: skip
@click.option("--only", multiple=True, metavar="METHOD", help="Record only such calls; a pattern; may be repeated.")
@click.option("--exclude", multiple=True, metavar="METHOD", help="Do not record such calls; may be repeated.")
@click.option("--instrument", "names", multiple=True, metavar="MODULE", help="Record only this library; repeatable.")
@click.option("--sample", metavar="N", help="Record one in N calls, and time the others.")
@click.option("--budget", metavar="SHARE", help="Let tracing cost at most this share of time, such as 0.01.")
@click.option("--max-bytes", metavar="SIZE", help="Size at which the folder takes no more records, such as 1GiB.")
@click.option("--service", metavar="NAME", help="Name of all processes in reports; by default each has its script's.")
@click.option("--summary", is_flag=True, help="Print a summary of each process on stderr at its end.")
def run(
    command: tuple[str, ...], out: str, only: tuple[str, ...], exclude: tuple[str, ...], names: tuple[str, ...],
    sample: str | None, budget: str | None, max_bytes: str | None, service: str | None, summary: bool,
) -> None:  # fmt: skip
    """Become the program."""
    from ipcbench.trace.adapters.instruments import targets
    from ipcbench.trace.hook.begin import note_run
    from ipcbench.trace.hook.launch import environment_of
    from ipcbench.trace.record.recorder import checked

    options = {"sample": sample, "budget": budget, "max_bytes": max_bytes, "service": service,
               "only": "|".join(only), "exclude": "|".join(exclude)}  # fmt: skip
    given = {name: value for name, value in options.items() if value}
    for name, value in given.items():
        if "," in value or "\n" in value:
            raise ConfigError(f"--{name.replace('_', '-')}", value, "text without a comma or a line's end")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: a file, not a folder; name another with --out")
    if "," in str(folder.absolute()):
        raise ConfigError("--out", out, "a path without a comma")
    checked(given)
    environment = environment_of(folder, {**given, **({"summary": ""} if summary else {})}, targets(names), os.environ)
    if shutil.which(command[0]) is not None:
        problem = note_run(str(folder.absolute()), command)
        if problem:
            click.echo(f"ipcbench trace run: nothing can be recorded in {folder}: {problem}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 # the user's own command
    except OSError as error:
        raise StoreError(f"{command[0]}: {error.strerror}; name a program, such as `python app.py`") from error
