"""Checks an installed ipcbench by itself: `python check.py c`, or `python check.py python` where it has no parts in C.

A message goes through shm from this process to another, and `doctor` says how the package was built.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys

import ipcbench
from ipcbench import ChannelSpec, get_backend
from ipcbench.backend import Address
from ipcbench.sync.native import NATIVE
from ipcbench.trace.record.hot import IS_C

MESSAGES = [b"", b"short", bytes(range(256)) * 1000]


def read(address: Address) -> None:
    with get_backend("shm")().open_reader(address, 0) as reader:
        for message in MESSAGES:
            assert reader.read(30.0) == message


def main() -> None:
    in_c = {"c": True, "python": False}[sys.argv[1]]
    assert (IS_C, NATIVE is not None) == (in_c, in_c), f"tracer in C: {IS_C}; ring in C: {NATIVE is not None}"
    backend = get_backend("shm")()
    address = backend.create(ChannelSpec(f"ipcb-wheel-{os.getpid()}", 1, max_message_bytes=256_000, depth=4))
    try:
        with backend.open_writer(address) as writer:
            reader = multiprocessing.get_context("spawn").Process(target=read, args=(address,))
            reader.start()
            for message in MESSAGES:
                writer.write(message, 30.0)
            reader.join()
            assert reader.exitcode == 0
    finally:
        backend.destroy(address)
    command = [sys.executable, "-m", "ipcbench", "doctor", "--format", "json"]
    facts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["facts"]
    assert (facts["tracer_in_c"], facts["ring_in_c"]) == (in_c, in_c)
    print(f"{ipcbench.__file__} works, in {'C' if in_c else 'Python'}")


if __name__ == "__main__":
    main()
