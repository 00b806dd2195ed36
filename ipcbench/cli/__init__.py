"""The command line: parse, validate, call, exit code.

It is the only part of the package that prints or exits; worker programs aside.

Exit codes: 0 done; 1 a check or a gate failed, or nothing could be measured; 2 bad input, explained in one line on
stderr; 3 a gate is inconclusive; 130 interrupted. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

import click

from ipcbench import __version__
from ipcbench.cli.options import Group, usage_words
from ipcbench.cli.output import tell
from ipcbench.errors import IntegrityError, IpcbenchError, TransportError, TrialError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INCONCLUSIVE = 3
EXIT_INTERRUPTED = 130

_NO_PROCESS = "no further process or thread may be started; raise the limit (`ulimit -u`), or take fewer readers"

_COMMANDS = {
    "run": "Measure a sweep and print the answer.",
    "list": "List backends: which are available, and what they can do.",
    "check": "Check a backend against the contract.",
    "analyze": "Print the tables of a stored run; write plots and a report.",
    "recommend": "Say which transport to use, and why.",
    "compare": "Compare two stored runs, or the variants of one, cell by cell.",
    "export": "Write a stored run for other tools.",
    "explain": "Say what a word of the tables means.",
    "doctor": "Show what on this machine disturbs figures, and what to do.",
    "trace": "Watch, explain and compare the calls of real applications.",
    "replay": "Replay recorded calls over any transport.",
    "diagnose": "Say which transport is in use, what it costs, and what would help.",
    "profile": "Say where a model's time goes, and what its ranks say to each other.",
    "hosts": "Work with more than one host; emulate some.",
    "selftest": "Measure how often the verdicts are right here.",
    "new-backend": "Write a package with a transport of your own.",
    "clean": "Remove what killed runs left behind.",
}
"""Name → summary: the list of commands is shown without importing any of them."""


class _Commands(Group):
    """The commands; each is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]  # importing the module `list` replaces the built-in name here

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"ipcbench.cli.{cmd_name.replace('-', '_')}").command
        command.short_help = _COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items()])


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="`ipcbench run` measures and answers; `ipcbench COMMAND --help` explains a command.",
)
@click.version_option(__version__, message="ipcbench %(version)s")
@click.pass_context
def _group(context: click.Context) -> None:
    """Measure transports between Python processes on this machine."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: the command line without the program's name; None takes this process's.
    """
    sys.path.append("")  # the current folder, so that `module:Class` is found there
    for number in (signal.SIGTERM, signal.SIGHUP):  # end a run as Ctrl-C does: it cleans up
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        _prepare_streams()
        code = _group.main(
            arguments,
            obj=tuple(sys.argv[1:] if arguments is None else arguments),
            prog_name="ipcbench",
            standalone_mode=False,
        )
        sys.stdout.flush()  # so that a full disk is an error here, not after the exit
    except (click.ClickException, KeyboardInterrupt, IpcbenchError, MemoryError, OSError, RuntimeError) as error:
        text, code = _explained(error)
        tell(f"ipcbench: error: {' '.join(text.split())}")
    return code if isinstance(code, int) else 0


def _explained(error: BaseException) -> tuple[str, int]:
    """Return what an error says in one line, and the exit code; raise it if it is a defect of ours."""
    text, code = str(error), EXIT_FAILED
    match error:
        case click.UsageError():
            text, code = usage_words(error), EXIT_BAD_INPUT
        case click.ClickException():
            text, code = error.format_message(), EXIT_BAD_INPUT
        case TransportError() | TrialError() | IntegrityError():
            pass
        case IpcbenchError():
            code = EXIT_BAD_INPUT
        case KeyboardInterrupt() | click.Abort():
            text, code = "interrupted", EXIT_INTERRUPTED
        case MemoryError():
            text = "out of memory; raise the limit (`ulimit -v`), or take smaller payloads"
        case OSError():
            text = _explained_refusal(error)
        case RuntimeError() if isinstance(error.__cause__, KeyboardInterrupt):  # as Python wraps it in `__set_name__`
            return _explained(error.__cause__)
        case RuntimeError() if str(error) == "can't start new thread":
            text = _NO_PROCESS
        case _:
            raise error
    return text, code


def _explained_refusal(error: OSError) -> str:
    """Return what the system refuses, and why."""
    from ipcbench.util.files import advice_on

    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return f"{error.strerror}; raise the limit (`ulimit -n`), or take fewer readers"
    if isinstance(error, BlockingIOError) and not hasattr(error, "characters_written"):  # of a fork, not of a pipe
        return _NO_PROCESS
    if error.filename is None and isinstance(error, FileNotFoundError):
        return "the current folder is gone; change to another one"
    if error.filename is None:  # standard output; what it still holds must not be tried again at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"standard output: {error.strerror}"
    return f"{error.filename}: {error.strerror}{advice_on(error)}"


def _prepare_streams() -> None:
    if sys.stdout is None:
        raise click.ClickException("standard output is closed; send it to a file, or to /dev/null")
    if sys.stderr is None:  # nobody wants to know; its number must not become that of a file of results
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show `µ` must not stop a command
