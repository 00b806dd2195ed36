"""Logs as the older tools write them, made up for tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

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


def open_calls() -> list[str]:
    """Return the lines of 100 calls, and of five that do not end."""
    calls = [tq_call(float(n), (0.3, 0.2, 0.1)) for n in range(105)]
    return [*itertools.chain(*calls[:100]), *(lines[0] for lines in calls[100:])]


def a_straggler() -> list[str]:
    """Return the lines of four workers; the last one computes longer."""
    return [line for worker in range(4) for n in range(30)
            for line in tq_call(n + 0.0, (0.01, 0.2 + worker // 3, 0.01), prefix=f"(W pid={worker}) ")]  # fmt: skip
