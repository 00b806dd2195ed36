"""torch's process group over a mesh, or around gloo or NCCL; both record every call, whoever makes it: functions of
`torch.distributed`, functional collectives, DTensor, or `batch_isend_irecv`. Imports torch.

torch calls a Python process group experimental: the names of its methods have changed from 2.11 to 2.13, and both are
bound here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from ipcbench.errors import ConfigError
from ipcbench.profile.comm.collectives import Bytes, Fold, Team, folding
from ipcbench.profile.comm.mesh import Mesh
from ipcbench.profile.comm.recorder import Recorder

_NAME: Final = "ipcbench"
_OWN: Final = ("gloo", "nccl")
"""Transports that torch brings along."""

_REDUCTIONS: Final[Mapping[str, tuple[np.ufunc, Any]]] = {
    "SUM": (np.add, torch.add),
    "AVG": (np.add, torch.add),
    "PRODUCT": (np.multiply, torch.mul),
    "MIN": (np.minimum, torch.minimum),
    "MAX": (np.maximum, torch.maximum),
}
_NAMES: Final = {int(getattr(dist.ReduceOp, name)): name for name in _REDUCTIONS}
_NUMPY: Final = frozenset((torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8))
"""Types that numpy has, too, and reduces as quickly."""
_FORMER: Final = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
"""Method of torch 2.13 → what it was called before."""
_OPS: Final[Mapping[str, tuple[str, int]]] = {
    method: (op, counted)
    for op, counted, methods in (
        ("all_reduce", 0, "allreduce allreduce_coalesced"),
        ("broadcast", 0, "broadcast"),
        ("all_gather", 0, "allgather all_gather_single all_gather_single_coalesced"),
        ("reduce_scatter", 1, "reduce_scatter reduce_scatter_single reduce_scatter_single_coalesced"),
        ("scatter", 0, "scatter"),
        ("gather", 1, "gather"),
        ("all_to_all", 1, "alltoall all_to_all_single"),
        ("send", 0, "send"),
        ("recv", 0, "recv"),
    )
    for method in methods.split()
}
"""Method → operation, and which of its arguments has the tensors whose bytes count."""


class _Work(dist.Work):
    """A call that is complete, or will be once it has been waited for."""

    def __init__(self, finish: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self._finish = finish

    def wait(self, timeout: Any = None) -> bool:
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        return True

    def is_completed(self) -> bool:
        return self._finish is None


_COMPLETE: Final = _Work()


class Group(dist.ProcessGroup):
    """Makes calls and records them.

    Args:
        calls: has torch's methods: a group of gloo or NCCL, or `_OverMesh`.
        rank: of this process in the group.
        ranks: members of the group.
        recorder: where calls are noted. Over NCCL, times are those of the host: when work was handed to the device.
    """

    def __init__(self, calls: Any, rank: int, ranks: tuple[int, ...], recorder: Recorder) -> None:
        super().__init__(rank, len(ranks))
        self._calls, self._place, self._ranks, self._recorder = calls, rank, ranks, recorder
        self._own_name = ""

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name, as that of the next
        self._own_name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._own_name

    def barrier(self, opts: Any = None) -> dist.Work:
        row = self._recorder.enter("barrier", self._ranks, 0, "")
        return self._done(row, self._calls.barrier(opts) if opts is not None else self._calls.barrier())

    def _call(self, name: str, *arguments: Any) -> dist.Work:
        op, counted = _OPS[name]
        tensors = _tensors(arguments[counted])
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        ranks = self._ranks
        if op in {"scatter", "gather"}:
            size_bytes *= len(ranks)
        elif op == "send":
            ranks = self._ranks[self._place], self._ranks[arguments[1]]
        elif op == "recv":
            ranks = self._ranks[arguments[1]], self._ranks[self._place]
        if tensors[0].is_cuda and type(self._calls) is not _Inner:  # a copy would wait for this, within the call
            torch.cuda.current_stream(tensors[0].device).synchronize()
        row = self._recorder.enter(op, ranks, size_bytes, _name(tensors[0].dtype))
        return self._done(row, getattr(self._calls, name)(*arguments))

    def _done(self, row: list[Any] | None, work: Any) -> dist.Work:
        """Return the work of a call. Its end is noted once it has been waited for, or now if it is complete."""
        if work is None:
            self._recorder.leave(row)
            return _COMPLETE
        return _Work(partial(self._finish, row, work))

    def _finish(self, row: list[Any] | None, work: Any) -> None:
        work.wait()
        self._recorder.leave(row)


def _bind(name: str) -> Callable[..., dist.Work]:
    def method(self: Group, *arguments: Any) -> dist.Work:
        return self._call(name, *arguments)

    return method


for _method in _OPS:
    setattr(Group, _method, _bind(_method))
    setattr(Group, _FORMER.get(_method, _method), _bind(_method))


class _Inner:
    """A group of torch's own, whichever names its methods have."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name if hasattr(self._group, name) else _FORMER.get(name, name))


