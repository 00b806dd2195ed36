"""What the processes of a sweep do on GPUs: describe them, copy, share memory and take it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from typing import Any, Final

from ipcbench.errors import TransportError
from ipcbench.harness.worker import Worker, verb
from ipcbench.util.clock import now_ns

PEER: Final = "peer to peer"
ROUNDS: Final = 5
_ROUND_MS = 10.0
_MOST_COPIES = 1000


def driver() -> Any:
    """Return CUDA's driver; None if it is not installed."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@verb
def describe(_: Worker, __: dict[str, Any]) -> dict[str, Any]:
    """Answer with the `gpus` that torch can use."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    link, link_bytes_per_s = _link() if count > 1 else ("", None)
    return {"gpus": [{**_facts(index), "link": link, "link_bytes_per_s": link_bytes_per_s} for index in range(count)]}


def _facts(index: int) -> dict[str, Any]:
    """Return a device's name, memory, and the peak of its memory: two transfers in a cycle; None if it is not known."""
    import torch

    found = torch.cuda.get_device_properties(index)
    clock_khz, width = getattr(found, "memory_clock_rate", 0), getattr(found, "memory_bus_width", 0)
    peak, free_bytes = 2 * clock_khz * 1000 * width // 8 or None, torch.cuda.mem_get_info(index)[0]
    l2_bytes = getattr(found, "L2_cache_size", 0) or 2**26
    return {"name": found.name, "free_bytes": free_bytes, "l2_bytes": l2_bytes, "peak_bytes_per_s": peak}


def _link() -> tuple[str, int | None]:
    """Return how the first two GPUs are joined, as `nvidia-smi topo -m` has it (`NV18`, `PIX`, `SYS`), and the bytes
    per second of their NVLinks one way; what is not known is empty or None.
    """
    rows = [line.split() for line in _nvidia_smi("topo", "-m").splitlines()]
    link = next((row[2] for row in rows if len(row) > 2 and row[0] == "GPU0" and row[1] == "X"), "")
    speeds = [line.split()[-2] for line in _nvidia_smi("nvlink", "-s", "-i", "0").splitlines() if "GB/s" in line]
    rates = [float(speed) for speed in speeds if speed.replace(".", "").isdecimal()]
    return link, round(1e9 * sum(rates)) or None if link.startswith("NV") else None


def _nvidia_smi(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["nvidia-smi", *arguments],  # noqa: S607 - wherever it is
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


@verb
def copy(_: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Copy between two buffers; answers with `times_ns`, of one copy, in each round."""
    import torch

    what, size_bytes, (own, other) = request["what"], request["bytes"], request["devices"]
    kinds = {"host": "cpu", "device": own, "peer": other}
    ends = ["device", "peer"] if what == PEER else what.partition(",")[0].split(" to ")
    is_pinned = what.endswith(", pinned")
    source, target = (
        torch.full((size_bytes,), value, dtype=torch.uint8, device=kinds[end], pin_memory=is_pinned and end == "host")
        for end, value in zip(ends, (1, 0), strict=True)
    )
    is_async = not what.endswith(", pageable")
    times_ns = _timed(lambda: target.copy_(source, non_blocking=is_async))
    if not bool(target[:: 2**10].eq(1).all()):
        raise TransportError(f"{what}: the bytes that came are not those that were sent")
    return {"times_ns": times_ns}


def _timed(once: Callable[[], object]) -> list[float]:
    """Return the time that one copy takes on the device, ns, in each round."""
    import torch

    def round_ms(count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            once()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    once()
    count = min(_MOST_COPIES, max(1, round(_ROUND_MS / max(round_ms(1), 1e-3))))
    return [max(1.0, 1e6 * round_ms(count) / count) for _ in range(ROUNDS)]


_kept: list[Any] = []
"""The tensor that another process reads."""


@verb
def share(_: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Fill memory of the first GPU, and answer with the `storage` by which another process can open it."""
    import torch

    _kept[:] = [torch.arange(request["bytes"] // 4, dtype=torch.int32, device=request.get("device", "cuda:0"))]
    torch.cuda.synchronize()
    return {"storage": [*_kept[0].untyped_storage()._share_cuda_()]}


@verb
def take(_: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Open another process's memory, copy it, and compare it; answers with `times_ns`, and `open_ns`, to open it."""
    import torch

    torch.cuda.synchronize()  # so that CUDA is ready
    began_ns = now_ns()
    storage: Any = torch.UntypedStorage._new_shared_cuda(*request["storage"])
    source = torch.empty(0, dtype=torch.int32, device=storage.device).set_(storage)
    open_ns = now_ns() - began_ns
    target = torch.empty_like(source)
    times_ns = _timed(lambda: target.copy_(source, non_blocking=True))
    if not torch.equal(target, torch.arange(len(source), dtype=torch.int32, device=source.device)):
        raise TransportError("CUDA IPC: the bytes that came are not those that were sent")
    return {"times_ns": times_ns, "open_ns": open_ns}


@verb
def release(_: Worker, __: dict[str, Any]) -> dict[str, Any]:
    """Give back what was shared."""
    import torch

    _kept.clear()
    torch.cuda.ipc_collect()
    return {}
