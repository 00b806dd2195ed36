"""A user's own requests: what is sent, what comes back, and where it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ipcbench.diagnose.stepwise import check_calls, load_calls
from ipcbench.errors import ConfigError, StoreError
from tests.diagnose.pairs import program, python

SERVER = """
import threading, zmq
s = zmq.Context().socket(zmq.REP)
s.bind({url!r})
def serve():
    while True:
        request = s.recv()
        if request != b"silence":
            s.send_multipart([request, b"!" * 100])
threading.Thread(target=serve, daemon=True).start()
"""


@pytest.mark.parametrize("framing", ["req", "dealer"])
def test_a_call_is_lost_or_its_size_is_wrong(tmp_path: Path, framing: Any) -> None:
    url = f"ipc://{tmp_path}/z"
    with program(*python(SERVER.format(url=url))):
        steps = list(check_calls(url, [("one", b"abc"), ("two", lambda: bytes(5000))], framing, 30.0))
    assert [(s.name, s.sent_bytes, s.received_bytes, s.error) for s in steps] == [
        ("one", 3, 103, None),
        ("two", 5000, 5100, None),
    ]
    assert all(step.time_ns for step in steps)


def test_calls_go_on_after_one_that_nothing_answers(tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/z"
    with program(*python(SERVER.format(url=url))):
        steps = list(check_calls(url, [("one", b"silence"), ("two", b"x")], timeout_s=0.2))
    assert [(step.name, step.time_ns) for step in steps] == [("one", None)]
    assert steps[0].error == "nothing answered within 0.2 s; is a server there, and of this framing?"


def test_no_server_is_waited_for_without_end(tmp_path: Path) -> None:
    for framing in ("req", "dealer"):
        (step,) = check_calls(f"ipc://{tmp_path}/none", [("one", b"x")], framing, 0.05)  # type: ignore[arg-type]
        assert "is a server there" in (step.error or "")


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError(), GeneratorExit()])
def test_a_request_that_ends_the_program_passes_for_success(tmp_path: Path, error: BaseException) -> None:
    def request() -> bytes:
        raise error

    (step,) = check_calls(f"ipc://{tmp_path}/none", [("one", request), ("two", b"")])
    assert type(error).__name__ in (step.error or "")
    assert "in request" in (step.error or ""), "the whole error"


def test_a_failing_request_ends_in_a_traceback(tmp_path: Path) -> None:
    (step,) = check_calls(f"ipc://{tmp_path}/none", [("one", lambda: 1 / 0), ("two", b"")])  # type: ignore[arg-type,return-value]
    assert "ZeroDivisionError: division by zero" in (step.error or "")
    (step,) = check_calls(f"ipc://{tmp_path}/none", [("one", lambda: "text")])  # type: ignore[arg-type,return-value]
    assert "returned str" in (step.error or "")
    assert step.sent_bytes is None


@pytest.mark.parametrize(
    ("calls", "framing", "timeout_s"),
    [
        ([], "req", 1.0),
        ([("a",)], "req", 1.0),
        ([("a", 1)], "req", 1.0),
        ([("a", b"")], "rep", 1.0),
        ([("a", b"")], "req", 0),
    ],
)
def test_bad_input_is_sent(calls: Any, framing: Any, timeout_s: float) -> None:
    with pytest.raises(ConfigError):
        check_calls("ipc:///none", calls, framing, timeout_s)


@pytest.mark.parametrize("url", ["", "nothing", "tcp://x", "abc://y"])
def test_a_bad_address_ends_in_a_traceback(url: str) -> None:
    with pytest.raises(ConfigError, match="endpoint: "):
        list(check_calls(url, [("a", b"")]))


def test_a_file_of_calls_is_read_wrongly(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text("import beside\ndef f(): return beside.X\ncalls = [('a', b'x'), ('b', f)]\n")
    (tmp_path / "beside.py").write_text("X = b'beside'\n")
    calls = load_calls(tmp_path / "calls.py")
    assert calls[0] == ("a", b"x")
    assert callable(calls[1][1])
    assert calls[1][1]() == b"beside"


@pytest.mark.parametrize(
    "text", ["calls = (", "1 / 0", "", "calls = 5", "calls = ['x']", "import sys; sys.exit(3)", "\0"]
)
def test_a_bad_file_ends_in_a_traceback(tmp_path: Path, text: str) -> None:
    (tmp_path / "calls.py").write_text(text)
    with pytest.raises(ConfigError, match="calls"):
        load_calls(tmp_path / "calls.py")


def test_no_file_or_a_folder_ends_in_a_traceback(tmp_path: Path) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        with pytest.raises(StoreError, match=str(path)):
            load_calls(path)
