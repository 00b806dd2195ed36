"""`ipcbench explain`: what a word of the tables means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

import click

from ipcbench.cli.options import backend_names, one_of
from ipcbench.cli.output import text_width
from ipcbench.errors import ConfigError, closest, did_you_mean

_ROW = re.compile(r"\| \*\*(?P<words>[^|]+?)\*\* \| (?P<meaning>.+) \|")
_WORD = re.compile(r"`[^`]+`|[^`/]+(?:/(?! )[^`/]+)*")
"""Words stand between slashes with spaces; between backticks, such a slash is part of the word."""
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


def glossary() -> str:
    """Return the glossary of the docs, as Markdown."""
    return files("ipcbench.cli").joinpath("assets", "glossary.md").read_text(encoding="utf-8")


def meanings() -> Mapping[str, str]:
    """Return word → what it means, after the words that are defined together with it: the words of the glossary, and
    those of the tables' heads.
    """
    from ipcbench.analysis.report.tables import LEGEND

    found: dict[str, str] = {}
    for row in _ROW.finditer(glossary()):
        meaning = _LINK.sub(r"\1", row["meaning"]).replace("**", "").replace("`", "")
        words = [word for each in _WORD.findall(row["words"]) if (word := each.strip("` "))]
        found |= dict.fromkeys(words, f"{' / '.join(words)}: {meaning}")
    for text in LEGEND.values():
        found |= dict.fromkeys(text.partition(": ")[0].split(", "), text)
    return found


def _words() -> list[str]:
    return sorted(meanings())


@click.command("explain")
@click.argument("word", required=False, nargs=-1, metavar="[WORD]", shell_complete=one_of(_words))
def command(word: tuple[str, ...]) -> None:
    """Say what WORD means, a word of the tables or of the docs; without it, list all words."""
    from ipcbench.render.text import wrapped

    known = meanings()
    if not word:
        click.echo("\n".join(wrapped(", ".join(sorted(known, key=str.lower)), text_width(), indent="")))
        return
    asked = " ".join(word)
    by_lower = {name.lower(): name for name in known}
    name = by_lower.get(asked.lower()) or by_lower.get(asked.lower().rstrip("s"))
    if name is None and asked in backend_names():
        click.echo(f"{asked}: a backend; `ipcbench list {asked}` describes it")
        return
    if name is None:
        meant = did_you_mean(closest(asked, known))
        raise ConfigError("WORD", asked, f"a word that `ipcbench explain` lists{meant}")
    click.echo("\n".join(wrapped(known[name], text_width())))
