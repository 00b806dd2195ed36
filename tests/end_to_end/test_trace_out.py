"""The commands about a trace, as a user runs them, beside an application that records."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.browser import Seen
from tests.end_to_end.shell import Shell, interrupt
from tests.trace.logs import V1, head, v1_row
from tests.trace.made import both_sides, record

APPLICATION = """
import sys
from ipcbench import trace
recorder = trace.start("trace", service="client", max_bytes="64MiB")
print("ready", flush=True)
while True:
    with recorder.call("Matmul") as call:
        call.serialized(1000)
        call.sent()
        sum(range(20000))
        call.received(2000)
"""


@pytest.fixture
def application(shell: Shell) -> None:
    process = shell.start_python("-c", APPLICATION)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.usefixtures("application")
def test_top_prints_one_table_into_a_pipe(shell: Shell) -> None:
    done = shell("trace", "top", "trace", "--interval", "300ms")
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.strip().startswith("Matmul")]
    assert float(row.split()[1].replace(",", "")) > 0
    assert "▒" in row


def test_top_needs_a_folder_unless_it_can_wait_for_one(shell: Shell) -> None:
    done = shell("trace", "top", "nowhere", "--once", "--interval", "10ms")
    assert done.returncode == 2
    assert "there is no such folder; on a terminal, `ipcbench trace top` waits for it" in done.stderr
    (shell.folder / "empty").mkdir()
    done = shell("trace", "top", "empty", "--once", "--interval", "10ms")
    assert done.returncode == 0
    assert "no calls yet" in done.stdout


def read_until(terminal: int, wanted: bytes, deadline_s: float = 30) -> bytes:
    seen, end_s = b"", time.monotonic() + deadline_s
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end_s - time.monotonic()))
        assert ready, f"no {wanted!r} in {seen[-500:]!r}"
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            piece = b""
        if not piece:
            break
        seen += piece
    return seen


@pytest.mark.usefixtures("application")
def test_top_on_a_terminal_ends_by_ctrl_c_and_gives_the_terminal_back(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = shell.start("trace", "top", "trace", start_new_session=True, **streams)
    os.close(theirs)
    try:
        seen = read_until(ours, b"Matmul")
        seen += read_until(ours, b"calls/s")
        process.send_signal(signal.SIGINT)
        seen += read_until(ours, b"\x1b[?1049l")
        seen += read_until(ours, b"nothing more")
        assert process.wait(timeout=30) == 0
    finally:
        os.close(ours)
    assert b"\x1b[?1049h" in seen
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l"), "the cursor is back"
    assert b"Traceback" not in seen


@pytest.mark.usefixtures("application")
@pytest.mark.parametrize("form", ["zmq", "jsonl"])
def test_tail_follows_until_ctrl_c(shell: Shell, form: str) -> None:
    process = shell.start("trace", "tail", "-f", "--format", form, "trace")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(200)]
    said, errors = interrupt(process)
    assert process.returncode == 0, errors
    assert errors == ""
    if form == "jsonl":
        rest = said.splitlines()[1:]  # its beginning is in the buffer that the lines before were read from
        for part in (lines, rest):
            ends = [call["begin_ns"] + call["total_ns"] for call in map(json.loads, part)]
            assert ends == sorted(ends)
        assert said.endswith("\n"), "no line is cut in two"
    else:
        numbers = [int(line.split()[0]) for line in lines if line[:1].isdigit()]
        assert numbers == list(range(1, len(numbers) + 1))


def test_tail_prints_what_is_there(shell: Shell) -> None:
    both_sides(shell.folder / "t", 5)
    done = shell("trace", "tail", "--format", "zmq", "t")
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line[:1].isdigit()]) == 6
    assert done.stderr == "left out: 5 calls of other stages; --format jsonl has them\n"


def test_ctrl_c_before_the_end_of_tail_is_told(shell: Shell) -> None:
    record(shell.folder / "t", 5000)
    process = shell.start("trace", "tail", "t")
    assert process.stdout is not None
    process.stdout.readline()  # the pipe holds but a part of the others
    said, errors = interrupt(process)
    assert (process.returncode, errors) == (130, "\nipcbench: error: interrupted\n")
    assert not said or said.endswith("}\n"), "no line is cut in two"


def test_tail_says_where_there_is_nothing_to_print(shell: Shell) -> None:
    for name, data in ("empty.log", b""), ("binary.log", bytes(range(256)) * 9), ("headless.log", v1_row(7).encode()):
        (shell.folder / name).write_bytes(data)
    (shell.folder / "empty").mkdir()
    for name in ("empty.log", "binary.log", "headless.log", "empty"):
        done = shell("trace", "tail", "--format", "zmq", name)
        assert (done.returncode, done.stdout) == (2, ""), name
        assert f"{name}: no calls found" in done.stderr


def test_logs_are_not_followed(shell: Shell) -> None:
    (shell.folder / "logs").mkdir()
    (shell.folder / "logs/x.log").write_text(head(V1) + v1_row(1))
    for words in ("tail", "-f", "logs"), ("top", "logs"):
        done = shell("trace", *words)
        assert done.returncode == 2
        assert "logs: a folder of logs, not of a trace; `ipcbench trace report logs` reads them" in done.stderr


def test_export_writes_files(shell: Shell) -> None:
    both_sides(shell.folder / "t", 5)
    for form in ("csv", "prometheus", "otlp", "zipkin", "perfetto", "chrome", "parquet"):
        done = shell("trace", "export", "t", "--to", form, "--out", f"out.{form}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), form
        assert (shell.folder / f"out.{form}").stat().st_size > 500
    assert shell("trace", "export", "t", "--to", "csv").stdout == (shell.folder / "out.csv").read_text()


def test_metrics_are_served_until_ctrl_c(shell: Shell) -> None:
    both_sides(shell.folder / "t", 5)
    process = shell.start("trace", "serve-metrics", "t", "--port", "0")
    assert process.stderr is not None
    url = process.stderr.readline().strip()
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b"ipcbench_call_duration_seconds_bucket" in answer.read()
    _, errors = interrupt(process)
    assert (process.returncode, errors) == (0, "")


def test_a_broken_pipe_is_no_traceback(shell: Shell, tmp_path: Path) -> None:
    both_sides(tmp_path / "t", 200)
    process = shell.start("trace", "tail", str(tmp_path / "t"))
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(timeout=30)


def test_diff_and_check_say_it_by_text_and_exit_code(shell: Shell) -> None:
    both_sides(shell.folder / "a", 30)
    both_sides(shell.folder / "b", 30)
    done = shell("trace", "diff", "a", "b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("B against A: 0 slower, 0 faster, 4 no clear difference, 5 not comparable")
    assert json.loads(shell("trace", "diff", "a", "b", "--format", "json").stdout)["a"] == ["a"]
    passed = shell("trace", "check", "a", "--fail-if", "Matmul.p50_ms>5", "--fail-if", "*.errors>1")
    assert passed.returncode == 0
    assert len(passed.stdout.splitlines()) == 4
    failed = shell("trace", "check", "a", "--fail-if", "Matmul.p50_ms>1")
    assert (failed.returncode, failed.stdout) == (1, "FAIL Matmul.p50_ms = 1.500, > 1\n")


@pytest.mark.parametrize(("width", "language"), [(1280, "en"), (390, "zh")])
def test_the_page_of_a_trace_in_a_browser(shell: Shell, browser: Any, width: int, language: str) -> None:
    both_sides(shell.folder / "t", 300)
    done = shell("trace", "report", "t", "--html", "page.html", "--lang", language)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "report in page.html\n")
    seen = Seen(browser.new_page(viewport={"width": width, "height": 900}))
    seen.open(shell.folder / "page.html")
    assert "301" in (seen.page.locator("h1").text_content() or ""), "a call of two sides counts once"
    for section in ("plots", "figures", "reproduce"):
        # By keyboard: under a mouse, plots that are drawn meanwhile move the link between button down and button up.
        seen.page.locator(f"nav a[href='#{section}']").press("Enter")
        seen.page.locator(f"#{section} > details[open]").wait_for()
    for key, layer in (("shares", "bar"), ("sizes", "scatter"), ("timeline", "bar")):
        shape = f".{layer}layer .point"
        card = seen.check_card(key, shape, 3)
        seen.point_at(card.locator(shape).first)
        card.locator(".hoverlayer .hovertext").first.wait_for()
    card = seen.check_choice("timeline")
    card.locator(".plot").focus()
    seen.page.keyboard.press("ArrowRight")
    assert "ms" in (card.locator(".spoken").text_content() or "")
    card.locator(".legend button").first.click()
    card.locator("summary").click()
    card.locator(".figures tr").first.wait_for()
    assert card.locator(".figures tr").count() > 100
    seen.check_quiet(shell.folder / "page.html", width)


@pytest.mark.parametrize(
    ("library", "arguments", "words"),
    [
        (
            "jinja2",
            ("report", "t", "--html", "page"),
            "ipcbench: error: --html needs jinja2: pip install 'ipcbench[report]'",
        ),
        ("pyarrow", ("export", "t", "--to", "parquet", "--out", "page"), "pip install 'ipcbench[parquet]'"),
    ],
)
def test_without_its_library_a_file_is_one_clear_error(
    shell: Shell, library: str, arguments: tuple[str, ...], words: str
) -> None:
    both_sides(shell.folder / "t", 3)
    (shell.folder / f"{library}.py").write_text(f"raise ModuleNotFoundError('gone', name='{library}')")
    done = shell("trace", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (shell.folder / "page").exists()