class _Gloo(_Inner):
    """Gloo, which knows no GPU's tensors in messages: of these, it gets copies in the host's pinned memory."""

    def __getattr__(self, name: str) -> Any:
        if name not in {"allreduce", "broadcast", "send", "recv"}:
            return super().__getattr__(name)
        return partial(self._staged, name)

    def _staged(self, name: str, tensors: Any, *rest: Any) -> Any:
        call = getattr(self._group, name)
        if not any(tensor.is_cuda for tensor in tensors):
            return call(tensors, *rest)
        copies = [_copy(tensor, is_filled=name != "recv") for tensor in tensors]
        work = call(copies, *rest)

        def finish() -> None:
            work.wait()
            for tensor, copy in zip(tensors, copies, strict=True):  # which are kept until then
                if name != "send":
                    tensor.copy_(copy)

        return _Work(finish)


class _Wire:
    """A mesh, and the messages that a rank has said it will receive, in the order in which their senders send them."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._expected: dict[int, deque[Callable[[], None]]] = defaultdict(deque)

    def expect(self, peer: int, receive: Callable[[], None]) -> _Work:
        """Return the work that waits for the next message of a peer."""
        self._expected[peer].append(receive)
        return _Work(partial(self._await, peer, receive))

    def settle(self) -> None:
        """Receive all that is expected: collective operations come after it."""
        for expected in self._expected.values():
            while expected:
                expected.popleft()()

    def _await(self, peer: int, receive: Callable[[], None]) -> None:
        """Receive from a peer until this message has come."""
        while receive in self._expected[peer]:
            self._expected[peer].popleft()()


class _OverMesh:
    """torch's methods over a mesh. Only `send` and `recv` return anything: work to be waited for."""

    def __init__(self, wire: _Wire, ranks: tuple[int, ...]) -> None:
        self._wire, self._team = wire, Team(wire.mesh, ranks)

    def allreduce(self, tensors: Any, opts: Any = None) -> None:
        op = _op(opts)
        for tensor in tensors:
            with _OnHost(tensor) as host:
                self._ready().all_reduce(host.bytes, _fold(tensor.dtype, op))
            self._average(tensor, op)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any) -> None:
        for tensor in tensors:
            with _OnHost(tensor) as host:
                self._ready().broadcast(host.bytes, opts.rootRank)

    def allgather(self, outs: Any, tensors: Any, _: Any = None) -> None:
        for parts, own in zip(outs, tensors, strict=True):
            with _OnHost(*parts, is_filled=False) as into:
                self._ready().all_gather(_OnHost(own).bytes, into.all)

    def all_gather_single(self, out: Any, own: Any, _: Any = None) -> None:
        self.allgather([out.view(-1).chunk(self._team.size)], [own])

    def all_gather_single_coalesced(self, outs: Any, tensors: Any, _: Any = None) -> None:
        for out, own in zip(outs, tensors, strict=True):
            self.all_gather_single(out, own)

    def reduce_scatter(self, outs: Any, inputs: Any, opts: Any = None) -> None:
        op = _op(opts)
        for own, parts in zip(outs, inputs, strict=True):
            with _OnHost(own, is_filled=False) as into:
                self._ready().reduce_scatter(_OnHost(*parts).all, into.bytes, _fold(own.dtype, op))
            self._average(own, op)

    def reduce_scatter_single(self, out: Any, whole: Any, opts: Any = None) -> None:
        self.reduce_scatter([out], [whole.contiguous().view(-1).chunk(self._team.size)], opts)

    def reduce_scatter_single_coalesced(self, outs: Any, inputs: Any, opts: Any = None) -> None:
        for out, whole in zip(outs, inputs, strict=True):
            self.reduce_scatter_single(out, whole, opts)

    def scatter(self, outs: Any, inputs: Any, opts: Any) -> None:
        parts = inputs[0] if inputs else []
        with _OnHost(*outs, is_filled=False) as into:
            self._ready().scatter(_OnHost(*parts).all, into.bytes, opts.rootRank)

    def gather(self, outs: Any, tensors: Any, opts: Any) -> None:
        parts = outs[0] if outs else []
        with _OnHost(*parts, is_filled=False) as into:
            self._ready().gather(_OnHost(*tensors).bytes, into.all, opts.rootRank)

    def alltoall(self, outs: Any, inputs: Any, _: Any = None) -> None:
        with _OnHost(*outs, is_filled=False) as into:
            self._ready().all_to_all(_OnHost(*inputs).all, into.all)

    def all_to_all_single(self, out: Any, whole: Any, out_sizes: Any, sizes: Any, _: Any = None) -> None:
        of_out, of_whole = (
            tensor.split(list(lengths)) if len(lengths) else tensor.chunk(self._team.size)
            for tensor, lengths in ((out, out_sizes), (whole, sizes))
        )
        self.alltoall(of_out, of_whole)

    def barrier(self, _: Any = None) -> None:
        self._ready().barrier()

    def send(self, tensors: Any, to: int, _: int = 0) -> _Work | None:
        peer, mesh = self._team.ranks[to], self._wire.mesh
        host = _OnHost(*tensors)
        mesh.start_send(peer, host.bytes)
        return _Work(partial(self._sent, peer, host)) if mesh.is_sending(peer) else None

    def _sent(self, peer: int, _host: _OnHost) -> None:
        """Wait for what was sent, of which the host's copy is kept until then."""
        self._wire.mesh.flush(peer)

    def recv(self, tensors: Any, source: int, _: int = 0) -> _Work:
        peer = self._team.ranks[source]

        def receive() -> None:
            with _OnHost(*tensors, is_filled=False) as into:
                self._wire.mesh.receive_into(peer, into.bytes)

        return self._wire.expect(peer, receive)

    def _ready(self) -> Team:
        self._wire.settle()
        return self._team

    def _average(self, tensor: Any, op: str) -> None:
        if op == "AVG":
            tensor.div_(self._team.size)


