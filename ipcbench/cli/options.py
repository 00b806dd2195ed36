"""What commands have in common: a group that guesses misspelt names, shared options, completion in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ipcbench.errors import ConfigError, closest, did_you_mean

FunctionOrCommand = TypeVar("FunctionOrCommand", bound=Callable[..., Any] | click.Command)
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


DTYPES = ("float32", "bfloat16", "float16")
"""Of tensors; the first is the default."""

Choices = Iterable[str] | Callable[[], Iterable[str]]

_EXTRA = "Got unexpected extra argument"
"""How click's message about further arguments begins."""


class Group(click.Group):
    """A group of commands that answers an unknown name with the one that was probably meant; `help COMMAND` works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise ConfigError("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class Choice(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2
    """One of a few words; any other is answered with the one that was probably meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if param is not None and value not in self.choices:
            raise ConfigError(param.opts[0], value, self.choices)
        return super().convert(value, param, ctx)


def usage_words(error: click.UsageError) -> str:
    """Return in one line what is wrong with a command line, and what helps."""
    context = error.ctx
    if context is None:
        return error.format_message()
    params = context.command.get_params(context)
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        options = {name.lstrip("-"): name for param in params for name in (*param.opts, *param.secondary_opts)}
        meant = closest(error.option_name.lstrip("-"), options)
        text = f"unknown option {error.option_name!r}{did_you_mean(options[meant] if meant else None)}"
    elif text.startswith(_EXTRA) and any("--backends" in param.opts for param in params):
        text += "; several backends are joined by commas: shm,zmq"
    return f"{text}; see `{context.command_path} --help`"


def format_option(*formats: str) -> Callable[[FunctionOrCommand], FunctionOrCommand]:
    """Return the option `--format`; the first format is the default."""
    return click.option(
        "--format",
        "form",
        type=Choice(formats),
        default=formats[0],
        show_default=True,
        help="Format of the output.",
    )


def options(
    *added: Callable[[FunctionOrCommand], FunctionOrCommand],
) -> Callable[[FunctionOrCommand], FunctionOrCommand]:
    """Return options as one decorator, in this order."""

    def add(function: FunctionOrCommand) -> FunctionOrCommand:
        for option in reversed(added):
            function = option(function)
        return function

    return add


def whole(name: str, default: int, text: str) -> Callable[[FunctionOrCommand], FunctionOrCommand]:
    """Return an option that takes a whole number."""
    return click.option(name, type=int, default=default, show_default=True, metavar="N", help=text)


def one_word(name: str, words: Iterable[str], text: str) -> Callable[[FunctionOrCommand], FunctionOrCommand]:
    """Return an option that takes one of some words; the first is the default."""
    words = [*words]
    return click.option(name, type=Choice(words), default=words[0], show_default=True, help=text)


def duration(name: str, default: str, text: str) -> Callable[[FunctionOrCommand], FunctionOrCommand]:
    """Return an option that takes a time, as text."""
    return click.option(name, default=default, show_default=True, metavar="TIME", help=text)


def several(
    name: str, default: str, text: str, choices: Choices | None = None
) -> Callable[[FunctionOrCommand], FunctionOrCommand]:
    """Return an option that takes names joined by commas, by default those of backends."""
    complete = some_of(choices or backend_names)
    return click.option(name, default=default, show_default=True, metavar="NAME,…", help=text, shell_complete=complete)


def progress_options(function: FunctionOrCommand) -> FunctionOrCommand:
    """Add `--quiet` and `--no-progress`."""
    function = click.option(
        "--no-progress", "progress", is_flag=True, flag_value=False, default=True, help="Show no progress."
    )(function)
    return click.option(
        "-q", "--quiet", is_flag=True, help="Print the result and errors, nothing else; implies --no-progress."
    )(function)


def one_of(choices: Choices) -> Complete:
    """Return the completion of one name."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in _all(choices) if name.startswith(incomplete)]

    return complete


def some_of(choices: Choices) -> Complete:
    """Return the completion of the last of several names, as in `shm,zm`; those before it are not offered again."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        rest = (name for name in _all(choices) if name not in before.split(","))
        return [CompletionItem(f"{before}{comma}{name}") for name in rest if name.startswith(last)]

    return complete


def _all(choices: Choices) -> Iterable[str]:
    return choices() if callable(choices) else choices


def a_path(kind: str) -> Complete:
    """Return the completion of a path: of a `file`, or of a `dir`."""
    return lambda _, __, incomplete: [CompletionItem(incomplete, type=kind)]


def backend_names() -> Iterable[str]:
    """Return every registered backend, for completions."""
    from ipcbench.registry import names

    return names()
