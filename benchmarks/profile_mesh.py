"""An operation of two ranks through torch: gloo beside the mesh over shared memory or another transport, in turns.

    python benchmarks/profile_mesh.py [TRANSPORT] [all_reduce|broadcast]

Each row has the median of many calls in turns of 20, in microseconds, and their ratio. torch is needed.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from time import perf_counter_ns

import torch
import torch.distributed as dist

from ipcbench.profile.comm import group
from ipcbench.profile.comm.mesh import Mesh, create_mesh, destroy_mesh
from ipcbench.profile.comm.recorder import Recorder

SIZES = [2**exponent for exponent in range(10, 25, 2)]
TURN = 20


def main(transport: str = "shm", operation: str = "all_reduce") -> None:
    addresses = create_mesh(transport, 2)
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        try:
            rank = int(not child)
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
            with Mesh(addresses, rank) as mesh:
                ours = group.over_mesh(mesh, Recorder(rank))
                for size in SIZES:
                    measure(ours, operation, size, transport if rank == 0 else "")
            dist.destroy_process_group()
        finally:
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            destroy_mesh(addresses)


def measure(ours: group.Group, operation: str, size: int, transport: str) -> None:
    tensor = torch.zeros(size // 4)
    method, options = {
        "all_reduce": ("allreduce", dist.AllreduceOptions()),
        "broadcast": ("broadcast", dist.BroadcastOptions()),
    }[operation]
    groups = {"gloo": dist.group.WORLD, "ours": ours}
    times: dict[str, list[int]] = {"gloo": [], "ours": []}
    for turn in range(max(4, min(20, 2**26 // size // TURN))):
        for name in ("gloo", "ours") if turn % 2 else ("ours", "gloo"):
            for _ in range(TURN):
                begin = perf_counter_ns()
                getattr(groups[name], method)([tensor], options).wait()
                times[name].append(perf_counter_ns() - begin)
    gloo, own = (statistics.median(each) / 1e3 for each in times.values())
    if transport:
        rates = f"{size / own / 1e3:6.2f} GB/s   {gloo / own:5.1f} times as quick"
        print(f"{size:>10,} bytes   gloo {gloo:9.1f} us   {transport} {own:9.1f} us   {rates}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
