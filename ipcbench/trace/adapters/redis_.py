"""redis-py, recorded: each command, pipeline or transaction as an exchange with its server, asyncio too."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import redis
import redis.asyncio

from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.schema import CLIENT, Schema

COMMAND = Schema("command", ("command",), CLIENT)
"""A command until its reply; their bytes are not seen."""


def instrument() -> Callable[[], None]:
    """Let every client record from now on; return a function that undoes it."""
    blocking: tuple[Any, ...] = (redis.Redis, redis.client.Pipeline)
    tasks: tuple[Any, ...] = (redis.asyncio.Redis, redis.asyncio.client.Pipeline)
    return replaced(
        (blocking[0], {"execute_command": _recorded(blocking[0].execute_command)}),
        (blocking[1], {"execute": _recorded(blocking[1].execute, "pipeline")}),
        (tasks[0], {"execute_command": _recorded_async(tasks[0].execute_command)}),
        (tasks[1], {"execute": _recorded_async(tasks[1].execute, "pipeline")}),
    )


def _call(client: Any, name: Any) -> Call:
    """Return the call of a command, by its name without keys: there are few."""
    options = client.connection_pool.connection_kwargs
    host, path = options.get("host"), options.get("path")
    peer = f"unix://{path}" if path else f"tcp://{host}:{options.get('port')}"
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    return STATE.recorder.call(f"redis {(text.split() or ['?'])[0].upper()}", COMMAND, peer)


def _recorded(execute: Any, name: str = "") -> Any:
    @wraps(execute)
    def recorded(self: Any, *args: Any, **options: Any) -> Any:
        with _call(self, name or (args[0] if args else "")):
            return execute(self, *args, **options)

    return recorded


def _recorded_async(execute: Any, name: str = "") -> Any:
    @wraps(execute)
    async def recorded(self: Any, *args: Any, **options: Any) -> Any:
        with _call(self, name or (args[0] if args else "")):
            return await execute(self, *args, **options)

    return recorded
