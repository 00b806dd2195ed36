"""torch's process group: right results, every call recorded, the calls of a model as they were planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from ipcbench.profile.comm import group  # noqa: E402
from ipcbench.profile.comm.recorder import Recorder  # noqa: E402
from ipcbench.profile.comm.synth import planned  # noqa: E402
from ipcbench.profile.model.loading import load  # noqa: E402
from ipcbench.profile.model.parallel import Runner  # noqa: E402
from ipcbench.profile.model.plan import Plan, find_model  # noqa: E402
from ipcbench.profile.records import Setting  # noqa: E402
from tests.profile.comm.ranks import in_ranks, mesh_of  # noqa: E402


class _OnGpu(torch.Tensor):  # type: ignore[misc]
    """A tensor that says it is a GPU's."""

    is_cuda = True


def test_gloo_gets_copies_of_a_gpus_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take their addresses for those of the host's memory."""

    class Inner:
        def send(self, tensors: Any, *_: int) -> Any:
            sent.extend(tensors)
            return dist.Work()

        def recv(self, tensors: Any, *_: int) -> Any:
            tensors[0].fill_(7)
            return group._COMPLETE

        allreduce = recv

    sent: list[Any] = []
    monkeypatch.setattr(group, "_copy", lambda tensor, is_filled: torch.full((2,), 3.0 if is_filled else 0.0))
    gloo, tensor = group._Gloo(Inner()), torch.zeros(2).as_subclass(_OnGpu)
    gloo.send([tensor], 1, 0)
    assert sent[0].tolist() == [3.0, 3.0]
    for call in (gloo.recv, gloo.allreduce):
        tensor.zero_()
        work = call([tensor], 1, 0)
        assert tensor.tolist() == [0.0, 0.0]
        work.wait()
        assert tensor.tolist() == [7.0, 7.0]


def _use_all(rank: int, world: int) -> None:
    """Call everything, and check what comes."""
    total = world * (world + 1) // 2
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.full((33,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert (tensor == total).all()
    functional, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    summed = functional.wait_tensor(functional.all_reduce(torch.full((3, 4), 1.0 + rank).t(), "sum", name))
    assert (summed == total).all()
    gathered = functional.wait_tensor(functional.all_gather_into_tensor(torch.full((2,), rank), world, name))
    assert gathered.tolist() == [each for each in range(world) for _ in range(2)]
    part = functional.wait_tensor(functional.reduce_scatter_tensor(torch.arange(2 * world), "sum", world, name))
    assert part.tolist() == [2 * rank * world, (2 * rank + 1) * world]
    parts = [torch.empty(5) for _ in range(world)]
    dist.all_gather(parts, torch.full((5,), float(rank)))
    assert [int(each[0]) for each in parts] == list(range(world))
    own = torch.empty(5)
    dist.scatter(own, [2 * each for each in parts] if rank == 1 else None, src=1)
    dist.broadcast(parts[0], src=1)
    assert (own == 2 * rank).all()
    dist.gather(own, parts if rank == 0 else None, dst=0)
    dist.barrier()
    for is_send_first in (True, False):  # as large as no buffer, in both orders
        out, into = torch.full((2**20,), float(rank)), torch.empty(2**20)
        ops = [dist.P2POp(dist.isend, out, (rank + 1) % world), dist.P2POp(dist.irecv, into, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(ops if is_send_first else ops[::-1]):
            work.wait()
        assert (into == (rank - 1) % world).all()
    some = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(own, group=some)
        assert (own == 2).all()


@pytest.mark.parametrize(("transport", "world"), [("gloo", 2), ("shm", 3), ("pipe", 2)])
def test_every_call_is_right_and_recorded(tmp_path: Path, transport: str, world: int) -> None:
    def work(rank: int) -> Any:
        recorder = Recorder(rank, lambda: "layers.0")
        group.start(transport, rank, world, addresses, f"file://{tmp_path}/store", recorder)
        dist.barrier()  # outside of a step
        recorder.begin(7)
        _use_all(rank, world)
        recorder.end()
        group.stop()
        return recorder.taken()

    with mesh_of("shm" if transport == "gloo" else transport, world) as addresses:
        every = in_ranks(world, work)
    ops = "all_gather reduce_scatter all_gather scatter broadcast gather barrier"
    for rank, calls in enumerate(every):
        assert [call.op for call in calls][:11] == ["all_reduce"] * 4 + ops.split()
        assert [call.op for call in calls][11:15] == ["send", "recv", "recv", "send"]
        assert [call.bytes for call in calls[:5]] == [132, 66, 264, 48, 16 * world]
        assert calls[11].ranks == (rank, (rank + 1) % world)
        assert all(call.exit_ns and call.exit_ns >= call.enter_ns for call in calls)
        assert {(call.rank, call.step, call.path) for call in calls} == {(rank, 7, "layers.0")}
    assert every[0][-1].ranks == every[1][-1].ranks == (0, 1)


def test_reductions_other_than_sums(tmp_path: Path) -> None:
    ops = {dist.ReduceOp.MAX: 2.0, dist.ReduceOp.MIN: 1.0, dist.ReduceOp.PRODUCT: 2.0, dist.ReduceOp.AVG: 1.5}

    def work(rank: int) -> list[float]:
        group.start("shm", rank, 2, addresses, f"file://{tmp_path}/store", Recorder(rank))
        found = []
        for op in ops:
            tensor = torch.full((3,), 1.0 + rank)
            dist.all_reduce(tensor, op=op)
            found.append(float(tensor[0]))
        group.stop()
        return found

    with mesh_of("shm", 2) as addresses:
        assert in_ranks(2, work) == [list(ops.values())] * 2


@pytest.mark.parametrize("parallel", ["tp2", "pp2", "tp2pp2", "split"])
def test_a_run_says_what_was_planned(tmp_path: Path, parallel: str) -> None:
    plan = Plan.parse(parallel)
    setting = Setting(model="qwen3-tiny", parallel=parallel, seq=16, batch=2, tokens=2, micro_batches=plan.pp)

    load(setting, is_meta=True)  # imports much of torch, before the ranks are forked

    def work(rank: int) -> Any:
        torch.set_num_threads(1)
        recorder = Recorder(rank)
        group.start("shm", rank, plan.world, addresses, f"file://{tmp_path}/store", recorder)
        runner = Runner(load(setting), setting, rank)
        recorder.begin(0)
        runner.step(torch.zeros(2, 16, dtype=torch.int64))
        for step in (1, 2):
            recorder.begin(step)
            runner.step(torch.zeros(2, 1, dtype=torch.int64), 15 + step)
        group.stop()
        return [(c.rank, c.step, c.sequence, c.op, c.ranks, c.bytes, c.dtype) for c in recorder.taken()]

    with mesh_of("shm", plan.world) as addresses:
        recorded = in_ranks(plan.world, work)
    for rank, rows in enumerate(recorded):
        expected = [c for c in planned(find_model("qwen3-tiny"), plan, setting) if c.rank == rank]
        assert rows == [
            (c.rank, c.step, c.sequence, c.op, c.ranks, c.bytes, c.dtype)
            for c in sorted(expected, key=lambda c: (c.step, c.sequence))
        ]
