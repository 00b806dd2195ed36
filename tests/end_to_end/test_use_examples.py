"""The examples of docs/use.md: each runs, ends by itself, leaves nothing, and is as short as the page says."""

from __future__ import annotations

import ast
import difflib
import json
import re
from pathlib import Path

import pytest

from tests.end_to_end.shell import ROOT, Shell

PAGE = (ROOT / "docs" / "use.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"
SAYS = {
    "camera": [r"reader 0: \d+ looks, the last image was 499", r"reader 1: \d+ looks, the last image was 499"],
    "model_server": [rf"client {number}: 1600 images, \[\d+(, \d+){{9}}\]" for number in range(4)],
    "work_queue": [r"60 of 60 tasks done; ranks 1 to 60"],
}
MOST_LINES = 60
NEWCOMERS_LINES = 10


def run(shell: Shell, path: Path, *arguments: str) -> str:
    done = shell.python(str(path), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_ends(shell: Shell, name: str) -> None:
    path = EXAMPLES / "use" / f"{name}.py"
    lines = sorted(run(shell, path).splitlines())
    assert len(lines) == len(SAYS[name])
    for line, expected in zip(lines, SAYS[name], strict=True):
        assert re.fullmatch(expected, line)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert f"(../examples/use/{name}.py)" in PAGE


def test_each_example_is_run() -> None:
    assert {path.stem for path in (EXAMPLES / "use").glob("*.py")} == set(SAYS)


def test_the_tensor_service_over_zmq_and_over_rpc_does_the_same(shell: Shell) -> None:
    folder = EXAMPLES / "tensor_service"
    results = [json.loads(run(shell, folder / f"{name}_service.py", "--calls", "40")) for name in ("zmq", "rpc")]
    assert results[0] == results[1]
    assert results[0]["calls"] == 40


def test_from_zmq_to_rpc_are_20_lines() -> None:
    texts = [
        (EXAMPLES / "tensor_service" / f"{name}_service.py").read_text(encoding="utf-8") for name in ("zmq", "rpc")
    ]
    blocks = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    shown = [line for block in blocks for line in block.splitlines()]
    assert all(line[1:] in texts[line[0] == "+"].splitlines() for line in shown)
    assert len(shown) > 10
    changes = [line[:2] for line in difflib.ndiff(*(text.splitlines() for text in texts))]
    gone, new = changes.count("- "), changes.count("+ ")
    assert max(gone, new) <= 20
    assert f"{gone} lines go, {new} come" in PAGE


def test_a_newcomer_writes_ten_lines() -> None:
    """Both sides of a request and reply with arrays, as the page shows them: all lines that are not empty."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.partition("## In ten lines")[2], re.DOTALL)[:2]
    assert all(ast.parse(block) for block in blocks)
    count = sum(bool(line.strip()) for block in blocks for line in block.splitlines())
    assert count <= NEWCOMERS_LINES
    assert f"{count} lines on both sides together" in PAGE


def test_the_ten_lines_work(shell: Shell) -> None:
    server, client = re.findall(r"```python\n(.*?)```", PAGE.partition("## In ten lines")[2], re.DOTALL)[:2]
    name = f"t{id(shell)}"
    serving = shell.start_python("-c", server.replace('"gpu"', repr(name)))
    done = shell.python("-c", client.replace('"gpu"', repr(name)) + "print(product.tolist())")
    assert (done.returncode, done.stdout) == (0, "[[3.0, 3.0], [3.0, 3.0]]\n"), done.stderr
    serving.send_signal(2)
    assert serving.wait(60) == 0
