"""What an application of gRPC has once: the library, an event loop in a thread of its own, and options."""

from __future__ import annotations

import os
from typing import Any

from ipcbench.sync.loop import LoopThread

# gRPC reads these as it is imported: what goes wrong is raised, not printed; and a fork does nothing to its parent.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
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

loop = LoopThread("gRPC", bears_fork=False)
