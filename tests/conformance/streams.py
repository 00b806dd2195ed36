"""A program: one endpoint of a channel, which writes or checks numbered messages.

Usage: streams.py write|read ADDRESS INDEX COUNT SIZES…; message n has size SIZES[n mod len(SIZES)], and its bytes are n
mod 251, after a head with n itself. A reader prints, as JSON, how many messages it read and what was wrong; the writer
overwrites its buffer after each write. With COUNT 0 they go on until the standard input or the stream ends.
"""

from __future__ import annotations

import json
import select
import sys

import numpy as np

from ipcbench.backend import Address
from ipcbench.errors import EndOfStream
from ipcbench.registry import get_backend

PATIENCE_S = 60.0
HEAD_BYTES = 8


def write(address: Address, count: int, sizes: list[int]) -> None:
    buffer = np.empty(max(sizes), dtype=np.uint8)
    view = memoryview(buffer)
    number = 0
    with get_backend(address.backend)().open_writer(address) as writer:
        while not count or number < count:
            size = sizes[number % len(sizes)]
            buffer[:size] = number % 251
            if size >= HEAD_BYTES:
                buffer[:HEAD_BYTES] = np.frombuffer(number.to_bytes(HEAD_BYTES, "little"), dtype=np.uint8)
            writer.write(view[:size], PATIENCE_S)
            buffer[:size] = 255
            number += 1
            if not count and number % 64 == 0 and select.select([sys.stdin], [], [], 0)[0]:
                return


def read(address: Address, index: int, count: int, sizes: list[int]) -> dict[str, int]:
    found = {"read": 0, "torn": 0, "repeated": 0, "backwards": 0}
    latest = address.channel.delivery == "latest_value"
    last = -1
    with get_backend(address.backend)().open_reader(address, index) as reader:
        while not count or found["read"] < count:
            try:
                message = np.frombuffer(reader.read(PATIENCE_S), dtype=np.uint8)
            except EndOfStream:
                break
            found["read"] += 1
            number = int.from_bytes(bytes(message[:HEAD_BYTES]), "little") if latest else last + 1
            body = message[HEAD_BYTES:] if message.size >= HEAD_BYTES else message
            whole = message.size == sizes[number % len(sizes)] and bool((body == number % 251).all())
            found["torn"] += not whole
            found["repeated"] += number == last
            found["backwards"] += number < last
            last = number
    return found


def main() -> None:
    role, text, index, count, *sizes = sys.argv[1:]
    address, numbers = Address.from_dict(json.loads(text)), [int(size) for size in sizes]
    if role == "write":
        write(address, int(count), numbers)
    else:
        print(json.dumps(read(address, int(index), int(count), numbers)))


if __name__ == "__main__":
    main()
