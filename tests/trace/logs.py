"""Logs as the older tools write them, made up for tests."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

V1 = [
    "Serialize(ms)", "Send(ms)", "Recv(ms)", "Deserialize(ms)", "Total(ms)", "Sent(KB)", "Recv(KB)", "Throughput(MB/s)",
]  # fmt: skip
V2 = ["Ser(ms)", "Send(ms)", "Recv(ms)", "Deser(ms)", "Comm(ms)", "Total(ms)", "Sent(KB)", "Recv(KB)"]
V3 = ["Ser(ms)", "Send(ms)", "Recv(ms)", "Deser(ms)", "Comm(ms)", "GPU(ms)", "Total(ms)", "Sent(KB)", "Recv(KB)"]
V4 = ["Offline(ms)", "Ser(ms)", "Send(ms)", "Recv(ms)", "Deser(ms)", "Compute(ms)", "Total(ms)", "Sent(KB)", "Recv(KB)"]


def head(columns: list[str], transport: str = "IPC", tag: str = "", rule: int = 120) -> str:
    names = "".join(f"{name:<15} " for name in columns)
    return (
        f"ZeroMQ Performance Log{tag} - Transport: {transport}\n{'=' * rule}\n"
        f"{'ID':<5} {'Method':<20} {names}\n{'=' * rule}\n"
    )


def row(number: int, method: str, *values: float) -> str:
    return f"{number:<5} {method:<20} " + " ".join(f"{value:<12.3f}" for value in values) + "\n"


def v1_row(number: int, method: str = "Matmul") -> str:
    return row(number, method, 1, 2, 6, 1, 10, 1024, 2048, 300)


def rows(numbers: Iterable[int], method: str, *values: float) -> str:
    return "".join(row(number, method, *values) for number in numbers)


def tq_call(begin: float, parts: Sequence[float] = (0.1, 0.2, 0.3), func: str = "f", trace_id: str = "N/A",
            prefix: str = "") -> list[str]:  # fmt: skip
    """Return the lines of one call."""
    got, computed, put = parts
    total = got + computed + put
    start = f"{prefix}[TQ-TRACE] trace_id={trace_id} | func={func} | "
    end = f"stage=FUNCTION_END | total_duration={total:.6f}s | " + " | ".join(
        f"{name}_ratio={100 * part / total:.2f}%" for name, part in zip(("get", "compute", "put"), parts, strict=True)
    )
    events = [
        (begin, "pid=7 | stage=FUNCTION_START"),
        (begin, "stage=GET_START | batch_size=4"),
        (begin + got, f"stage=GET_END | duration={got:.6f}s"),
        (begin + got, "stage=COMPUTE_START"),
        (begin + got + computed, f"stage=COMPUTE_END | duration={computed:.6f}s"),
        (begin + got + computed, "stage=PUT_START"),
        (begin + total, f"stage=PUT_END | duration={put:.6f}s"),
        (begin + total, end),
    ]
    return [f"{start}{text} | timestamp={at:.6f}\n" for at, text in events]


@dataclass
class Truth:
    """What happened in a pipeline of which `pipeline` wrote the log.

    Attributes:
        calls_us: by function, those that ended: in all, in get, compute and put, in µs.
        broken_count: those that began and did not end.
    """

    calls_us: dict[str, list[tuple[int, int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    broken_count: int = 0


def pipeline(chosen: random.Random, calls_count: int, *, width: int = 1, broken_share: float = 0.0,
             put_share: float = 1.0, prefix: str = "", shared_id: str = "N/A") -> tuple[list[str], Truth]:  # fmt: skip
    """Return the log of a worker that makes calls on one event loop, `width` at a time, and what happened in truth.

    A call that puts nothing writes no end of the function; one that breaks off writes no more lines at all, and is
    tried again an hour later now and then. Each line takes some microseconds to write.
    """
    truth, lines, now_us = Truth(), [], 10**9
    waiting: list[tuple[int, int, Generator[int, int, None]]] = []

    def say(func: str, text: str) -> int:
        nonlocal now_us
        lines.append(f"{prefix}[TQ-TRACE] trace_id={shared_id} | func={func} | {text} | timestamp={now_us / 1e6:.6f}\n")
        at_us, now_us = now_us, now_us + chosen.randint(5, 40)
        return at_us

    def call(func: str) -> Generator[int, int, None]:
        begin_us = say(func, "pid=7 | stage=FUNCTION_START")
        breaks, puts = chosen.random() < broken_share, chosen.random() < put_share
        last = chosen.randrange(3 if puts else 2) if breaks else 3
        parts_us = [0, 0, 0]
        for number, stage in enumerate(("GET", "COMPUTE", "PUT") if puts else ("GET", "COMPUTE")):
            start_us = say(func, f"stage={stage}_START")
            yield round(10 ** chosen.uniform(2, 6))
            if number == last:
                truth.broken_count += 1
                return
            parts_us[number] = now_us - start_us
            end_us = say(func, f"stage={stage}_END | duration={parts_us[number] / 1e6:.6f}s")
        total_us = (now_us if puts else end_us) - begin_us
        if puts:
            ratios = " | ".join(f"{name}_ratio={100 * part / total_us:.2f}%"
                                for name, part in zip(("get", "compute", "put"), parts_us, strict=True))  # fmt: skip
            say(func, f"stage=FUNCTION_END | total_duration={total_us / 1e6:.6f}s | {ratios}")
        truth.calls_us[func].append((total_us, *parts_us))

    made = 0
    while made < calls_count or waiting:
        while made < calls_count and len(waiting) < width:
            now_us += 3_600_000_000 if broken_share and chosen.random() < 0.02 else chosen.randint(1, 2000)
            made += 1
            running = call(chosen.choice("fg"))
            heapq.heappush(waiting, (now_us + next(running), made, running))
        due_us, number, running = heapq.heappop(waiting)
        now_us = max(now_us, due_us)
        for pause_us in itertools.islice(running, 1):
            heapq.heappush(waiting, (now_us + pause_us, number, running))
    return lines, truth


def open_calls() -> list[str]:
    """Return the lines of 100 calls, and of five that do not end."""
    calls = [tq_call(float(n), (0.3, 0.2, 0.1)) for n in range(105)]
    return [*itertools.chain(*calls[:100]), *(lines[0] for lines in calls[100:])]


def a_straggler() -> list[str]:
    """Return the lines of four workers; the last one computes longer."""
    return [line for worker in range(4) for n in range(30)
            for line in tq_call(n + 0.0, (0.01, 0.2 + worker // 3, 0.01), prefix=f"(W pid={worker}) ")]  # fmt: skip
