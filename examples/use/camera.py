"""A camera whose readers want the latest image, not all of them: a slow reader misses images and delays nobody.

python examples/use/camera.py
"""

from __future__ import annotations

import multiprocessing
import os

import numpy as np

import ipcbench

IMAGES, READERS = 500, 2


def film(name: str) -> None:
    """Write images as fast as it goes."""
    with ipcbench.connect(name, role="writer", delivery="latest_value", readers=READERS) as camera:
        for number in range(IMAGES):
            camera.send({"number": number, "image": np.full((480, 640), number % 256, np.uint8)})


def watch(name: str, reader: int) -> None:
    """Look at the latest image until the last one has come."""
    looks, seen = 0, set()
    with ipcbench.connect(name, role="reader", delivery="latest_value", readers=READERS) as camera:
        while IMAGES - 1 not in seen:
            latest = camera.value(timeout_s=60)  # the same object until there is a newer one
            assert (latest["image"] == latest["number"] % 256).all(), "never a mixture of two"
            looks += 1
            seen.add(latest["number"])
    print(f"reader {reader}: {looks} looks, the last image was {max(seen)}", flush=True)


def main() -> None:
    """Start a camera and its readers."""
    name, context = f"camera-{os.getpid()}", multiprocessing.get_context("spawn")
    processes = [context.Process(target=film, args=(name,))]
    processes += [context.Process(target=watch, args=(name, reader)) for reader in range(READERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
