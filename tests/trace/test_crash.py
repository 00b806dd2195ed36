"""What can happen to a traced application, and to what it records on: the application goes on, the records are right.

One test kills an application 40 times, or as often as `IPCBENCH_KILLS=200 pytest tests/trace/test_crash.py` says. A
really full disk needs its own file system; where none can be mounted, its test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trace.reading import calls_count, check_whole, records

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys, threading
from pathlib import Path
from ipcbench import trace
from tests.trace.reading import calls_count, check_whole, in_threads, records

def work(begin, count, name="m"):
    for number in range(begin, begin + count):
        with trace.call(name) as call:
            call.serialized(number)
            call.sent()
            call.received(number + 1)

folder = Path(sys.argv[1])
"""


def run(program: str, folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", PROGRAM + program, str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(mount, check=False, capture_output=True, timeout=60).returncode == 0


def test_killed_at_random_moments(tmp_path: Path) -> None:
    times = os.environ.get("IPCBENCH_KILLS", "40")
    program = [sys.executable, "-m", "tests.trace.killed", str(tmp_path), times]
    done = subprocess.run(program, check=False, timeout=100, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "none lost" in done.stdout


FILLED = """
recorder = trace.start(folder)
work(0, 40_000)
assert "No space left" in recorder.problem, recorder.problem
trace.stop()
calls = records(folder)
check_whole(calls)
assert [(call.sent_bytes, call.recv_bytes) for call in calls] == [(n, n + 1) for n in range(len(calls))]
print(len(calls), calls_count(folder))
"""


@pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")
@pytest.mark.parametrize("size_kib", [16, 1100, 1500, 3500])
def test_a_really_full_disk(tmp_path: Path, size_kib: int) -> None:
    mounted = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size={size_kib}k tmpfs "$0" && exec "$@"',
               str(tmp_path)]  # fmt: skip
    done = run(FILLED, tmp_path, *mounted)
    assert done.returncode == 0, done.stderr
    recorded, counted = map(int, done.stdout.split())
    assert (recorded > 8000) == (size_kib > 1050)
    assert counted in {40_000, recorded}  # counted in memory where there was no room for histograms


@pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")
def test_a_read_only_folder(tmp_path: Path) -> None:
    mounted = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"', str(tmp_path)]
    done = run(
        "recorder = trace.start(folder)\nwork(0, 1000)\nprint(recorder.problem)\ntrace.stop()", tmp_path, *mounted
    )
    assert done.returncode == 0, done.stderr
    assert "Read-only file system" in done.stdout


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), 11)", "os.abort()"])
def test_an_end_without_cleaning_up(tmp_path: Path, end: str) -> None:
    done = run(f"trace.start(folder)\nwork(0, 9000)\n{end}", tmp_path)
    assert done.returncode != 0
    calls = records(tmp_path)
    assert [call.sent_bytes for call in calls] == list(range(9000))
    assert {(call.method, call.recv_bytes - call.sent_bytes) for call in calls} == {("m", 1)}
    assert calls_count(tmp_path) == 9000


def test_threads_at_once_through_many_segments(tmp_path: Path) -> None:
    program = """
from ipcbench.trace.record import files
files._FIRST_SEGMENT_BYTES = files._LARGEST_SEGMENT_BYTES = 32_768
sys.setswitchinterval(1e-5)
trace.start(folder)
begin = threading.Barrier(8)
def work_at_once(number):
    begin.wait()
    work(number * 10_000, 2000, f"thread {number}")
in_threads(8, work_at_once)
trace.stop()
"""
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr
    calls = records(tmp_path)
    check_whole(calls)
    assert sorted(call.sent_bytes for call in calls) == [n * 10_000 + turn for n in range(8) for turn in range(2000)]
    for call in calls:
        assert (call.method, call.recv_bytes) == (f"thread {call.sent_bytes // 10_000}", call.sent_bytes + 1)
    assert len(list(tmp_path.glob("*.ipct"))) > 8 * 5


def test_forks_during_calls_of_threads(tmp_path: Path) -> None:
    program = """
trace.start(folder)
work(0, 100)
threads = [threading.Thread(target=work, args=((number + 1) * 1000, 500)) for number in range(3)]
for thread in threads: thread.start()
pids = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        work(100_000 * (child + 1), 200)
        os._exit(0)
    pids.append(pid)
for thread in threads: thread.join()
for pid in pids:
    assert os.waitpid(pid, 0)[1] == 0
work(50_000, 100)
"""
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr
    wanted = [*range(100), *range(50_000, 50_100)]
    wanted += [begin + turn for begin in (1000, 2000, 3000) for turn in range(500)]
    wanted += [100_000 * child + turn for child in (1, 2, 3, 4) for turn in range(200)]
    assert sorted(call.sent_bytes for call in records(tmp_path)) == sorted(wanted)
