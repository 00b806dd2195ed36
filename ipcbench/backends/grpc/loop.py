"""The process's one event loop for gRPC, in a thread of its own, and how other threads wait for what it does."""

from __future__ import annotations

import os
from typing import Any

from ipcbench.spec import ChannelSpec
from ipcbench.sync.loop import LoopThread
from ipcbench.sync.peers import far_count

_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
"""Read by gRPC as it is imported: what goes wrong is raised, not printed; and a fork does nothing to its parent."""

for _name, _value in _QUIET.items():
    os.environ.setdefault(_name, _value)
try:
    import grpc.aio
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
    library: Any = None
else:
    absence, library = None, grpc
"""Why the library is not there; the backend's `probe` says how to install it."""

SERVICE, METHOD = "ipcbench.Channel", "Read"

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),  # nobody else may listen at the writer's port
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each reader
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", 2**24 - 1),  # a large message is not cut into 16 KiB
)

_CREDIT_BYTES, _LEAST_COUNT = 2**24, 4

loop = LoopThread("gRPC", bears_fork=False)


def credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and after how many it sends a receipt."""
    depth = far_count(channel) if channel.host else channel.depth
    count = min(depth, max(_LEAST_COUNT, _CREDIT_BYTES // max(1, channel.max_message_bytes)))
    batch = max(1, count // 2)
    return count + batch - 1, batch
