"""A work queue: one process hands out tasks, workers take them as they can, one process collects what comes of them.

    python examples/use/work_queue.py

A worker that dies at a task leaves it to another one.
"""

from __future__ import annotations

import multiprocessing
import os

import numpy as np

import ipcbench
from ipcbench.errors import TransportTimeout

WORKERS, TASKS, LONGEST_S = 3, 60, 20.0


def hand_out(name: str) -> None:
    """Send matrices to whoever has least to do, and wait until all are done."""
    generator = np.random.default_rng(0)
    with ipcbench.connect(f"{name}-tasks", role="writer", pattern="queue", readers=WORKERS) as tasks:
        for number in range(1, TASKS + 1):
            factors = generator.standard_normal((2, 100, number))
            tasks.send({"number": number, "matrix": factors[0] @ factors[1].T})
        tasks.drain()


def work(name: str) -> None:
    """Take tasks until there are no more; who starts late may find that all is done."""
    with ipcbench.connect(f"{name}-done", role="writer", pattern="fan_in", writers=WORKERS) as done:
        try:
            tasks = ipcbench.connect(f"{name}-tasks", role="reader", timeout_s=LONGEST_S)
        except TransportTimeout:
            return
        for task in tasks:
            done.send({"number": task["number"], "rank": np.linalg.matrix_rank(task["matrix"])})


def main() -> None:
    """Start all processes, and collect results until the workers have left."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the workers share the cores
    name, context = f"work-{os.getpid()}", multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=(name,)) for target in (hand_out, *[work] * WORKERS)]
    with ipcbench.connect(f"{name}-done", role="reader", pattern="fan_in", writers=WORKERS) as done:
        for process in processes:
            process.start()
        ranks = {result["number"]: int(result["rank"]) for result in done}
    for process in processes:
        process.join()
    print(f"{len(ranks)} of {TASKS} tasks done; ranks {min(ranks.values())} to {max(ranks.values())}")


if __name__ == "__main__":
    main()
