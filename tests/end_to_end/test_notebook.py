"""The notebook of examples/ runs from top to bottom, and is stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.shell import ROOT, Shell

NOTEBOOK = ROOT / "examples" / "notebook" / "choose.ipynb"


def test_it_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


EXECUTE = f"""
import sys, nbclient, nbformat
notebook = nbformat.read({str(NOTEBOOK)!r}, as_version=4)
nbclient.NotebookClient(notebook, timeout=90, resources={{"metadata": {{"path": sys.argv[1]}}}}).execute()
nbformat.write(notebook, "executed.ipynb")
"""
"""In a process of its own, since the client leaves its event loop open."""


@pytest.mark.parametrize("folder", [ROOT, NOTEBOOK.parent], ids=["project", "its own"])
def test_it_runs_and_shows_tables_a_plot_the_choice_and_what_was_read(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(shell.folder / name))
    done = shell.python("-c", EXECUTE, str(folder))
    assert done.returncode == 0, done.stderr
    cells = json.loads((shell.folder / "executed.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    pages = " ".join("".join(data.get("text/html", "")) for data in shown)
    assert pages.count("<table") >= 3
    assert "To measure it, as bytes of that size" in pages
    assert any("image/png" in data for data in shown), "the plot is missing"
    assert "[b'hello', b'hello', b'hello']" in "".join(shown[-1]["text/plain"])