class _OnHost:
    """Tensors as bytes in the host's memory: their own where possible, else copies, pinned for a GPU's, which a `with`
    block copies back in the end.

    Args:
        tensors: on any device.
        is_filled: whether their content matters.

    Attributes:
        all: the bytes of each.
    """

    def __init__(self, *tensors: torch.Tensor, is_filled: bool = True) -> None:
        self._copies = [(tensor, _copy(tensor, is_filled=is_filled)) for tensor in tensors]
        self.all: list[Bytes] = [_array(copy) for _, copy in self._copies]

    @property
    def bytes(self) -> Bytes:
        """Return the bytes of the only one."""
        (alone,) = self.all
        return alone

    def __enter__(self) -> _OnHost:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for tensor, copy in self._copies if kind is None else ():
            if copy is not tensor:
                tensor.copy_(copy)


def _array(tensor: torch.Tensor) -> Bytes:
    """Return the bytes of a contiguous tensor."""
    plain = tensor if tensor.dtype in _NUMPY else tensor.view(-1).view(torch.uint8)
    found: Bytes = plain.detach().numpy().reshape(-1).view(np.uint8)
    return found


def _copy(tensor: torch.Tensor, *, is_filled: bool) -> torch.Tensor:
    if tensor.is_cuda:
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor) if is_filled else pinned
    return tensor.contiguous()


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensors(argument: Any) -> list[torch.Tensor]:
    """Return the tensors of an argument: one, or lists of some."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    return [tensor for item in argument for tensor in _tensors(item)]


def _op(opts: Any) -> str:
    op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    return _NAMES.get(int(getattr(op, "op", op)), str(op))


@cache
def _fold(dtype: torch.dtype, op: str) -> Fold:
    if op not in _REDUCTIONS:
        raise ConfigError("reduction", op, tuple(_REDUCTIONS))
    of_numpy, of_torch = _REDUCTIONS[op]
    if dtype in _NUMPY:
        return folding(of_numpy, _name(dtype))

    def fold(into: Bytes, piece: memoryview) -> None:
        target = torch.from_numpy(into).view(dtype)
        of_torch(target, torch.frombuffer(bytearray(piece), dtype=dtype), out=target)

    return fold


class _Running:
    """The default process group of this process, as `start` made it."""

    def __init__(self, transport: str, recorder: Recorder, mesh: Mesh | None) -> None:
        self.transport, self.recorder, self.mesh = transport, recorder, mesh
        self.wire = _Wire(mesh) if mesh is not None else None

    def group(self, options: Any) -> Group:
        """Make a group; torch calls this for the default one and for every other."""
        ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        rank, size = options.group_rank, options.group_size
        if self.wire is not None:
            return Group(_OverMesh(self.wire, ranks), rank, ranks, self.recorder)
        torch_own: Any = dist
        kinds, store = dist.ProcessGroup.BackendType, options.store
        inner = dist.ProcessGroup(store, rank, size)
        inner._set_default_backend(kinds.GLOO)
        gloo = torch_own.ProcessGroupGloo(dist.PrefixStore("cpu", store), rank, size, options.timeout)
        inner._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
        if self.transport == "gloo":
            return Group(_Gloo(inner), rank, ranks, self.recorder)
        nccl = torch_own.ProcessGroupNCCL  # barriers and objects are the host's, over gloo
        made = nccl(dist.PrefixStore("cuda", store), rank, size, nccl.Options())
        inner._register_backend(torch.device("cuda"), kinds.NCCL, made)
        return Group(_Inner(inner), rank, ranks, self.recorder)


def over_mesh(mesh: Mesh, recorder: Recorder) -> Group:
    """Return a group of all ranks of a mesh, which is no default process group."""
    ranks = tuple(range(mesh.world))
    return Group(_OverMesh(_Wire(mesh), ranks), mesh.rank, ranks, recorder)


_running: _Running | None = None


def _make(options: Any, _: Any = None) -> Group:
    assert _running is not None  # noqa: S101 - `start` sets it before torch makes a group
    return _running.group(options)


def start(
    transport: str,
    rank: int,
    world: int,
    addresses: Sequence[Mapping[str, Any]],
    init_method: str,
    recorder: Recorder,
) -> None:
    """Make this process's default process group, of which the recorder notes every call.

    Args:
        transport: `gloo`, `nccl`, or the backend of the mesh.
        rank: of this process.
        world: ranks.
        addresses: of the mesh; none for gloo and NCCL.
        init_method: where ranks find each other, as torch takes it: `file://…`, or `env://` under torchrun.
        recorder: of this rank.

    Raises:
        TransportError: the mesh cannot be opened.
    """
    global _running  # noqa: PLW0603 - torch has one default process group, too
    mesh = None if transport in _OWN else Mesh(addresses, rank)
    if not hasattr(dist.Backend, _NAME.upper()):
        dist.Backend.register_backend(_NAME, _make, extended_api=True, devices=["cpu", "cuda"])
    _running = _Running(transport, recorder, mesh)
    dist.init_process_group(_NAME, init_method=init_method, rank=rank, world_size=world)


def stop() -> None:
    """End the default process group, and close the mesh; twice is fine."""
    global _running  # noqa: PLW0603
    if dist.is_initialized():
        dist.destroy_process_group()
    if _running is not None and _running.mesh is not None:
        _running.mesh.close()
    _running = None
