"""Hostile folders of results: every command answers with a clear error or safe text, never a traceback."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.cli import main
from tests.end_to_end.shell import Shell
from tests.unit.builders import Cell, make_run, sweep_of

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\r\n{{ 7*7 }}|`x`"
Spoil = Callable[[Path], None]
pytestmark = pytest.mark.usefixtures("process_state")


def info(path: Path, **changes: Any) -> None:
    values = json.loads((path / "run.json").read_text(encoding="utf-8"))
    (path / "run.json").write_text(json.dumps({**values, **changes}), encoding="utf-8")


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Store what `change` makes of all trials."""
    lines = [json.loads(line) for line in (path / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    text = "".join(f"{json.dumps(line)}\n" for line in change(lines))
    (path / "trials.jsonl").write_text(text, encoding="utf-8")


def trials(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Return a function that changes each trial."""
    return lambda path: rewrite(path, lambda lines: [line for line in lines if change(line) or True])


def replaced(old: str, new: str, name: str = "trials.jsonl") -> Spoil:
    """Return a function that replaces every match of `old` in the file."""

    def spoil(path: Path) -> None:
        text = (path / name).read_text(encoding="utf-8")
        assert re.search(old, text), f"{old} is not in {name}"
        (path / name).write_text(re.sub(old, lambda _: new, text), encoding="utf-8")

    return spoil


def cut(name: str, keep: float) -> Spoil:
    def spoil(path: Path) -> None:
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: int(keep * len(data))])

    return spoil


def linked_out(name: str) -> Spoil:
    def spoil(path: Path) -> None:
        outside = path.parent / f"outside-{Path(name).name}"
        (path / name).rename(outside)
        (path / name).symlink_to(outside)

    return spoil


def linked_to_itself(path: Path) -> None:
    (path / "trials.jsonl").unlink()
    (path / "trials.jsonl").symlink_to("trials.jsonl")


def spec(**changes: Any) -> Spoil:
    return trials(lambda line: line["spec"].update(changes))


def of_a(**changes: Any) -> Spoil:
    """Return a function that changes the specification of the trials of backend `a` only."""
    return trials(lambda line: line["spec"].update(changes if line["spec"]["backend"] == "a" else {}))


def endpoints(**changes: Any) -> Spoil:
    return trials(lambda line: [endpoint.update(changes) for endpoint in line["endpoints"]])


def again(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same trials under new numbers: every round exists twice."""
    return [*lines, *({**line, "trial_id": len(lines) + line["trial_id"], "has_samples": False} for line in lines)]


def many_sizes(path: Path) -> None:
    sizes = [{"size": 10**9 + n, "payload_bytes": 10**9 + n, "encode_ns": 1.0} for n in range(20_000)]
    info(path, payloads=sizes)


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"in": [value]}
    return value


def evil_everywhere(path: Path) -> None:
    values = json.loads((path / "run.json").read_text(encoding="utf-8"))
    machine = {**values["machine"], "cpu_model": EVIL, EVIL: EVIL}
    sweep = {**values["sweep"], "backends": [EVIL, "b"], "name": EVIL}
    changes = {"machine": machine, "versions": {EVIL: EVIL}, "skipped": {f"{EVIL}2": EVIL}, "sweep": sweep}
    info(path, run_id=EVIL, command=["ipcbench", EVIL], **changes)
    number = iter(range(10**6))

    def change(line: dict[str, Any]) -> None:
        if line["spec"]["backend"] == "a":
            line["spec"]["backend"] = EVIL
            line["notes"] = [f"noisy: {EVIL}", EVIL]
            if next(number) % 3 == 0:
                line.update(status="failed", reason=EVIL)

    trials(change)(path)


REFUSED: dict[str, tuple[Spoil, str]] = {
    "run.json cut off": (cut("run.json", 0.5), "run.json: malformed"),
    "run.json empty": (cut("run.json", 0.0), "run.json: malformed"),
    "NaN in a figure": (replaced(r'"throughput_per_s": \d[\d.]*', '"throughput_per_s": NaN'), "line 2 is malformed"),
    "infinite figure": (replaced(r'"throughput_per_s": \d[\d.]*', '"throughput_per_s": 1e999'), "line 2 is malformed"),
    "NaN in run.json": (replaced('"writer_ns": [0-9.]+', '"writer_ns": NaN', "run.json"), "run.json: malformed"),
    "unknown schema": (lambda path: info(path, schema_version=999), "format 999"),
    "schema of another type": (lambda path: info(path, schema_version=[{"a": EVIL}]), "format"),
    "trials are a link out": (linked_out("trials.jsonl"), "a link that leads out"),
    "run.json is a link out": (linked_out("run.json"), "a link that leads out"),
    "trials are a link to themselves": (linked_to_itself, "a link that leads to itself"),
    "nested too deep to read": (
        replaced(r'"machine": \{', '"machine": {"deep": ' + "[" * 10**5, "run.json"),
        "run.json",
    ),
    "an integer of 6,000 digits": (replaced(r'"trial_id": 0\b', '"trial_id": ' + "9" * 6000), "line 1 is malformed"),
    "an integer that no float holds": (replaced(r'"p50_ns": [\d.]+', '"p50_ns": ' + "9" * 400), "line 1 is malformed"),
    "duplicate trials": (lambda path: rewrite(path, lambda lines: [*lines, *lines]), "trial 0 follows trial 11"),
    "a list where text belongs": (trials(lambda line: line.update(reason=[1])), "malformed"),
    "huge throughput": (trials(lambda line: line.update(throughput_per_s=1e308)), "beyond every"),
    "huge counts": (endpoints(messages_count=10**300), "beyond every number"),
    "huge integers": (lambda path: info(path, machine={"memory_bytes": 10**300}), "beyond every number"),
    "times before the epoch": (lambda path: info(path, started_unix_s=-1e18), "no time of a run"),
    "half a surrogate": (of_a(backend="\ud800"), "surrogates not allowed"),
}
"""Name → what is done to the folder, and what the one line must say."""

READ: dict[str, Spoil] = {
    "trials.jsonl cut off in its last line": cut("trials.jsonl", 0.97),
    "no trials at all": cut("trials.jsonl", 0.0),
    "samples cut off": cut("samples/0.npz", 0.5),
    "samples empty": cut("samples/0.npz", 0.0),
    "samples missing": lambda path: (path / "samples" / "0.npz").unlink(),
    "samples are a link out": linked_out("samples"),
    "one file of samples is a link out": linked_out("samples/0.npz"),
    "evil text everywhere": evil_everywhere,
    "a payload of 10^9 bytes": spec(size=10**9, payload_bytes=10**9),
    "20,000 sizes around 10^9": many_sizes,
    "the same rounds twice": lambda path: rewrite(path, again),
    "deep machine facts": lambda path: info(path, machine={"usable_cores": 8.0, "deep": nested(200)}),
    "large integers": lambda path: info(path, machine={"memory_bytes": 10**18, "usable_cores": 10**18}),
    "negative readers": spec(readers=-1),
    "zero messages": endpoints(messages_count=0),
    "no endpoints": trials(lambda line: line.update(endpoints=[])),
    "zero throughput": trials(lambda line: line.update(throughput_per_s=0.0)),
    "no floor": lambda path: info(path, floor=None),
    "a backend that is a module": of_a(backend="os:system"),
    "a name of 100,000 letters": of_a(backend="x" * 100_000),
    "rounds far apart": spec(round_index=10**12),
}
"""Name → what is done to the folder; every command reads it safely, or gives one clear error."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run"
    sweep = sweep_of(backends=("a", "b"), sizes=(10,), readers=1)
    make_run(path, {("a", 10): Cell(10_000.0), ("b", 10): Cell(30_000.0)}, sweep)
    return path


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


def commands(path: Path, sound: Path) -> Iterator[list[str]]:
    """Yield every command that reads a folder of results, in all its forms."""
    for form in ("text", "markdown", "csv", "json"):
        yield ["analyze", str(path), "--no-report", "--format", form]
    for form in ("text", "markdown", "json"):
        yield ["recommend", "--size", "521", str(path), "--format", form]
        yield ["compare", str(sound), str(path), "--format", form]
        yield ["compare", str(path), str(path), "--format", form]
    yield ["compare", str(path), str(sound), "--gate", "5%"]
    for form in EXPORTERS:
        yield ["export", str(path), "--to", form]


@pytest.mark.parametrize(
    "changes",
    [{"zzz": 1}, {"sizes": [[1]]}, {"backends": [1]}, {"backends": None}, {"variants": [["a"]]}, {"rounds": "many"}],
    ids=str,
)
def test_a_run_whose_sweep_cannot_be_read_is_not_gone_on_with(
    changes: dict[str, Any], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = json.loads((run / "run.json").read_text(encoding="utf-8"))["sweep"]
    info(run, sweep={**sweep, **changes})
    assert main(["run", "--resume", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "run.json: malformed: sweep: " in line
    assert next(iter(changes)) in line


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_one_clear_line(
    name: str, run: Path, sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = REFUSED[name]
    spoil(run)
    for command in commands(run, sound):
        assert main(command) == 2, command
        said = capsys.readouterr()
        assert said.out == "", command
        (line,) = said.err.splitlines()
        assert line.startswith("ipcbench: error: ")
        assert words in line, line
        assert len(line) < 1000


@pytest.mark.parametrize("name", READ)
def test_what_can_be_read_is_safe_text(name: str, run: Path, sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    READ[name](run)
    for command in commands(run, sound):
        code = main(command)
        said = capsys.readouterr()
        assert code in {0, 1, 2, 3}, command
        if code == 2:
            assert said.out == "", command
            assert said.err.splitlines()[-1].startswith("ipcbench: error: "), command
        check_text(said.out, command)
        assert "\x1b" not in said.err
        assert len(said.err.splitlines()) < 100


def check_text(text: str, command: list[str]) -> None:
    form = command[-1]
    if form == "json" or (command[0] == "export" and form not in {"hlog", "osu"}):
        assert not text or all(map(math.isfinite, numbers(json.loads(text, parse_constant=pytest.fail))))
        return
    assert "\x1b" not in text, command
    assert not re.search(r"(?<![\w<])(nan|inf)(?![\w:])", text), command
    if form == "markdown":
        assert not re.search(r"(?<!\\)<(script|/script|img)", text), command


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from numbers(part)


def test_pages_and_plots_of_such_runs_are_text_too(sound: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    shell = Shell(tmp_path)
    names = ("evil text everywhere", "deep machine facts", "no endpoints", "a name of 100,000 letters")
    for name in names:
        READ[name](Path(shutil.copytree(sound, tmp_path / name)))
    done = shell("analyze", *names)
    assert done.returncode == 0, done.stderr
    for name in names:
        page = (tmp_path / name / "report.html").read_text(encoding="utf-8")
        assert not re.search(r"<img|<script>alert", page)
        for path in (tmp_path / name / "plots").glob("*.svg"):
            assert not re.search("<script|<img|\x1b", path.read_text(encoding="utf-8"))


def test_nothing_is_written_through_a_link(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("tables.md", "summary.csv", "report.html"):
        (run / name).symlink_to(outside / name)
    done = Shell(tmp_path)("analyze", "run")
    assert done.returncode == 0, done.stderr
    assert os.listdir(outside) == []
