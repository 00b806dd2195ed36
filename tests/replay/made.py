"""Traffic made up for tests."""

from __future__ import annotations

import numpy as np

from ipcbench.replay.traffic import ThreadCalls, Traffic


def thread(
    count: int = 12, server_ns: int = 50_000, name: str = "client", server: str = "", **changes: int
) -> ThreadCalls:
    """Return a client whose calls take turns: method 0 is small, method 1 sends 100,000 bytes.

    A negative `server_ns` is unknown.
    """
    method = np.arange(count, dtype=np.int64) % 2
    values = {
        "gap_ns": 10_000, "before_ns": 5_000, "after_ns": 5_000, "other_ns": 1_000, "queue_ns": -1,
        "server_ns": server_ns, "server_most_ns": server_ns if server_ns >= 0 else 190_000, "total_ns": 200_000,
        **changes,
    }  # fmt: skip
    columns = {key: np.full(count, value, dtype=np.int64) for key, value in values.items()}
    columns["gap_ns"][0] = 0
    sent, recv = np.where(method == 1, 100_000, 0), np.where(method == 1, 20, 3)
    return ThreadCalls(name=name, method=method, sent_bytes=sent, recv_bytes=recv, server=server, **columns)


def traffic(*threads: ThreadCalls) -> Traffic:
    """Return the traffic of these clients, one if none is given."""
    chosen = threads or (thread(),)
    return Traffic("made up", ("Small", "Large"), chosen, True, sum(len(thread.method) for thread in chosen))
