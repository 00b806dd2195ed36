"""README.md and docs/choose.md: tables and answers are what the commands print; commands exist; the code runs."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import click
import pytest

from ipcbench.analysis.report.tables import tables
from ipcbench.cli.output import read_run, write_tables
from ipcbench.cli.recommend import command as recommend_command
from ipcbench.registry import get_backend, names
from ipcbench.results.store import load_run
from ipcbench.sweeps.load import load_sweep
from tests.docs_blocks import PAGES, ROOT, blocks, output_of
from tests.docs_images import IMAGES, REFERENCE, table_svg

PAGE = ROOT / "docs" / "choose.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "shown"),
    [block for page in PAGES for block in blocks(page)],
    ids=lambda value: value[:30].replace("\n", " "),
)
def test_blocks_are_what_the_command_prints(source: str, shown: str) -> None:
    assert shown == output_of(source), "python -m tests.docs_blocks rewrites it"


def test_files_of_the_reference_run_are_what_analyze_writes(tmp_path: Path) -> None:
    folder = ROOT / "results" / "reference"
    write_tables(read_run(folder)[1], tmp_path)
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == (folder / "tables.md").read_text(encoding="utf-8")
    written, stored = (_cells(path / "summary.csv") for path in (tmp_path, folder))
    assert written == [[_about(cell) for cell in row] for row in stored]


def _cells(path: Path) -> list[list[str | float]]:
    def parsed(cell: str) -> str | float:
        try:
            return float(cell)
        except ValueError:
            return cell

    with path.open(encoding="utf-8", newline="") as file:
        return [[parsed(cell) for cell in row] for row in csv.reader(file)]


def _about(cell: str | float) -> object:
    """Return what equals a value up to the last digits, which depend on the processor where logarithms are taken."""
    return cell if isinstance(cell, str) else pytest.approx(cell, rel=1e-9)


def test_the_table_has_every_backend_that_runs_between_processes() -> None:
    table = next(shown for command, shown in blocks(PAGE) if command.startswith("ipcbench list"))
    rows = re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)
    can = {name: get_backend(name).capabilities for name in names()}
    assert rows == [name for name in names() if can[name].launcher != "inline" and can[name].private]


def test_commands_can_be_given_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.npy").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    ipcbench (.+)$", TEXT, flags=re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        name, *words = (word for word in shlex.split(line) if word != "--insecure")
        if name == "run":
            load_sweep(
                "default", {key.removeprefix("--"): value for key, value in zip(words[::2], words[1::2], strict=True)}
            )
        elif name == "recommend":
            recommend_command.make_context("recommend", words)
        else:
            assert (name, words) == ("analyze", ["results/reference"])


def test_needs_are_columns_of_the_table() -> None:
    needs = [
        option for option in recommend_command.params if isinstance(option, click.Option) and option.name == "needs"
    ]
    assert needs
    assert "no-deps | persistent | cross-host | zero-copy" in TEXT


def test_the_picture_of_the_table_is_that_of_the_reference_run() -> None:
    picture = table_svg(tables(load_run(REFERENCE)))
    assert picture == (IMAGES / "table.svg").read_text(encoding="utf-8"), "python -m tests.docs_images rewrites it"
    assert "url(&quot;http" not in picture
    assert 'url("http' not in picture


def test_the_code_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
    exec(compile(code, str(PAGE), "exec"), {})
    assert "577,129 B to 3 readers, lossless" in capsys.readouterr().out
