"""redis-py, recorded: each command, pipeline or transaction as an exchange with its server, asyncio too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import redis
import redis.asyncio.cluster
import redis.cluster

from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.schema import CLIENT, Schema

COMMAND = Schema("command", ("command",), CLIENT)
"""A command until its reply; their bytes are not seen."""


def instrument() -> Callable[[], None]:
    """Let every client record from now on; return a function that undoes it."""
    return replaced(*_changes(_recorded, redis), *_changes(_recorded_async, redis.asyncio))


def _changes(recorded: Any, library: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    pipeline, cluster = library.client.Pipeline, library.cluster
    for kind in (library.Redis, cluster.RedisCluster):
        yield kind, {"execute_command": recorded(kind.execute_command)}
    # after WATCH, a pipeline's commands are executed one by one until MULTI
    immediate = recorded(pipeline.immediate_execute_command)
    yield pipeline, {"execute": recorded(pipeline.execute, "pipeline"), "immediate_execute_command": immediate}
    yield cluster.ClusterPipeline, {"execute": recorded(cluster.ClusterPipeline.execute, "pipeline")}
    transaction = getattr(cluster, "TransactionStrategy", None)  # since redis-py 6
    immediate = getattr(transaction, "_immediate_execute_command", None)
    if immediate is not None:
        yield transaction, {"_immediate_execute_command": recorded(immediate)}


def _peer(client: Any) -> str:
    """Return the endpoint of a client's server; of a cluster, that of the node it asks first."""
    client = getattr(client, "_pipe", client)  # of a transaction
    nodes = getattr(getattr(client, "cluster_client", client), "nodes_manager", None)
    if nodes is not None:
        first = nodes.default_node or next(iter(nodes.startup_nodes.values()), None)
        return f"tcp://{first.name}" if first else ""
    pool = client.connection_pool
    options = pool.connection_kwargs
    if path := options.get("path"):
        return f"unix://{path}"
    if service := getattr(pool, "service_name", None):  # a sentinel knows where it is
        return f"tcp://{service}"
    return f"tcp://{options.get('host') or 'localhost'}:{options.get('port') or 6379}"


def _call(client: Any, name: Any) -> Call:
    """Return the call of a command, by its name without keys: there are few."""
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    return STATE.recorder.call(f"redis {(text.split() or ['?'])[0].upper()}", COMMAND, _peer(client))


def _is_empty(pipeline: Any) -> bool:
    """Return whether executing a pipeline sends nothing."""
    return not len(pipeline) and not getattr(pipeline, "watching", False)


def _recorded(execute: Any, name: str = "") -> Any:
    @wraps(execute)
    def recorded(self: Any, *args: Any, **options: Any) -> Any:
        if name and _is_empty(self):
            return execute(self, *args, **options)
        with _call(self, name or (args[0] if args else "")):
            return execute(self, *args, **options)

    return recorded


def _recorded_async(execute: Any, name: str = "") -> Any:
    @wraps(execute)
    async def recorded(self: Any, *args: Any, **options: Any) -> Any:
        if name and _is_empty(self):
            return await execute(self, *args, **options)
        with _call(self, name or (args[0] if args else "")):
            return await execute(self, *args, **options)

    return recorded
