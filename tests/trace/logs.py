"""Logs as the older tools write them, made up for tests."""

from __future__ import annotations

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


def v1_row(number: int, method: str = "Matmul", scale: float = 1.0) -> str:
    total = 10 * scale
    moved = 3072.0
    return row(number, method, scale, 2 * scale, 6 * scale, scale, total, 1024, 2048, moved / 1024 / total * 1e3)


def tq_call(
    begin: float, parts: tuple[float, float, float], func: str = "f", trace_id: str = "N/A", prefix: str = ""
) -> list[tuple[float, str]]:
    """Return the lines of one call with the times at which they are written."""
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
    return [(at, f"{start}{text} | timestamp={at:.6f}\n") for at, text in events]
