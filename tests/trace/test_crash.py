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

from tests.trace.reading import ROOT, calls_count, check_whole, records, run_program

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

UNSHARE = ("unshare", "-rm")


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(mount, check=False, capture_output=True, timeout=60).returncode == 0


def run_in_tmpfs(options: str, program: str, folder: Path) -> str:
    """Run a program on a file system of its own, mounted with these options; return what it prints."""
    mounted = (*UNSHARE, "sh", "-c", f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"', str(folder))
    return run_program(PROGRAM + program, folder, under=mounted)


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
    recorded, counted = map(int, run_in_tmpfs(f"size={size_kib}k", FILLED, tmp_path).split())
    assert (recorded > 8000) == (size_kib > 1050)
    assert counted in {40_000, recorded}  # counted in memory where there was no room for histograms


@pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")
def test_a_read_only_folder(tmp_path: Path) -> None:
    program = "recorder = trace.start(folder)\nwork(0, 1000)\nprint(recorder.problem)\ntrace.stop()"
    assert "Read-only file system" in run_in_tmpfs("ro", program, tmp_path)


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), 11)", "os.abort()"])
def test_an_end_without_cleaning_up(tmp_path: Path, end: str) -> None:
    run_program(f"{PROGRAM}trace.start(folder)\nwork(0, 9000)\n{end}", tmp_path, succeeds=False)
    calls = [(call.method, call.sent_bytes, call.recv_bytes) for call in records(tmp_path)]
    assert calls == [("m", number, number + 1) for number in range(9000)]
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
    run_program(PROGRAM + program, tmp_path)
    check_whole(records(tmp_path))
    calls = sorted((call.sent_bytes, call.recv_bytes, call.method) for call in records(tmp_path))
    wanted = [n * 10_000 + turn for n in range(8) for turn in range(2000)]
    assert calls == [(number, number + 1, f"thread {number // 10_000}") for number in wanted]
    assert len(list(tmp_path.glob("*.ipct"))) > 8 * 5


def test_forks_during_calls_of_threads(tmp_path: Path) -> None:
    program = """
trace.start(folder)
work(0, 100)
threads = [threading.Thread(target=work, args=((number + 1) * 1000, 500)) for number in range(3)]
for thread in threads: thread.start()
for child in range(4):
    if not os.fork():
        work(100_000 * (child + 1), 200)
        os._exit(0)
for thread in threads: thread.join()
for _ in range(4): assert os.wait()[1] == 0
work(50_000, 100)
"""
    run_program(PROGRAM + program, tmp_path)
    wanted = [*range(100), *range(50_000, 50_100)]
    wanted += [begin + turn for begin in (1000, 2000, 3000) for turn in range(500)]
    wanted += [100_000 * child + turn for child in (1, 2, 3, 4) for turn in range(200)]
    assert sorted(call.sent_bytes for call in records(tmp_path)) == sorted(wanted)


SCARCE = """
import resource, sys
recorder = trace.start(folder)
work(0, 10)
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held, resource.RLIM_INFINITY))
for number in range(50):
    with recorder.call(f"method {number}"):
        pass
sys.exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_process_without_memory_goes_on_and_ends(tmp_path: Path) -> None:
    run_program(PROGRAM + SCARCE, tmp_path)
