"""Odd command lines, damaged runs and damaged sweep files: a result or one clear line, never a traceback, never a hang.

Each is made from a number; a failure names it.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import string
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.cli import _COMMANDS, _Commands, main
from tests.selection import one_in
from tests.unit.builders import CELLS, make_run

pytestmark = [pytest.mark.usefixtures("process_state"), pytest.mark.timeout(100)]

BATCH = 25
"""So many numbers are one test."""
FIRSTS = range(0, 2000, BATCH)
LIMIT_S = 10
ODD = (
    "", " ", "-", "--", "-1", "0", "1", "2", "1e9", "1e400", "-0.0", "nan", "inf", "0x10", "1_000", "½", "\u0661",
    "1,2,3", ",", "1,,2", "a=b", "=", "a=", "é\u0301", "\udcff", "\n", "\x1b[2J", "%s", "{0}", "$(id)", "../..", "/",
    "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "shm", "shm,shm", "nope", "nope:Nope", "os:system",
    "ipcbench.backends.shm.backend:Shm", "default", "10KiB", "999GiB", "1ns", "1h", "5%", "-5%", "9" * 400, "x" * 5000,
    "[", "\\", "run", "run/run.json", "broken.toml", "empty",
)  # fmt: skip
NEVER = ("--backends", "nope:Nope")
"""What makes a `run` or a `selftest` end before it measures."""
EXIT_CODES = {0, 1, 2, 3}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a run, a sweep that is none, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", {key: cell for key, cell in CELLS.items() if key[1] == 10}, rounds=2)
    (tmp_path / "broken.toml").write_text("sizes = [", encoding="utf-8")
    (tmp_path / "empty").mkdir()

    def execute(program: str, *_: object) -> None:  # in the place of this process
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)

    monkeypatch.setattr(os, "execvpe", execute)
    yield tmp_path
    with suppress(ImportError):  # or the fonts of odd letters stay open
        from matplotlib.font_manager import _get_font

        _get_font.cache_clear()


def commands() -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command and command below a command, by its words."""
    found = []
    context = click.Context(_Commands())
    for name in _COMMANDS:
        command = _Commands().get_command(context, name)
        assert command is not None
        below = command.commands if isinstance(command, click.Group) else {}
        found += [((name, word), each) for word, each in below.items()] or [((name,), command)]
    return found


def odd_line(source: random.Random, known: list[tuple[tuple[str, ...], click.Command]]) -> list[str]:
    words, command = source.choice(known)
    line = [*words]
    for parameter in source.sample(command.params, source.randrange(min(6, len(command.params) + 1))):
        if isinstance(parameter, click.Option):
            line.append(source.choice(parameter.opts))
            if not parameter.is_flag:
                line.append(source.choice(ODD))
        else:
            line.append(source.choice(ODD))
    line += [source.choice(ODD) for _ in range(source.randrange(3))]
    if words[0] in {"run", "selftest", "check", "replay"} or words[-1] in {"tail", "top", "serve-metrics"}:
        line += NEVER if words[0] in {"run", "selftest"} else ["--no-such-option"]
    return line


def said_by(line: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of a command line, and what it wrote to stderr."""
    try:
        code = main(line)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    return code, capfd.readouterr().err


@pytest.mark.parametrize("first", one_in(20, FIRSTS))
def test_odd_command_lines_are_answered_or_refused_in_a_line(
    first: int, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    known = commands()
    for number in range(first, first + BATCH):
        line = odd_line(random.Random(number), known)
        code, said = said_by(line, capfd)
        assert code in EXIT_CODES, (number, line)
        assert "Traceback" not in said, (number, line)
        if code == 2:
            assert said.splitlines()[-1].startswith("ipcbench: error: "), (number, line, said)


Damage = Callable[[random.Random, bytes], bytes]


def flip(source: random.Random, data: bytes) -> bytes:
    place = source.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << source.randrange(8)]) + data[place + 1 :]


def cut(source: random.Random, data: bytes) -> bytes:
    return data[: source.randrange(len(data))]


def repeat(source: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: source.randrange(len(lines) + 1)] + lines)


def junk(source: random.Random, data: bytes) -> bytes:
    place = source.randrange(len(data))
    return data[:place] + source.randbytes(source.randrange(1, 40)) + data[place:]


def numbers(source: random.Random, data: bytes) -> bytes:
    """Replace one number."""
    places = [place for place, byte in enumerate(data) if byte in string.digits.encode()]
    if not places:
        return junk(source, data)
    begin = end = source.choice(places)
    while end < len(data) and data[end : end + 1] in b"0123456789.e+-":
        end += 1
    return data[:begin] + source.choice((b"-1", b"0", b"1e308", b"9" * 30, b"null", b'"1"', b"[]", b"1.5")) + data[end:]


DAMAGES: tuple[Damage, ...] = (flip, cut, repeat, junk, numbers, numbers, numbers)


def readings(path: str) -> Iterator[list[str]]:
    yield from (["analyze", path, "--format", form] for form in ("text", "json", "csv", "markdown"))
    yield ["recommend", path, "--size", "100", "--readers", "3"]
    yield ["compare", path, "run"]
    yield from (["export", path, "--to", name] for name in EXPORTERS)


@pytest.mark.parametrize("first", one_in(80, FIRSTS))
def test_a_damaged_run_is_read_or_refused_in_a_line(
    first: int, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(first, first + BATCH):
        source, spoilt = random.Random(number), folder / f"run-{number}"
        shutil.copytree(folder / "run", spoilt)
        path = source.choice([path for path in sorted(spoilt.rglob("*")) if path.is_file()])
        if source.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(source.choice(DAMAGES)(source, path.read_bytes()))
        line = source.choice(list(readings(spoilt.name)))
        code, said = said_by(line, capfd)
        assert code in EXIT_CODES, (number, line, path.name)
        assert "Traceback" not in said, (number, line, path.name)


SWEEP = b"""name = "mine"
backends = ["shm", "zmq"]
readers = 3
sizes = [10, 1000]
payload = "dict"
codec = "pickle"
modes = ["paced", "saturate"]
rounds = 5
window_s = 0.4
rate_per_s = 100.0
"""


@pytest.mark.parametrize("first", one_in(20, FIRSTS))
def test_a_damaged_sweep_file_is_read_or_refused_in_a_line(
    first: int, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(first, first + BATCH):
        source = random.Random(number)
        data = SWEEP
        for _ in range(source.randrange(1, 4)):
            data = source.choice(DAMAGES)(source, data) or b"\n"
        Path("spoilt.toml").write_bytes(data)
        code, said = said_by(["run", "spoilt.toml", *NEVER], capfd)
        assert code == 2, (number, said)
        assert said.startswith("ipcbench: error: "), (number, said)
        assert said.count("\n") == 1, (number, said)


def test_the_damages_do_damage() -> None:
    data = json.dumps({"a": [1, 2.5]}).encode() + b"\n"
    assert all(any(damage(random.Random(seed), data) != data for seed in range(5)) for damage in DAMAGES)
