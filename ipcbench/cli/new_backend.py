"""`ipcbench new-backend`: a package with a transport of its own, which passes `ipcbench check` as it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

import click

from ipcbench.errors import ConfigError
from ipcbench.util.shell import shell_command

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_INSTALLER = "pip" if find_spec("pip") else "uv pip"
"""An environment that uv made has no pip of its own; another one's would install elsewhere."""


def package_files(name: str, *, sockets: bool) -> dict[str, str]:
    """Return file name → text of the package for a transport `name`."""
    module = f"ipcbench_{name.replace('-', '_')}"
    words = {
        "name": name,
        "package": f"ipcbench-{name}",
        "module": module,
        "Class": "".join(part.capitalize() for part in name.split("-")),
    }
    templates = {
        "README.md": "README.md.txt",
        "pyproject.toml": "pyproject.toml.txt",
        f"{module}.py": "socket.py.txt" if sockets else "kit.py.txt",
        f"test_{module}.py": "test.py.txt",
    }
    home = files("ipcbench.cli").joinpath("assets", "new_backend")
    return {
        file: Template(home.joinpath(template).read_text(encoding="utf-8")).substitute(words)
        for file, template in templates.items()
    }


def _checked(name: str) -> str:
    from ipcbench.registry import names

    if not _NAME.fullmatch(name):
        raise ConfigError("NAME", name, "small letters, digits and single dashes, beginning with a letter: my-queue")
    if name in names():
        raise ConfigError("NAME", name, "a name that no backend has yet (`ipcbench list`)")
    return name


def _class_of(texts: Mapping[str, str]) -> str:
    """Return `module:Class`, as the entry point has it."""
    (point,) = tomllib.loads(texts["pyproject.toml"])["project"]["entry-points"]["ipcbench.backends"].values()
    return str(point)


@click.command("new-backend")
@click.argument("name", metavar="NAME")
@click.option("--socket", "sockets", is_flag=True, help="Start from sockets; without it, from files in shared use.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder to write; must not exist.  [default: ipcbench-NAME]"
)
def command(name: str, sockets: bool, out: Path | None) -> None:
    """Write a package with a backend NAME that obeys the contract already; then put your transport in its place."""
    folder = out or Path(f"ipcbench-{_checked(name)}")
    texts = package_files(_checked(name), sockets=sockets)
    if folder.exists():
        raise ConfigError("--out", str(folder), "a folder that does not exist yet")
    folder.mkdir(parents=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    click.echo(
        f"{folder}: {', '.join(texts)}\n\n"
        f"check it:    {shell_command('cd', folder)} && ipcbench check {_class_of(texts)} --quick\n"
        f"register it: {_INSTALLER} {shell_command('install', '-e', folder)}, then ipcbench run --backends {name},shm"
    )
