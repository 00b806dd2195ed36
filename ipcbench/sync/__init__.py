"""The kit of transport authors. Import its names from here.

- `carried`: channels whose bytes a messaging library carries, and nothing else
- `cursors`: the shared words of a channel (how far each endpoint is, who sleeps, who has closed) and waiting on them
- `descriptors`: whether a library will find the descriptors that it wants
- `folder`: channels that are a folder, and what a transport puts there
- `hazard`: slots that a writer reuses only when no reader is looking at them
- `inbox`: readers of messages that a thread of the library receives
- `interrupts`: work that no signal handler's exception cuts in two
- `latest`: `latest_value` delivery on top of a reader of every message
- `liveness`: which endpoints are open, closed or dead, for transports without shared words
- `locks`: a channel's directory and its endpoint locks
- `loop`: an event loop in a thread of its own, for libraries of asyncio
- `ownership`: what happens to endpoints that are dropped without `close`, or inherited by a forked child
- `peers`: endpoints that know their peers by `liveness` alone
- `place`: where an endpoint listens, and the secret by which its peers know one another
- `ring`, `ring_memory`: the endpoints of a ring of messages in shared memory, and where they lie there
- `server`: the server of a transport: one that is there, or a service of the channel's own
- `service`: a server that a channel needs, started and ended with it
- `wait`: spinning, yielding and blocking; doorbells
- `fences`: memory fences, used by the others
"""

from ipcbench.sync.carried import CarriedBackend, CarriedReader, CarriedWriter
from ipcbench.sync.cursors import (
    MAX_READERS,
    PUBLISHED,
    Cursors,
    CursorsEndpoint,
    ReaderCursors,
    WriterCursors,
    cursors_bytes,
    make_doorbells,
)
from ipcbench.sync.directory import (
    as_transport_errors,
    channel_directory,
    channel_file,
    new_directory,
    open_directory,
    remove_directory,
    require_ours,
    require_socket_path,
)
from ipcbench.sync.folder import FolderBackend
from ipcbench.sync.hazard import ReaderHazardSlots, WriterHazardSlots
from ipcbench.sync.interrupts import in_background, uninterrupted, whole
from ipcbench.sync.latest import LatestValueReader
from ipcbench.sync.liveness import Liveness
from ipcbench.sync.locks import (
    EndpointLock,
    is_held,
    reader_role,
    reader_roles,
)
from ipcbench.sync.ownership import Owned, own
from ipcbench.sync.peers import PeerEndpoint, PeerWriter
from ipcbench.sync.service import end_services, kill_group, start_service
from ipcbench.sync.wait import Doorbell, Waiter

__all__ = [
    "MAX_READERS",
    "PUBLISHED",
    "CarriedBackend",
    "CarriedReader",
    "CarriedWriter",
    "Cursors",
    "CursorsEndpoint",
    "Doorbell",
    "EndpointLock",
    "FolderBackend",
    "LatestValueReader",
    "Liveness",
    "Owned",
    "PeerEndpoint",
    "PeerWriter",
    "ReaderCursors",
    "ReaderHazardSlots",
    "Waiter",
    "WriterCursors",
    "WriterHazardSlots",
    "as_transport_errors",
    "channel_directory",
    "channel_file",
    "cursors_bytes",
    "end_services",
    "in_background",
    "is_held",
    "kill_group",
    "make_doorbells",
    "new_directory",
    "open_directory",
    "own",
    "reader_role",
    "reader_roles",
    "remove_directory",
    "require_ours",
    "require_socket_path",
    "start_service",
    "uninterrupted",
    "whole",
]
