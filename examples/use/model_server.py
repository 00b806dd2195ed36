"""A model in NumPy with many clients: each sends batches of images and gets their classes.

python examples/use/model_server.py
"""

from __future__ import annotations

import multiprocessing
import os

import numpy as np

from ipcbench import rpc

CLIENTS, BATCHES = 4, 25


def serve(name: str) -> None:
    """Serve until `stop` is called."""
    weights = np.random.default_rng(0).standard_normal((784, 10), dtype=np.float32)
    server = rpc.Server("shm", name)

    @server.method(copy=False)  # the images stay in shared memory
    def classify(images: np.ndarray) -> np.ndarray:
        return (images @ weights).argmax(axis=1)

    server.method(server.stop)
    server.serve()


def ask(name: str, number: int) -> None:
    """Be a client: have up to 16 batches under way, and count the classes of all."""
    batches = np.random.default_rng(number).standard_normal((BATCHES, 64, 784), dtype=np.float32)
    with rpc.connect(name, timeout_s=60) as client:
        futures = [client.submit("classify", batch) for batch in batches]
        classes = np.concatenate([future.result() for future in futures])
    print(f"client {number}: {len(classes)} images, {np.bincount(classes, minlength=10).tolist()}", flush=True)


def main() -> None:
    """Start a server and its clients, and end the server after them."""
    name, context = f"model-{os.getpid()}", multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(name,))
    clients = [context.Process(target=ask, args=(name, number)) for number in range(CLIENTS)]
    for process in (server, *clients):
        process.start()
    for process in clients:
        process.join()
    with rpc.connect(name, timeout_s=60) as client:
        client.stop()
    server.join()


if __name__ == "__main__":
    main()
