"""How fast `ipcbench trace report` reads zmq_performance.log, [TQ-…] lines, and segments; all are generated here.

Usage: python benchmarks/log_reading.py [--lines 2000000]. A process of its own reads each kind; its CPU time and peak
memory count, of which the interpreter with NumPy takes about 30 MiB. The [TQ-…] lines are those of eight workers,
mixed, some with dates before them and some with trace ids, and one line in nine is foreign; `tq-detail` has 13 lines a
call, four of them [TQ-DETAIL]. The last line is the whole command on the segments, in wall time.
"""

from __future__ import annotations

import argparse
import heapq
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from ipcbench import trace
from ipcbench.trace.report.gather import gather

NAMES = "Serialize(ms) Send(ms) Recv(ms) Deserialize(ms) Total(ms) Sent(KB) Recv(KB) Throughput(MB/s)"


def zmq_lines(count: int) -> Iterator[str]:
    chosen = random.Random(1)
    rule = "=" * 120
    yield f"ZeroMQ Performance Log - Transport: IPC\n{rule}\nID    Method               {NAMES}\n{rule}\n"
    for number in range(1, count + 1):
        stages = [chosen.random() * scale for scale in (1, 0.1, 5, 1)]
        total, sent, received = sum(stages), chosen.random() * 1000, chosen.random() * 1000
        times = " ".join(f"{ms:<12.3f}" for ms in (*stages, total))
        speed = (sent + received) / 1024 / total * 1e3
        yield f"{number:<5} {f'Method{number % 5}':<20} {times} {sent:<12.2f} {received:<12.2f} {speed:<18.2f}\n"


def tq_lines(count: int, detail: bool = False) -> Iterator[str]:
    """Yield the lines of eight workers, mixed by their times: per call 8, one of something else, 4 more of details."""
    chosen = random.Random(1)
    begins = [1000.0 + worker / 100 for worker in range(8)]
    waiting: list[tuple[float, int, str]] = []
    done = number = 0
    while done < count:
        worker = min(range(8), key=begins.__getitem__)
        while waiting and waiting[0][0] < begins[worker] and done < count:
            yield heapq.heappop(waiting)[2]
            done += 1
        for at, text in tq_call(chosen, begins[worker], worker, detail):
            number += 1
            heapq.heappush(waiting, (at, number, text))
            begins[worker] = at + 0.001


def tq_call(chosen: random.Random, begin: float, worker: int, detail: bool) -> Iterator[tuple[float, str]]:
    got, computed, put = (round(chosen.random() / 100 + 1e-6, 6) for _ in range(3))
    total = got + computed + put
    head = f"\x1b[36m(WorkerDict pid={100 + worker}, ip=10.0.0.2)\x1b[0m "
    if worker % 2:
        head += f"2026-01-02 03:04:05,{int(begin * 1000) % 1000:03} INFO "
    ids = f"trace_id={uuid.UUID(int=chosen.getrandbits(128)) if worker % 4 == 3 else 'N/A'}"
    start = f"{head}[TQ-TRACE] {ids} | func=step{worker % 3} | "
    ratios = " | ".join(
        f"{name}_ratio={100 * part / total:.2f}%" for name, part in (("get", got), ("compute", computed), ("put", put))
    )
    fetched, computed_at = begin + got, begin + got + computed
    lines = [
        (begin, f"{start}pid={100 + worker} | stage=FUNCTION_START"),
        (begin, f"{start}stage=GET_START | batch_size=4"),
        (fetched, f"{start}stage=GET_END | duration={got:.6f}s"),
        (fetched, f"{start}stage=COMPUTE_START"),
        (computed_at, f"{start}stage=COMPUTE_END | duration={computed:.6f}s"),
        (computed_at, f"{start}stage=PUT_START"),
        (begin + total, f"{start}stage=PUT_END | duration={put:.6f}s"),
        (begin + total, f"{start}stage=FUNCTION_END | total_duration={total:.6f}s | {ratios}"),
    ]
    if detail:
        more = f"{head}[TQ-DETAIL] {ids} | "
        func = f"func=step{worker % 3} | pid={100 + worker} | "
        lines += [
            (begin, f"{more}stage=TQ_CLIENT_GET_START | batch_size=4"),
            (fetched, f"{more}stage=TQ_CLIENT_GET_END | duration={got:.6f}s | data_size_mb=1.50"),
            (computed_at, f"{more}{func}stage=TQ_CLIENT_PUT_START | batch_size=torch.Size([4, 8]) | data_size_mb=1.50"),
            (begin + total, f"{more}{func}stage=TQ_CLIENT_PUT_END | duration={put:.6f}s | throughput_mbps=200.00"),
        ]
    for at, text in lines:
        yield at, f"{text} | timestamp={at:.6f}\n"
    yield begin + total, "step: 50%|#####     | 1/2 [00:01<00:01,  1.00s/it] loss 0.123\n"


def tq_lines_with_details(count: int) -> Iterator[str]:
    return tq_lines(count, detail=True)


def make_segments(folder: Path, count: int) -> None:
    recorder = trace.start(folder, max_bytes="8GiB")
    for number in range(count):
        with recorder.call(f"Method{number % 5}") as call:
            call.serialized(number)
            call.sent()
            call.received(number)
    trace.stop()


def read(path: Path, count: int) -> None:
    begin = time.process_time()
    calls = sum(group.calls_count for group in gather([path]).sums.groups)
    spent = time.process_time() - begin
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024  # ru_maxrss would be that of the parent
    print(f"{path.name:13} {calls:>9,} calls  {count / spent:>12,.0f} lines or records/s of CPU  {peak:5.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--read", type=Path)
    chosen = parser.parse_args()
    if chosen.read:
        read(chosen.read, chosen.lines)
        return
    with tempfile.TemporaryDirectory(prefix="ipcb-trace-") as name:
        folder = Path(name)
        for kind, lines in (("zmq.log", zmq_lines), ("tq.log", tq_lines), ("tq-detail.log", tq_lines_with_details)):
            with (folder / kind).open("w") as file:
                file.writelines(lines(chosen.lines))
        make_segments(folder / "segments", chosen.lines)
        for kind in ("zmq.log", "tq.log", "tq-detail.log", "segments"):
            command = [sys.executable, __file__, "--lines", str(chosen.lines), "--read", str(folder / kind)]
            subprocess.run(command, check=True)
        begin = time.monotonic()
        report = [sys.executable, "-m", "ipcbench", "trace", "report", str(folder / "segments")]
        subprocess.run(report, check=True, stdout=subprocess.DEVNULL)
        print(f"`ipcbench trace report` on {chosen.lines:,} records: {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
