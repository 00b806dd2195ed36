"""Calls from many processes to one, over any transport that was measured.

>>> from ipcbench import rpc
>>> server = rpc.Server("shm", "gpu")
>>> @server.method
... def matmul(a, b):
...     return a @ b
>>> server.serve()                                             # in one process

>>> with rpc.connect("gpu", timeout_s=10) as client:           # in others
...     product = client.matmul(a, b)
...     future = client.submit("matmul", a, b)

- `protocol`: what the two sides say to each other
- `server`, `client`: the sides; `aio`: both for asyncio
- `loop`: a server while it serves; `session`: a client's connection to one life of a server
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ipcbench.errors import RemoteError
from ipcbench.rpc.client import Client, connect
from ipcbench.rpc.server import Server


def __getattr__(name: str) -> Any:
    """Import `aio`, and with it asyncio, when it is asked for."""
    if name == "aio":
        return import_module("ipcbench.rpc.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Client", "RemoteError", "Server", "connect"]
